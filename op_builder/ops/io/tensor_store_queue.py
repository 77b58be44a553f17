"""Work in the background, in the order in which it was asked for where it concerns one name."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from op_builder.errors import OpArgumentError

T = TypeVar("T")


class _Here(threading.local):
    """Of each thread, whether it is doing a queue's work."""

    is_at_work = False

    def refuse_to_wait(self) -> None:
        """Raise where waiting for the queue would be waiting for oneself."""
        if self.is_at_work:
            raise OpArgumentError(
                "A progress callback must not wait for its store: it would wait for itself.",
                "Begin with save_async() or load_async() there, and wait for the future elsewhere.",
            )


class _Task(Future[T]):
    """A place in the line for a name, as a future that knows whether somebody was told how it ended.

    Attributes:
        work: what a worker does when its turn comes; None for a thread that waits for ``turn`` and works itself.
        is_taken: a worker has it, or it was cancelled before one had.
        has_callbacks: somebody wants to be called when it is done.
        keeps_place: it is done, and its worker still counts as one.
    """

    was_told = False
    is_taken = False
    has_callbacks = False
    keeps_place = False

    def __init__(self, here: _Here, work: Callable[[], T] | None = None) -> None:
        super().__init__()
        self._here = here
        self.work = work
        self.turn = threading.Event()

    def result(self, timeout: float | None = None) -> T:
        self._check_wait(timeout)
        try:
            return super().result(timeout)
        finally:
            self.was_told = self.was_told or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check_wait(timeout)
        error = super().exception(timeout)
        self.was_told = True
        return error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        self.has_callbacks = True
        super().add_done_callback(fn)

    def call_first(self, leave: Callable[[Future[T]], object]) -> None:
        """Have the queue's own callback run, before all callbacks of others."""
        super().add_done_callback(leave)

    def _check_wait(self, timeout: float | None) -> None:
        if timeout is None and not self.done():
            self._here.refuse_to_wait()


class StoreQueue:
    """Threads that work off what is begun; they are there while there is something to do.

    A task gets a thread when it is the first in line for its name, so none waits for another. A thread does one
    task after another. Callbacks of a future run in the thread that did the work, which no longer counts as one
    of ``threads`` then, and another takes its place: they may use the store and wait.

    Args:
        threads: most that are at work at a time.
    """

    _lines: dict[str, deque[_Task[Any]]]
    _ready: deque[_Task[Any]]
    _failed: list[_Task[Any]]

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._is_closed = False
        self._start()

    def begin(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done in the background, after all else that concerns ``name``."""
        self._own()
        task = _Task(self._here, work)
        task.call_first(partial(self._leave, name))
        try:
            self._enter(name, task)
            self._hire()
        except BaseException:  # the store is closed, there is no thread, or Ctrl-C
            task.cancel()
            raise
        return task

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Do ``work`` in this thread, after all that was begun for ``name``."""
        self._own()
        self._here.refuse_to_wait()
        task: _Task[None] = _Task(self._here)
        task.call_first(partial(self._leave, name))
        try:
            self._enter(name, task)
            task.turn.wait()
            with self._at_work():
                return work()
        finally:
            task.set_result(None)

    def wait(self) -> None:
        """Wait for all that was begun; raise the first failure nobody was told of, the rest as its ``others``."""
        unfinished = self._wait()
        with self._lock:
            # A future is done before its callbacks run: what failed just now need not be among the failed yet.
            failed = dict.fromkeys([*self._failed, *filter(_has_failed, unfinished)])
            errors = [error for task in failed if not task.was_told and (error := task.exception()) is not None]
            self._failed = []
        if errors:
            first: Any = errors[0]
            first.others = tuple(errors[1:])
            raise first

    def close(self) -> None:
        """Take nothing more, and return when all is done."""
        self._here.refuse_to_wait()
        self._is_closed = True
        self._wait()

    def _start(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._here = _Here()
        self._lines = {}
        self._ready = deque()  # the first in their lines
        self._failed = []
        self._workers = 0  # threads that are at work or about to be

    def _own(self) -> None:
        if self._owner != os.getpid():  # a fork has none of the threads, nor what they were doing
            self._start()

    def _wait(self) -> list[_Task[Any]]:
        self._own()
        self._here.refuse_to_wait()
        with self._lock:
            unfinished = [task for line in self._lines.values() for task in line]
        wait(unfinished)
        return unfinished

    # Lines --------------------------------------------------------------------------------------

    def _enter(self, name: str, task: _Task[Any]) -> None:
        with self._lock:
            if self._is_closed:
                raise OpArgumentError("The store is closed.", "Make a new TensorStore of the directory.")
            line = self._lines.setdefault(name, deque())
            line.append(task)
            if line[0] is task:
                self._call(task)

    def _call(self, task: _Task[Any]) -> None:
        """Its turn has come. With the lock."""
        if task.work is None:
            task.turn.set()
        else:
            self._ready.append(task)

    def _leave(self, name: str, task: Any) -> None:
        """A task is done or was cancelled."""
        is_worker = False
        with self._lock:
            if task.cancelled():
                task.work = None  # it may hold tensors, and a future lives for long
                if not task.is_taken:
                    task.is_taken = True
                    task.set_running_or_notify_cancel()  # or who waits for it would do so for ever
            elif task.is_taken:
                is_worker = True
                task.keeps_place = not task.has_callbacks
                if task.has_callbacks:  # they may wait for what others do
                    self._workers -= 1
            line = self._lines.get(name, deque())
            if task in line:
                is_first = line[0] is task
                line.remove(task)
                if not line:
                    del self._lines[name]
                elif is_first:
                    self._call(line[0])
            if _has_failed(task) and not task.was_told:
                self._failed = [*(earlier for earlier in self._failed if not earlier.was_told), task]
        if task.keeps_place:
            return  # it takes what has become ready itself: a thread for each task would cost more than a small one
        try:
            self._hire()
        except RuntimeError:  # there is no thread; a worker goes on by itself
            if not is_worker:
                self._work(has_place=False)

    # Workers ------------------------------------------------------------------------------------

    def _hire(self) -> None:
        """Start a thread if there is something to do for one more.

        Raises:
            RuntimeError: the system has none, or Python ends.
        """
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
            self._do(task)
            has_place = task.keeps_place

    def _do(self, task: Any) -> None:
        work, task.work = task.work, None  # as where it is cancelled
        try:
            with self._at_work():
                result = work()
        except BaseException as error:
            task.set_exception(error)
        else:
            task.set_result(result)

    def _take(self, has_place: bool) -> Any:
        """The next task, with a place among the workers; None where there is none of either."""
        with self._lock:
            if has_place:
                self._workers -= 1
            while self._ready and self._workers < self._threads:
                task = self._ready.popleft()
                if not task.is_taken:
                    task.is_taken = True
                    if task.set_running_or_notify_cancel():
                        self._workers += 1
                        return task
            return None

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self._here.is_at_work = True
        try:
            yield
        finally:
            self._here.is_at_work = False


def _has_failed(task: _Task[Any]) -> bool:
    return not task.cancelled() and Future.exception(task) is not None  # without being told
