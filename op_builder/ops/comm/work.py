"""The work that a collective of the backend "accel" returns, and the queue that runs collectives in order.

The queue is not an executor of ``concurrent.futures``, because there no caller can run the work that it waits for.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from op_builder.errors import AccelError, CommunicationError
from op_builder.ops.caller_state import CallerState

T = TypeVar("T")

_NO_TIMEOUT = timedelta()
_FOREVER = -1.0  # as threading's locks spell it
_JOIN_S = 5.0  # a collective notices within half a second that its group was closed, if it gets a core
_DONE: futures.Future[None] = futures.Future()
_DONE.set_result(None)


class CollectiveWork(Work):
    """A collective that fills ``result``: complete, or with a queue that will call :meth:`run`."""

    def __init__(self, result: Sequence[torch.Tensor], queue: WorkQueue | None = None) -> None:
        super().__init__()
        self._result = list(result)
        self._queue = queue
        self._end: futures.Future[None] = _DONE if queue is None else futures.Future()
        self._future: Future[list[torch.Tensor]] | None = None

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return True when the tensors are filled; raise its error, or after ``timeout`` a CommunicationError."""
        if self._queue is not None:
            if not self._end.done():
                self._queue.finish(self, timeout.total_seconds() or _FOREVER)
            # Another thread is about to complete the future, unless this is a signal handler inside the collective.
            if self._future is not None and not self._queue.is_inside_collective():
                with suppress(Exception):  # the same error as below
                    self._future.wait()
        self._end.result()
        return True

    def is_completed(self) -> bool:
        """Whether it has finished, successfully or not."""
        return self._end.done()

    def is_success(self) -> bool:
        """Whether it has finished successfully."""
        return self._end.done() and self._end.exception() is None

    def exception(self) -> BaseException | None:
        """The error of a failed collective."""
        return self._end.exception() if self._end.done() else None

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._result

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the tensors, or of the collective's error.

        Its callbacks may use collectives. They run with the thread-local state of the first caller of this method.
        """
        if self._future is None:
            self._future = Future()
            complete = partial(_complete, self._future, self._result, CallerState())
            if self._queue is None or self._end.done():
                complete(self._end)
            else:
                self._end.add_done_callback(partial(self._queue.start, complete))
        return self._future

    def run(self, function: Callable[[], None]) -> None:
        """Run the collective and keep its error.

        A BaseException such as KeyboardInterrupt is also raised here; later waits raise a CommunicationError.
        """
        try:
            function()
        except Exception as error:
            self.end(error)
        except BaseException as error:
            self.end(_interrupted(type(error).__name__))
            raise
        else:
            self.end(None)

    def ends_within(self, timeout_s: float) -> bool:
        """Wait until it has finished, in another thread; False if it has not after that time."""
        return bool(futures.wait([self._end], timeout_s).done)

    def end(self, error: Exception | None) -> None:
        """Mark it as finished, unless it already is."""
        with suppress(futures.InvalidStateError):
            if error is None:
                self._end.set_result(None)
            else:
                self._end.set_exception(error)


class WorkQueue:
    """Runs functions one at a time, in the order of the calls.

    The caller of a synchronous function runs it, after everything that is queued. The queue's thread, or the first
    caller who waits for it, runs an asynchronous function, so a wait right after the call wakes no thread.

    Callbacks of futures may issue collectives and wait for them: those of each future run in a thread of their own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # The thread that holds the lock runs the next function. Its signal handlers can acquire the lock again;
        # _is_running detects that.
        self._turn = threading.RLock()
        self._is_running = False
        self._waiting: deque[tuple[CollectiveWork, Callable[[], None]]] = deque()
        # What the thread calls; None ends it. Only these refer to the queue, so that a discarded group's thread ends.
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        self._has_thread = False
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._is_closed = False

    def run(self, function: Callable[[], None]) -> None:
        """Run ``function`` here, after everything that is queued; an error inside a collective of the queue."""
        with self._my_turn(_FOREVER):
            while self._run_next():
                pass
            self._require_open()
            function()

    def submit(self, function: Callable[[], None], result: Sequence[torch.Tensor]) -> CollectiveWork:
        """Queue ``function``, which gets the thread-local state of this thread."""
        self._require_open()
        work = CollectiveWork(result, self)
        self._waiting.append((work, CallerState().restored()(function)))
        with self._lock:
            if not self._has_thread:
                self._has_thread = True
                weakref.finalize(self, self._calls.put, None)
                self.start(_serve, self._calls)
        self._calls.put(self._serve_next)
        return work

    def start(self, function: Callable[[T], None], argument: T) -> None:
        """Call the function in a new thread; in this one, if the queue is closed."""
        with self._lock:
            if not self._is_closed:
                thread = threading.Thread(target=function, args=(argument,), name=self._name, daemon=True)
                thread.start()
                self._threads.add(thread)
                return
        function(argument)

    def finish(self, work: CollectiveWork, timeout_s: float) -> None:
        """Return when ``work`` is finished, or raise a CommunicationError after that time; -1 means no limit."""
        if timeout_s != _FOREVER and not self.is_inside_collective():
            # Run here, it would end by the group's timeout alone.
            if not work.ends_within(timeout_s):
                raise self._unfinished(timeout_s)
            return
        with self._my_turn(timeout_s):
            while not work.is_completed():
                if not self._run_next():  # a signal handler's exception ended the thread that took this work
                    work.end(_interrupted("an exception"))

    def close(self, reason: AccelError) -> None:
        """Fail everything that is queued, and let the threads end after their current work."""
        with self._lock:  # afterwards no thread is started
            self._is_closed = True
        for work, _ in self._waiting.copy():
            work.end(reason)
        self._calls.put(None)

    def join(self) -> None:
        """Wait a few seconds for a closed queue's threads: one that outlives the interpreter aborts the process."""
        if self.is_inside_collective():
            return
        deadline = time.monotonic() + _JOIN_S
        for thread in set(self._threads) - {threading.current_thread()}:
            thread.join(max(0.0, deadline - time.monotonic()))

    def is_inside_collective(self) -> bool:
        """Whether this is a signal handler that interrupted a collective of the queue."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._is_running
        finally:
            self._turn.release()

    def _serve_next(self) -> None:
        if self._waiting:  # otherwise a caller who waited has run it
            with self._my_turn(_FOREVER):
                self._run_next()

    def _run_next(self) -> bool:
        """Run the next work in this thread, whose turn it is; False if no work is queued."""
        if not self._waiting:
            return False
        work, function = self._waiting.popleft()
        if not work.is_completed():  # close() may have failed it
            work.run(function)
        return True

    @contextmanager
    def _my_turn(self, timeout_s: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=timeout_s):
            raise self._unfinished(timeout_s)
        try:
            if self._is_running:
                raise CommunicationError(
                    f"This thread is already inside a collective of {self._name}.",
                    "Do not use the group in a signal handler.",
                )
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False
        finally:
            self._turn.release()

    def _unfinished(self, timeout_s: float) -> CommunicationError:
        return CommunicationError(
            f"A collective of {self._name} did not finish within {timeout_s:g} s.",
            "Read the other ranks' logs to find the one that does not take part, or raise the group's timeout.",
        )

    def _require_open(self) -> None:
        if self._is_closed:
            raise CommunicationError(
                f"A collective was called after {self._name} was destroyed.", "Create a new group."
            )


def _serve(calls: SimpleQueue[Callable[[], object] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it refers to the queue


def _complete(
    future: Future[list[torch.Tensor]], result: list[torch.Tensor], state: CallerState, end: futures.Future[None]
) -> None:
    """Complete the future, which runs its callbacks in this thread."""
    with state.restored():
        if (error := end.exception()) is not None:
            future.set_exception(error)  # type: ignore[arg-type]
        else:
            future.set_result(result)


def _interrupted(by: str) -> CommunicationError:
    return CommunicationError(
        f"{by} ended the collective before it was finished.",
        "Read the traceback of the rank that failed first, correct its error, and create a new group on all ranks.",
    )
