"""What a collective of the backend "accel" returns, and the order in which collectives are done."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from op_builder.errors import AccelError, CommunicationError

_NO_TIMEOUT = timedelta()
_FOR_EVER = -1.0  # as threading's locks call it
_PARTING_S = 5.0  # a wait for another rank notices within half a second that its group was closed, if it gets a core


class CollectiveWork(Work):
    """A collective: done when the call returned, or later by a :class:`WorkQueue`, on its thread or on that of whoever
    waits for it first.

    Args:
        result: the tensors that it fills.
        queue: None for one that is done.
        function: what fills them.
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
        self._is_done = function is None
        self._error: Exception | None = None
        self._future: Future[list[torch.Tensor]] | None = None
        self._lock = threading.RLock()  # a signal's handler may come in between

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return True when the tensors are filled.

        Args:
            timeout: how long at most; none by default, as the collective itself has one.

        Raises:
            CommunicationError: it did not end within ``timeout``.
            AccelError, RuntimeError: what the collective raised.
        """
        if not self._is_done and self._queue is not None:
            self._queue.finish(self, timeout.total_seconds() or _FOR_EVER)
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._is_done

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._is_done and self._error is None

    def exception(self) -> BaseException | None:
        """What it raised, if it did."""
        return self._error

    def synchronize(self) -> None:
        """As :meth:`wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._result

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the tensors, or of what the collective raises."""
        with self._lock:
            if self._future is None:
                self._future = Future()
                if self._is_done:
                    self._settle(self._future)
            return self._future

    def run(self) -> None:
        """Do it, and keep what it raises. Called once, by the queue.

        Raises:
            BaseException: what is no Exception, as KeyboardInterrupt, once; who waits again gets a CommunicationError.
        """
        assert self._function is not None
        try:
            self._function()
        except Exception as error:
            self.end(error)
        except BaseException as error:
            self.end(_interrupted(type(error).__name__))
            raise
        else:
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """Note that it has ended, well or with an error, where it has not ended before."""
        self._function = None
        with self._lock:
            if self._is_done:
                return
            self._error = error
            self._is_done = True
            future = self._future
        if future is not None:  # outside the lock: what was hung on it runs here, and may ask for the future again
            self._settle(future)

    def _settle(self, future: Future[list[torch.Tensor]]) -> None:
        if self._error is not None:
            future.set_exception(self._error)  # type: ignore[arg-type]
        else:
            future.set_result(self._result)


class WorkQueue:
    """Does functions one at a time, in the order in which they came.

    A synchronous one is done by its caller, behind those that wait. An asynchronous one is done by a thread, which
    the first of them starts, or by the first caller who waits for it: so who waits at once need not wait for the
    thread, and who does not wait is not waited for by the other ranks.
    """

    _numbers = itertools.count(1)

    def __init__(self, name: str) -> None:
        self._name = name
        # Whoever has it takes the next. A thread that has it may come again, from the handler of a signal or from what
        # hangs on a future: then _is_doing is set.
        self._turn = threading.RLock()
        self._is_doing = False
        self._waiting: deque[CollectiveWork] = deque()
        self._filled = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._thread_lock = threading.RLock()  # a signal's handler may submit, too
        self._is_closed = False
        self._reason: AccelError | None = None

    def run(self, function: Callable[[], None]) -> None:
        """Do ``function`` here, when what came before it is done.

        Raises:
            CommunicationError: this thread is in the middle of another one.
        """
        with self._my_turn(_FOR_EVER):
            while (work := self._take()) is not None:
                work.run()
            self._require_open()
            function()

    def submit(self, function: Callable[[], None], result: Sequence[torch.Tensor]) -> CollectiveWork:
        """Have ``function`` done later."""
        self._require_open()
        work = CollectiveWork(result, self, function)
        self._waiting.append(work)
        with self._thread_lock:
            if self._thread is None:
                # It knows the queue weakly, so that the thread of a group that is garbage ends.
                arguments = (weakref.ref(self), self._filled)
                name = f"{self._name}-{next(self._numbers)}"
                self._thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
                self._thread.start()
                weakref.finalize(self, self._filled.release)
        self._filled.release()
        return work

    def finish(self, work: CollectiveWork, timeout_s: float) -> None:
        """Return when ``work`` is done; -1 waits as long as it takes.

        Raises:
            CommunicationError: another thread did what comes before it, or itself, for longer than ``timeout_s``; or
                this thread is in the middle of another one.
        """
        with self._my_turn(timeout_s):
            # Whoever takes one from the queue ends it before the turn is given up. One that neither waits nor has ended
            # was taken by close(), which is about to fail it, or by a thread that a signal's handler then ended.
            while not work.is_completed():
                following = self._take()
                if following is not None:
                    following.run()
                else:
                    work.end(self._reason or _interrupted("an exception"))

    def close(self, reason: AccelError) -> None:
        """Fail what waits, and let the thread end when it has done what it is doing."""
        self._reason = reason
        self._is_closed = True
        while (work := self._take()) is not None:
            work.end(reason)
        self._filled.release()

    def join(self) -> None:
        """Wait a little for the thread of a closed queue.

        A thread that comes back into Python after the interpreter has ended is ended there, in the middle of C++ that
        allows no such thing, and that aborts the process.
        """
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and not self._is_my_turn():
            thread.join(_PARTING_S)

    def serve_one(self) -> bool:
        """Do one of those that wait, if there is one; False when the queue is closed."""
        with self._my_turn(_FOR_EVER):
            work = self._take()
            if work is not None:
                work.run()
        return not self._is_closed

    def _is_my_turn(self) -> bool:
        """Whether this is the handler of a signal in the middle of a collective, for whose end the thread waits."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            return self._is_doing
        finally:
            self._turn.release()

    def _take(self) -> CollectiveWork | None:
        """The first that waits; None where there is none, as close() may have been faster."""
        try:
            return self._waiting.popleft()
        except IndexError:
            return None

    @contextmanager
    def _my_turn(self, timeout_s: float) -> Iterator[None]:
        if not self._turn.acquire(timeout=timeout_s):
            raise CommunicationError(
                f"A collective of {self._name} did not end within {timeout_s:g} s.",
                "Wait longer, or look for the rank that does not take part.",
            )
        try:
            if self._is_doing:
                raise CommunicationError(
                    f"This thread is in the middle of a collective of {self._name}, and was to do another.",
                    "Do none, and wait for none, in the handler of a signal or a callback of a future.",
                )
            self._is_doing = True
            try:
                yield
            finally:
                self._is_doing = False
        finally:
            self._turn.release()

    def _require_open(self) -> None:
        if self._is_closed:
            raise CommunicationError(f"{self._name} was destroyed.", "Make a new group.")


def _serve(queue: weakref.ref[WorkQueue], filled: threading.Semaphore) -> None:
    while True:
        filled.acquire()
        alive = queue()
        if alive is None or not alive.serve_one():
            return
        del alive


def _interrupted(by: str) -> CommunicationError:
    return CommunicationError(
        f"{by} ended the collective before it was done.", "See what raised it. The ranks need a new group."
    )
