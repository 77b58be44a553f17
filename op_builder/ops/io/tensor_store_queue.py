"""Work in the background; work on one name is done in the order in which it was requested."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from op_builder.errors import OpArgumentError
from op_builder.ops.caller_state import CallerState

T = TypeVar("T")


class _Task(Future[T]):
    """A future that cannot be cancelled. Its callbacks run in a thread of their own, so they may wait for the store."""

    def __init__(self, queue: StoreQueue) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.state = CallerState()
        self._queue = queue
        self._called_back: Future[None] | None = None

    def result(self, timeout: float | None = None) -> T:
        with self._reporting(timeout):
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._reporting(timeout):
            return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        with self._queue.lock:
            is_first = self._called_back is None
            called_back = self._called_back = self._called_back or Future()
        called_back.add_done_callback(lambda _: fn(self))
        if is_first and self.done():
            self._call_back(called_back)
        elif is_first:
            super().add_done_callback(lambda _: self._start_callbacks(called_back))

    def _start_callbacks(self, called_back: Future[None]) -> None:
        try:
            threading.Thread(target=self._call_back, args=(called_back,), name="tensor_store_callbacks").start()
        except RuntimeError:  # the system refuses, or Python is exiting
            self._call_back(called_back)

    def _call_back(self, called_back: Future[None]) -> None:
        with self.state.restored():
            called_back.set_result(None)

    @contextmanager
    def _reporting(self, timeout: float | None) -> Iterator[None]:
        if timeout is None and not self.done():
            self._queue.check_wait()
        try:
            yield
        finally:
            if self.done():
                self._queue.unreported.pop(self, None)


class StoreQueue:
    """At most ``threads`` threads that work in the background.

    Work becomes ready when it is the first in line for its name, so no thread of the pool waits for another.
    """

    lock: threading.Lock
    unreported: dict[_Task[Any], None]  # unfinished, or failed without a report of the failure
    _lines: dict[str, deque[Callable[[], object]]]  # per name at work, what gives a turn to those who wait
    _ready: deque[tuple[str, Callable[[], None]]]

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._is_closed = False
        self._reset()

    def begin(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done in the background, after all earlier work on ``name``."""
        self._check_fork()
        task: _Task[T] = _Task(self)
        ready = (name, partial(self._do, task, work))
        with self.lock:
            self._require_open()
            # This comes first, because it fails if no thread can be started. A worker without work just ends.
            self._pool.submit(self._work)
            self.unreported[task] = None
            self._enter(name, lambda: self._ready.append(ready))
        return task

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Do ``work`` in this thread, after all earlier work on ``name``."""
        self._check_fork()
        self.check_wait()
        turn = threading.Event()
        give_turn = turn.set
        try:
            with self.lock:
                self._require_open()
                self._enter(name, give_turn)
            turn.wait()
            with self._working():
                return work()
        finally:
            with self.lock:
                if turn.is_set():
                    self._leave(name)
                elif give_turn in self._lines.get(name, ()):  # Ctrl-C
                    self._lines[name].remove(give_turn)
            if self._ready:
                try:
                    self._pool.submit(self._work)
                except RuntimeError:  # the store is closed, or Python is exiting
                    self._work()

    def wait(self) -> None:
        """Wait for all work; raise the first failure that was not reported, with the rest as its ``others``."""
        failed = [task for task in self._wait() if task in self.unreported]
        if errors := [error for task in failed if (error := task.exception()) is not None]:
            first: Any = errors[0]
            first.others = tuple(errors[1:])
            raise first

    def close(self) -> None:
        """Refuse further work, and return when all is done."""
        self.check_wait()
        with self.lock:
            self._is_closed = True
        self._wait()
        self._pool.shutdown()

    def check_wait(self) -> None:
        """Raise an OpArgumentError in a thread that does the queue's work, which would wait for itself."""
        if getattr(self._thread_local, "is_working", False):
            raise OpArgumentError(
                "A progress callback must not wait for its store: it would wait for itself.",
                "Call save_async() or load_async() there, and wait for the future elsewhere.",
            )

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._pool = ThreadPoolExecutor(self._threads, "tensor_store")
        self._thread_local = threading.local()
        self.lock = threading.Lock()
        self.unreported = {}
        self._lines = {}
        self._ready = deque()

    def _check_fork(self) -> None:
        if self._owner != os.getpid():  # a forked child has neither the threads nor their work
            self._reset()

    def _require_open(self) -> None:
        if self._is_closed:
            raise OpArgumentError("The store is closed.", "Open the directory with a new TensorStore.")

    def _wait(self) -> list[_Task[Any]]:
        self._check_fork()
        self.check_wait()
        with self.lock:
            tasks = list(self.unreported)
        wait(tasks)
        return tasks

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._thread_local.is_working = True
        try:
            yield
        finally:
            self._thread_local.is_working = False

    def _enter(self, name: str, give_turn: Callable[[], object]) -> None:
        """Call ``give_turn`` after all earlier work on ``name``. The caller holds the lock."""
        if name in self._lines:
            self._lines[name].append(give_turn)
        else:
            self._lines[name] = deque()
            give_turn()

    def _leave(self, name: str) -> None:
        """Give the turn to the next in line. The caller holds the lock."""
        if self._lines[name]:
            self._lines[name].popleft()()
        else:
            del self._lines[name]

    def _work(self) -> None:
        """Do everything that is ready or becomes so."""
        while True:
            with self.lock:
                if not self._ready:
                    return
                name, do = self._ready.popleft()
            do()
            del do  # it may hold a tensor
            with self.lock:
                self._leave(name)

    def _do(self, task: _Task[T], work: Callable[[], T]) -> None:
        try:
            with self._working(), task.state.restored():
                result = work()
        except BaseException as error:
            task.set_exception(error)
        else:
            task.set_result(result)
            self.unreported.pop(task, None)
