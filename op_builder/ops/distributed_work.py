"""What a collective of the backend "accel" returns, and the order in which collectives are done."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work
from torch.futures import Future

from op_builder.errors import AccelError, CommunicationError

_NO_TIMEOUT = timedelta()
_FOR_EVER = -1.0  # as threading's locks call it


class DoneWork(Work):
    """A collective that was done when the call returned.

    Args:
        result: the tensors that it filled.
    """

    def __init__(self, result: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._result = list(result)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:  # noqa: ARG002
        """True, at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> BaseException | None:
        """None."""
        return None

    def synchronize(self) -> None:
        """Nothing to do for tensors in host memory."""

    def result(self) -> list[torch.Tensor]:
        """The tensors that were filled."""
        return self._result

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A finished future of the tensors."""
        future: Future[list[torch.Tensor]] = Future()
        future.set_result(self._result)
        return future


class QueuedWork(DoneWork):
    """A collective that a :class:`WorkQueue` does later: on its thread, or on that of whoever waits for it first."""

    def __init__(self, queue: WorkQueue, function: Callable[[], None], result: Sequence[torch.Tensor]) -> None:
        super().__init__(result)
        self._queue = queue
        self._function: Callable[[], None] | None = function
        self._is_done = False
        self._error: Exception | None = None
        self._future: Future[list[torch.Tensor]] | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Return True when the tensors are filled.

        Args:
            timeout: how long at most; none by default, as the collective itself has one.

        Raises:
            CommunicationError: it did not end within ``timeout``.
            AccelError, RuntimeError: what the collective raised.
        """
        if not self._is_done:
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

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the tensors, or of what the collective raises."""
        with self._lock:
            if self._future is None:
                self._future = Future()
                if self._is_done:
                    self._settle(self._future)
            return self._future

    def run(self) -> None:
        """Do it, and keep what it raises. Called once, by the queue."""
        assert self._function is not None
        try:
            self._function()
        except Exception as error:
            self._error = error
        self._end()

    def fail(self, error: Exception) -> None:
        """End it without doing it. Called once, by the queue."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._function = None
        with self._lock:
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
        self._turn = threading.Lock()  # whoever has it takes the next
        self._waiting: deque[QueuedWork] = deque()
        self._filled = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, function: Callable[[], None]) -> None:
        """Do ``function`` here, when what came before it is done."""
        with self._turn:
            while self._waiting:
                self._waiting.popleft().run()
            self._require_open()
            function()

    def submit(self, function: Callable[[], None], result: Sequence[torch.Tensor]) -> QueuedWork:
        """Have ``function`` done later."""
        self._require_open()
        work = QueuedWork(self, function, result)
        self._waiting.append(work)
        if self._thread is None:
            # It knows the queue weakly, so that a group that nobody has any more lets go of its thread.
            arguments = (weakref.ref(self), self._filled)
            name = f"{self._name}-{next(self._numbers)}"
            self._thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._filled.release)
        self._filled.release()
        return work

    def finish(self, work: QueuedWork, timeout_s: float) -> None:
        """Return when ``work`` is done; -1 waits as long as it takes.

        Raises:
            CommunicationError: another thread did what comes before it, or itself, for longer than ``timeout_s``.
        """
        if not self._turn.acquire(timeout=timeout_s):
            raise CommunicationError(
                f"A collective of {self._name} did not end within {timeout_s:g} s.",
                "Wait longer, or look for the rank that does not take part.",
            )
        try:
            # Whoever takes one from the queue ends it before the turn is given up, so it is done or still waits.
            while not work.is_completed():
                if self._waiting:
                    self._waiting.popleft().run()
                else:  # close() has taken it, and is about to fail it
                    time.sleep(0.001)
        finally:
            self._turn.release()

    def close(self, reason: AccelError) -> None:
        """Fail what waits, and let the thread end. What is being done is not interrupted, nor waited for."""
        self._is_closed = True
        while self._waiting:
            try:
                work = self._waiting.popleft()
            except IndexError:  # the thread was faster
                break
            work.fail(reason)
        self._filled.release()

    def serve_one(self) -> bool:
        """Do one of those that wait, if there is one; False when the queue is closed."""
        with self._turn:
            if self._waiting:
                self._waiting.popleft().run()
        return not self._is_closed

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


def wait_all(works: Sequence[Any]) -> None:
    """Wait for each of ``works``; all are waited for, the first error is raised."""
    errors = []
    for work in works:
        try:
            work.wait()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
