"""The order in which a process group does collectives, and what becomes of them when something comes in between."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from op_builder.errors import CommunicationError
from op_builder.ops.comm.work import CollectiveWork, WorkQueue


@pytest.fixture
def queue() -> WorkQueue:
    return WorkQueue("a test")


@contextmanager
def busy(queue: WorkQueue) -> Iterator[CollectiveWork]:
    """Within it the queue's thread is in the middle of a work."""
    began, release = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        release.wait()

    submitted = queue.submit(work, [])
    began.wait()
    try:
        yield submitted
    finally:
        release.set()


@contextmanager
def handler(number: signal.Signals, function: signal._HANDLER) -> Iterator[None]:
    before = signal.signal(number, function)
    try:
        yield
    finally:
        signal.signal(number, before)


def queue_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "a test"}


@pytest.fixture
def other_threads() -> set[threading.Thread]:
    """Those of other tests' queues."""
    return queue_threads()


def test_the_order_is_kept_whoever_does_the_work(queue: WorkQueue) -> None:
    done: list[int] = []
    works = [queue.submit(lambda number=number: done.append(number), []) for number in range(50)]  # type: ignore[misc]
    queue.run(lambda: done.append(50))
    assert done == list(range(51))
    assert all(work.is_success() and work.wait() for work in works)


def test_an_error_is_raised_by_wait_and_the_future_and_the_next_work_is_done(queue: WorkQueue) -> None:
    def fail() -> None:
        raise ValueError("broken")

    failing, good = queue.submit(fail, []), queue.submit(lambda: None, [])
    for wait in (failing.wait, failing.wait, failing.get_future().wait):
        with pytest.raises(ValueError, match="broken"):
            wait()
    assert isinstance(failing.exception(), ValueError)
    assert failing.is_completed()
    assert not failing.is_success()
    assert good.wait()


def test_a_wait_ends_after_its_timeout_also_while_its_own_collective_runs(queue: WorkQueue) -> None:
    with busy(queue) as running:
        works = [running, queue.submit(lambda: None, [])]
        for work in works:
            with pytest.raises(CommunicationError, match=r"did not finish within 0\.05 s"):
                work.wait(timedelta(seconds=0.05))
            assert not work.is_completed()
    assert all(work.wait(timedelta(seconds=60)) for work in works)


def test_a_signal_that_ends_a_collective_ends_its_work_and_no_wait_is_for_ever(queue: WorkQueue) -> None:
    began = threading.Event()

    def collective() -> None:
        began.set()
        never = threading.Event()
        while not never.wait(0.1):  # as a wait for another rank
            pass

    work = CollectiveWork([], queue)
    future = work.get_future()
    with handler(signal.SIGINT, signal.default_int_handler):
        main = threading.main_thread().ident
        assert main is not None
        threading.Thread(target=lambda: (began.wait(), signal.pthread_kill(main, signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            work.run(collective)
    assert work.is_completed()
    for wait in (work.wait, future.wait):
        with pytest.raises(CommunicationError, match="KeyboardInterrupt"):
            wait()
    assert queue.submit(lambda: None, []).wait()


def test_a_work_that_was_taken_and_lost_is_an_error(queue: WorkQueue) -> None:
    work = CollectiveWork([], queue)  # an exception came between its being taken and its being done
    with pytest.raises(CommunicationError, match="an exception"):
        work.wait()


def test_a_signal_handler_gets_an_error_and_no_deadlock(queue: WorkQueue) -> None:
    caught: list[CommunicationError] = []

    def again(*_: object) -> None:
        with pytest.raises(CommunicationError, match="already inside") as error:
            queue.run(lambda: None)
        caught.append(error.value)

    with handler(signal.SIGUSR1, again):
        queue.run(lambda: signal.raise_signal(signal.SIGUSR1))
    assert len(caught) == 1
    queue.run(lambda: None)


def test_callbacks_use_the_queue_however_deep_and_block_nobody(queue: WorkQueue) -> None:
    release = threading.Event()
    with busy(queue):  # a callback of a future that is done already would run, and block, here
        blocked = queue.submit(lambda: None, [])
        blocked.get_future().add_done_callback(lambda _: release.wait())

    def nested(depth: int) -> int:
        future = queue.submit(lambda: None, []).get_future()
        if depth == 0:
            queue.run(lambda: None)
            return 1
        return 1 + future.then(lambda _: nested(depth - 1)).wait()

    try:
        assert nested(5) == 6
        works = [queue.submit(lambda: None, []) for _ in range(50)]
        assert all(work.get_future().then(lambda _: queue.submit(lambda: None, []).wait()).wait() for work in works)
    finally:
        release.set()


def test_a_closed_queue_fails_what_waits_takes_nothing_and_has_no_thread(
    queue: WorkQueue, other_threads: set[threading.Thread]
) -> None:
    with busy(queue) as first:
        behind = queue.submit(lambda: None, [])
        queue.close(CommunicationError("gone"))
    queue.join()
    assert queue_threads() <= other_threads
    assert first.is_success()
    with pytest.raises(CommunicationError, match="gone"):
        behind.wait()
    for use in (lambda: queue.submit(lambda: None, []), lambda: queue.run(lambda: None)):
        with pytest.raises(CommunicationError, match="destroyed"):
            use()


def test_a_handler_that_closes_the_queue_in_the_middle_of_a_collective_does_not_wait_for_itself(
    queue: WorkQueue, other_threads: set[threading.Thread]
) -> None:
    queue.submit(lambda: None, []).wait()

    def destroy() -> None:
        queue.close(CommunicationError("gone"))
        queue.join()

    queue.run(destroy)
    queue.join()
    assert queue_threads() <= other_threads


def test_the_thread_of_a_queue_that_nobody_has_ends(other_threads: set[threading.Thread]) -> None:
    queue = WorkQueue("a test")
    queue.submit(lambda: None, []).wait()
    (thread,) = queue_threads() - other_threads
    del queue
    thread.join()
