"""Work in the background, in the order in which it was asked for where it concerns one name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from op_builder.errors import OpArgumentError

T = TypeVar("T")


class _Task(Future[T]):
    """A future that knows whether somebody was told how it ended."""

    was_told = False

    def result(self, timeout: float | None = None) -> T:
        try:
            return super().result(timeout)
        finally:
            self.was_told = self.was_told or self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        self.was_told = True
        return error


class StoreQueue:
    """Threads that work off what is begun; they start with the first of it.

    Args:
        threads: most that are at work at a time.
    """

    _unfinished: dict[str, list[_Task[Any]]]
    _failed: list[_Task[Any]]

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._is_closed = False
        self._start()

    def begin(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` done in the background, after all else that concerns ``name``."""
        self._own()
        task: _Task[T] = _Task()
        try:
            # In one step: tasks stand in the executor's queue as they stand in line for a name, so that a thread waits
            # only for what others are at work on.
            with self._lock:
                earlier = self._enter(name, task)
                self._executor.submit(_work_off, task, earlier, work)
        except BaseException:  # the store is closed, Python ends, or Ctrl-C
            if task.cancel():
                task.set_running_or_notify_cancel()  # or who waits for it would do so for ever
            raise
        finally:
            task.add_done_callback(partial(self._leave, name))
        return task

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Do ``work`` in this thread, after all that was begun for ``name``."""
        self._own()
        task: _Task[None] = _Task()
        task.add_done_callback(partial(self._leave, name))
        try:
            with self._lock:
                earlier = self._enter(name, task)
            wait(earlier)
            return work()
        finally:
            task.set_result(None)

    def wait(self) -> None:
        """Wait for all that was begun; raise the first failure nobody was told of, the rest as its ``others``."""
        self._own()
        with self._lock:
            unfinished = [task for tasks in self._unfinished.values() for task in tasks]
        wait(unfinished)
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
        self._own()
        with self._lock:
            self._is_closed = True
        self._executor.shutdown(wait=True)

    def _start(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._unfinished = {}
        self._failed = []
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="tensor_store")

    def _own(self) -> None:
        if self._owner != os.getpid():  # a fork has none of the threads, nor what they were doing
            self._start()

    def _enter(self, name: str, task: _Task[Any]) -> list[_Task[Any]]:
        """Put a task in line for ``name``; those that come before it. With the lock."""
        if self._is_closed:
            raise OpArgumentError("The store is closed.", "Make a new TensorStore of the directory.")
        line = self._unfinished.setdefault(name, [])
        earlier = list(line)
        line.append(task)
        return earlier

    def _leave(self, name: str, task: Any) -> None:
        with self._lock:
            line = self._unfinished.get(name, [])
            if task in line:
                line.remove(task)
            if not line:
                self._unfinished.pop(name, None)
            if _has_failed(task) and not task.was_told:
                self._failed = [*(earlier for earlier in self._failed if not earlier.was_told), task]


def _has_failed(task: _Task[Any]) -> bool:
    return not task.cancelled() and Future.exception(task) is not None  # without being told


def _work_off(task: _Task[T], earlier: list[_Task[Any]], work: Callable[[], T]) -> None:
    wait(earlier)
    if not task.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        task.set_exception(error)
    else:
        task.set_result(result)
