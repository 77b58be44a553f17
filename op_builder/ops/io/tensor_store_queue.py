"""Work in the background; work on one name is done in the order in which it was requested."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from op_builder.errors import OpArgumentError
from op_builder.ops.caller_state import CallerState

T = TypeVar("T")


class _Task(Future[T]):
    """One piece of work, as a future that knows whether its failure was reported. It cannot be cancelled.

    Attributes:
        state: the thread-local state of the caller, for the work and for callbacks.
        work: run by a worker at the task's turn; None if the calling thread waits for ``turn`` and does the work.
        has_callbacks: whether callbacks were added.
        is_taken: a worker does it, or has done it.
        keeps_place: its worker continues with another task, instead of running callbacks.
    """

    is_reported = False
    has_callbacks = False
    is_taken = False
    keeps_place = False

    def __init__(self, queue: StoreQueue, name: str, work: Callable[[], T] | None = None) -> None:
        super().__init__()
        self._queue = queue
        self.name = name
        self.work = work
        self.is_background = work is not None
        self.state = CallerState()
        self.turn = threading.Event()
        self.set_running_or_notify_cancel()
        super().add_done_callback(queue._leave)  # before all other callbacks

    def result(self, timeout: float | None = None) -> T:
        self._check_wait(timeout)
        try:
            return super().result(timeout)
        finally:
            self.is_reported = self.is_reported or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_wait(timeout)
        error = super().exception(timeout)
        self.is_reported = True
        return error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self.has_callbacks = True
        super().add_done_callback(fn)

    def failure(self) -> BaseException | None:
        """The exception of a finished task, unless it was reported."""
        return None if self.is_reported else super().exception()

    def _check_wait(self, timeout: float | None) -> None:
        if timeout is None and not self.done():
            self._queue.check_wait()


class StoreQueue:
    """At most ``threads`` threads that work in the background; they end when there is nothing to do.

    A task gets a thread when it is the first in line for its name, so no thread waits for another. Callbacks of a
    future run in the thread that did the work. That thread no longer counts as one of ``threads`` then and another
    takes its place, so callbacks may use the store and wait for it.
    """

    _lines: dict[str, deque[_Task[Any]]]
    _ready: deque[_Task[Any]]  # the first in their lines
    _failed: list[_Task[Any]]
    _workers: int  # threads that work or are about to

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._is_closed = False
        self._reset()

    def begin(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done in the background, after all earlier work on ``name``."""
        self._check_fork()
        task = _Task(self, name, work)
        try:
            self._enter(task)
            self._start_worker()
        except BaseException as error:  # no thread can be started, the store is closed, or Ctrl-C
            with self._lock:
                task.is_background = task.is_taken
                if not task.is_taken:
                    if task in self._ready:
                        self._ready.remove(task)
                    self._advance(task)
            if not task.is_background:
                task.is_reported = True
                task.set_exception(error)
            raise
        return task

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Do ``work`` in this thread, after all earlier work on ``name``."""
        self._check_fork()
        self.check_wait()
        task: _Task[None] = _Task(self, name)
        try:
            self._enter(task)
            task.turn.wait()
            with self._working():
                return work()
        finally:
            task.set_result(None)

    def wait(self) -> None:
        """Wait for all work; raise the first failure that was not reported, with the rest as its ``others``."""
        unfinished = self._wait()
        with self._lock:
            # A future is done before its callbacks run, so what failed just now may not be among the failed yet.
            errors = []
            for task in dict.fromkeys([*self._failed, *unfinished]):
                if (error := task.failure()) is not None:
                    task.is_reported = True
                    errors.append(error)
            self._failed = []
        if errors:
            first: Any = errors[0]
            first.others = tuple(errors[1:])
            raise first

    def close(self) -> None:
        """Refuse further work, and return when all is done."""
        self.check_wait()
        self._is_closed = True
        self._wait()

    def check_wait(self) -> None:
        """Raise an OpArgumentError in a thread that does the queue's work, which would wait for itself."""
        if getattr(self._thread_local, "is_working", False):
            raise OpArgumentError(
                "A progress callback must not wait for its store: it would wait for itself.",
                "Call save_async() or load_async() there, and wait for the future elsewhere.",
            )

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._thread_local = threading.local()
        self._lines = {}
        self._ready = deque()
        self._failed = []
        self._workers = 0

    def _check_fork(self) -> None:
        if self._owner != os.getpid():  # a forked child has neither the threads nor their work
            self._reset()

    def _wait(self) -> list[_Task[Any]]:
        self._check_fork()
        self.check_wait()
        with self._lock:
            unfinished = [task for line in self._lines.values() for task in line]
        wait(unfinished)
        return unfinished

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self._thread_local.is_working = True
        try:
            yield
        finally:
            self._thread_local.is_working = False

    # Lines --------------------------------------------------------------------------------------

    def _enter(self, task: _Task[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise OpArgumentError("The store is closed.", "Make a new TensorStore of the directory.")
            line = self._lines.setdefault(task.name, deque())
            line.append(task)
            if line[0] is task:
                self._give_turn(task)

    def _give_turn(self, task: _Task[Any]) -> None:
        """The caller holds the lock."""
        if task.work is None:
            task.turn.set()
        else:
            self._ready.append(task)

    def _advance(self, task: _Task[Any]) -> None:
        """Take a task out of its line. The caller holds the lock."""
        line = self._lines.get(task.name, deque())
        if task in line:
            is_first = line[0] is task
            line.remove(task)
            if not line:
                del self._lines[task.name]
            elif is_first:
                self._give_turn(line[0])

    def _leave(self, task: Any) -> None:
        """Update the lines after a task is done."""
        with self._lock:
            self._advance(task)
            if task.failure() is not None:
                self._failed = [*(earlier for earlier in self._failed if not earlier.is_reported), task]
            if task.is_background:
                task.keeps_place = not task.has_callbacks
                self._workers -= task.has_callbacks  # they may wait for other work
        if task.keeps_place:
            return  # its worker takes the next: starting a thread takes longer than a small task
        try:
            self._start_worker()
        except RuntimeError:
            if not task.is_background:
                self._work(has_place=False)

    # Workers ------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        """Start a thread if there is work for it; a RuntimeError if the system refuses, or Python is exiting."""
        with self._lock:
            if not self._ready or self._workers >= self._threads:
                return
            self._workers += 1
        try:
            threading.Thread(target=self._work, name="tensor_store").start()
        except BaseException:
            with self._lock:
                self._workers -= 1
            raise

    def _work(self, has_place: bool = True) -> None:
        while (task := self._take(has_place)) is not None:
            work, task.work = task.work, None  # it may hold a tensor, and the caller may keep the future
            try:
                with self._working(), task.state.restored():
                    result = work()
            except BaseException as error:
                with task.state.restored():
                    task.set_exception(error)
            else:
                with task.state.restored():
                    task.set_result(result)
            has_place = task.keeps_place

    def _take(self, has_place: bool) -> Any:
        """The next task, whose worker then counts as busy; None if no task is ready."""
        with self._lock:
            self._workers -= has_place
            if not self._ready or self._workers >= self._threads:
                return None
            self._workers += 1
            task = self._ready.popleft()
            task.is_taken = True
            return task
