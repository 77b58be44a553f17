"""The work that a collective of the backend "accel" returns, and the queue that runs collectives in order."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from op_builder.errors import AccelError, CommunicationError
from op_builder.ops.caller_state import CallerState

_NO_TIMEOUT = timedelta()
_FOREVER = -1.0  # as threading's locks spell it
_JOIN_S = 5.0  # a collective notices within half a second that its group was closed, if it gets a core


class CollectiveWork(Work):
    """A collective that fills ``result``. Without a queue it is complete; with one, the queue runs its function later.

    The function runs with the thread-local state of the thread that makes this object.
    """

    def __init__(
        self,
        result: Sequence[torch.Tensor],
        queue: WorkQueue | None = None,
        function: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._result = list(result)
        self._queue = queue
        self._function = function
        self._state = CallerState() if function is not None else None
        self._callback_state: CallerState | None = None
        self._is_done = function is None
        self._error: Exception | None = None
        self._future: Future[list[torch.Tensor]] | None = None
        self._lock = threading.RLock()  # reentrant for signal handlers

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return True when the tensors are filled; raise its error, or after ``timeout`` a CommunicationError."""
        if not self._is_done and self._queue is not None:
            self._queue.finish(self, timeout.total_seconds() or _FOREVER)
        # Another thread is about to complete the future, unless this is a signal handler inside the collective.
        if self._future is not None and self._queue is not None and not self._queue.is_inside_collective():
            with suppress(Exception):  # the same error as below
                self._future.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it has finished, successfully or not."""
        return self._is_done

    def is_success(self) -> bool:
        """Whether it has finished successfully."""
        return self._is_done and self._error is None

    def exception(self) -> BaseException | None:
        """The error of a failed collective."""
        return self._error

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
        with self._lock:
            if self._future is None:
                future: Future[list[torch.Tensor]] = Future()
                if self._is_done:
                    self._set_future(future)
                    return future
                self._callback_state = CallerState()
                self._future = future
            return self._future

    def run(self) -> None:
        """Run the collective and keep its error. The queue calls this once.

        A BaseException such as KeyboardInterrupt is also raised here; later waits raise a CommunicationError.
        """
        assert self._function is not None
        assert self._state is not None
        try:
            with self._state.restored():
                self._function()
        except Exception as error:
            self.end(error)
        except BaseException as error:
            self.end(_interrupted(type(error).__name__))
            raise
        else:
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """Mark it as finished, unless it already is. A future is completed by another thread."""
        self._function = None
        with self._lock:
            if self._is_done:
                return
            self._error = error
            self._is_done = True
            has_future = self._future is not None
        if has_future and self._queue is not None:
            self._queue.complete_future(self)

    def complete_future(self) -> None:
        """Complete the future, which runs its callbacks in this thread."""
        if self._future is not None and self._callback_state is not None:
            with self._callback_state.restored():
                self._set_future(self._future)

    def _set_future(self, future: Future[list[torch.Tensor]]) -> None:
        if self._error is not None:
            future.set_exception(self._error)  # type: ignore[arg-type]
        else:
            future.set_result(self._result)


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
        self._waiting: deque[CollectiveWork] = deque()
        self._filled = threading.Semaphore(0)
        self._threads: set[threading.Thread] = set()
        self._has_thread = False
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._is_closed = False
        self._reason: AccelError | None = None

    def run(self, function: Callable[[], None]) -> None:
        """Run ``function`` here, after everything that is queued; an error inside a collective of the queue."""
        with self._my_turn(_FOREVER):
            while (work := self._take()) is not None:
                work.run()
            self._require_open()
            function()

    def submit(self, function: Callable[[], None], result: Sequence[torch.Tensor]) -> CollectiveWork:
        """Queue ``function``."""
        self._require_open()
        work = CollectiveWork(result, self, function)
        self._waiting.append(work)
        with self._lock:
            if not self._has_thread:
                self._has_thread = True
                # The thread has a weak reference to the queue, so that the thread of a discarded group ends.
                weakref.finalize(self, self._filled.release)
                self._start(_serve, weakref.ref(self), self._filled)
        self._filled.release()
        return work

    def complete_future(self, work: CollectiveWork) -> None:
        """Have a new thread complete the future of ``work``; this thread, if the queue is closed."""
        with self._lock:
            if not self._is_closed:
                self._start(self._call_back, work)
                return
        work.complete_future()

    def finish(self, work: CollectiveWork, timeout_s: float) -> None:
        """Return when ``work`` is finished, or raise a CommunicationError after that time; -1 means no limit."""
        with self._my_turn(timeout_s):
            # Whoever takes a work from the queue ends it before the turn is over. A work that is neither queued nor
            # finished was taken by close(), which is about to fail it, or by a thread that a signal handler then ended.
            while not work.is_completed():
                following = self._take()
                if following is not None:
                    following.run()
                else:
                    work.end(self._reason or _interrupted("an exception"))

    def close(self, reason: AccelError) -> None:
        """Fail everything that is queued, and let the threads end after their current work."""
        self._reason = reason
        with self._lock:  # afterwards no thread is started
            self._is_closed = True
        while (work := self._take()) is not None:
            work.end(reason)
        self._filled.release()

    def join(self) -> None:
        """Wait a few seconds for a closed queue's threads: one that outlives the interpreter aborts the process."""
        if self.is_inside_collective():
            return
        deadline = time.monotonic() + _JOIN_S
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def serve(self) -> bool:
        """Run the functions that are queued; False when the queue is closed."""
        while self._waiting:
            with self._my_turn(_FOREVER):
                work = self._take()
                if work is not None:
                    work.run()
        return not self._is_closed

    def _call_back(self, work: CollectiveWork) -> None:
        try:
            work.complete_future()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, name=self._name, daemon=True)
        with self._lock:
            thread.start()
            self._threads.add(thread)

    def is_inside_collective(self) -> bool:
        """Whether this is a signal handler that interrupted a collective of the queue."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._is_running
        finally:
            self._turn.release()

    def _take(self) -> CollectiveWork | None:
        """The next work; None if close() has emptied the queue."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    @contextmanager
    def _my_turn(self, timeout_s: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=timeout_s):
            raise CommunicationError(
                f"A collective of {self._name} did not finish within {timeout_s:g} s.",
                "Wait longer, or find the rank that does not take part.",
            )
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

    def _require_open(self) -> None:
        if self._is_closed:
            raise CommunicationError(
                f"A collective was called after {self._name} was destroyed.", "Create a new group."
            )


def _serve(queue: weakref.ref[WorkQueue], filled: threading.Semaphore) -> None:
    while True:
        filled.acquire()
        alive = queue()
        if alive is None or not alive.serve():
            return
        del alive


def _interrupted(by: str) -> CommunicationError:
    return CommunicationError(
        f"{by} ended the collective before it was finished.",
        "Check the exception that interrupted it. The ranks need a new group.",
    )
