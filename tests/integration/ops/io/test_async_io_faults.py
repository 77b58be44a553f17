"""What goes wrong between a tensor and a file: reported completely, nothing lost, the handle usable afterwards.

Faults come from a FUSE file system of our own, and from system calls that a preloaded library fails.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from op_builder import env
from op_builder.errors import IncompatibleOpError, OpArgumentError, StorageError
from op_builder.ops.io.aio_handle import Handle
from op_builder.ops.io.async_io import AsyncIOModule
from tests.support import faulty_aio_programs
from tests.support.compilers import needs_gxx
from tests.support.engines import ENGINES
from tests.support.files import mounted, random_bytes, raw
from tests.support.foreign_package import output_of
from tests.support.waiting import open_files, wait_until

SIZE = 1_000_003

each_engine = pytest.mark.parametrize("engine", ENGINES)


def make(async_io: AsyncIOModule, engine: str) -> Handle:
    return async_io.aio_handle(64 << 10, 4, False, True, 2, engine=engine)


def assert_usable(handle: Handle, directory: Path) -> None:
    """No failure is left in the handle, and it works."""
    assert handle.wait() == 0
    data = random_bytes(300_001)
    handle.async_pwrite(data, directory / "sound")
    assert handle.wait() == 1
    back = torch.zeros_like(data)
    handle.sync_pread(back, directory / "sound")
    assert torch.equal(back, data)


@each_engine
def test_short_reads_and_writes_are_continued(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = make(async_io, engine)
    data = random_bytes(SIZE)
    # The kernel itself makes EIO of a short asynchronous write to FUSE.
    (handle if engine == "threads" else make(async_io, "threads")).sync_pwrite(data, faulty / "short", 5)
    assert (faulty.parent / "backing" / "short").read_bytes()[5:] == raw(data)
    back = torch.zeros_like(data)
    handle.sync_pread(back, faulty / "short", 5)
    assert torch.equal(back, data)
    assert handle.counters().retries > 10


@each_engine
@pytest.mark.parametrize(("number", "is_background"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_an_error_names_file_offset_bytes_and_errno(
    async_io: AsyncIOModule, faulty: Path, engine: str, number: int, is_background: bool
) -> None:
    handle = make(async_io, engine)
    name = errno.errorcode[number]
    path = faulty / f"{name}-500000"
    (faulty.parent / "backing" / path.name).write_bytes(bytes(SIZE))
    for doing, call in (("Writing", handle.pwrite), ("Reading", handle.pread)):
        if is_background:
            assert call(random_bytes(SIZE), path, False, True) == 0
        with pytest.raises(StorageError) as caught:
            handle.wait() if is_background else call(random_bytes(SIZE), path, False, False)
        error = caught.value
        assert (error.errno, error.filename) == (number, path)
        assert 0 <= error.bytes_done < SIZE
        # The command that failed has that byte in it and is at most a block.
        assert 500_000 - (64 << 10) < error.offset <= 500_000
        for part in (doing, str(path), f"at byte {error.offset} ", f"after {error.bytes_done} bytes", f"({name})"):
            assert part in str(error)
        assert isinstance(error, OSError)
    assert_usable(handle, faulty)


@pytest.fixture
def busy(faulty: Path) -> Path:
    """A file that cannot be read before there is a file ``released`` beside it."""
    (faulty.parent / "backing" / "busy").write_bytes(bytes(1000))
    return faulty / "busy"


@each_engine
def test_a_command_that_is_refused_for_now_is_retried_and_others_proceed(
    async_io: AsyncIOModule, tmp_path: Path, busy: Path, engine: str
) -> None:
    handle = make(async_io, engine)
    (tmp_path / "sound").write_bytes(bytes(SIZE))
    late, data = torch.ones(1000, dtype=torch.uint8), torch.ones(SIZE, dtype=torch.uint8)
    handle.async_pread(late, busy)
    wait_until(lambda: handle.counters().retries > 0)
    handle.sync_pread(data, tmp_path / "sound")
    assert not data.any()
    busy.with_name("released").touch()
    assert handle.wait() == 1
    assert not late.any()


@pytest.mark.slow
def test_what_is_always_refused_fails_after_a_thousand_attempts(async_io: AsyncIOModule, faulty: Path) -> None:
    handle = make(async_io, "threads")
    (faulty.parent / "backing" / "EAGAIN-500").write_bytes(bytes(1000))
    with pytest.raises(StorageError, match="EAGAIN"):
        handle.read(random_bytes(1000), faulty / "EAGAIN-500", False)
    assert handle.counters().retries == 999
    assert_usable(handle, faulty)


@each_engine
def test_a_file_truncated_during_a_read(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = make(async_io, engine)
    path = faulty / "cut-600000"
    (faulty.parent / "backing" / path.name).write_bytes(bytes(SIZE))
    with pytest.raises(StorageError, match="ends at byte") as caught:
        handle.read(random_bytes(SIZE), path, False)
    assert 600_000 <= caught.value.offset < SIZE
    assert caught.value.bytes_done <= 600_000
    assert_usable(handle, faulty)


def test_a_file_that_is_too_short_is_an_error_before_anything_is_read(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    (tmp_path / "file").write_bytes(bytes(1000))
    buffer = torch.ones(1000, dtype=torch.uint8)
    handle.async_pread(buffer, tmp_path / "file", 1)
    with pytest.raises(StorageError, match="ends at byte 1000") as caught:
        handle.wait()
    assert (caught.value.errno, caught.value.offset, caught.value.bytes_done) == (errno.EIO, 1000, 0)
    assert buffer.all()
    assert_usable(handle, tmp_path)


@each_engine
def test_validation_compares(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = make(async_io, engine)
    data = random_bytes(50_000)
    path = faulty / "lies"  # no two reads of it are the same
    (faulty.parent / "backing" / path.name).write_bytes(raw(data))
    for call in (handle.read, handle.write):
        with pytest.raises(StorageError, match="differs from the tensor") as caught:
            call(data, path, True)
        assert caught.value.bytes_done == 50_000
        assert caught.value.offset == int(re.search(r"byte (\d+) of the file differs", str(caught.value))[1])
        call(data, path, False)
    assert_usable(handle, faulty)


def test_wait_reports_all_failures_once(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    for index in range(5):
        (tmp_path / f"{index}").write_bytes(bytes(10 if index % 2 else 1000))
        handle.async_pread(torch.zeros(1000, dtype=torch.uint8), tmp_path / f"{index}")
    with pytest.raises(StorageError) as caught:
        handle.wait()
    assert [Path(error.filename).name for error in (caught.value, *caught.value.others)] == ["1", "3"]
    assert handle.wait() == 0


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="there is no mkfs.ext4")
def test_a_refused_write_leaves_the_file_as_it_was(async_io: AsyncIOModule, tmp_path: Path) -> None:
    """On ext4, which keeps the blocks of an allocation that fails half-way."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    with mounted(mount, "-o", "loop", image):
        old = raw(random_bytes(1000))
        for engine in ENGINES:
            handle = make(async_io, engine)
            for path, offset in ((mount / "file", 0), (mount / "file", 1 << 20), (mount / "new", 0)):
                (mount / "file").write_bytes(old)
                (mount / "new").touch()
                size = path.stat().st_size
                with pytest.raises(StorageError, match="ENOSPC") as caught:
                    handle.sync_pwrite(torch.zeros(64 << 20, dtype=torch.uint8), path, offset)
                assert caught.value.bytes_done == 0
                assert path.stat().st_size == size
                assert (mount / "file").read_bytes() == old
                path.unlink()
            assert_usable(handle, mount)


def test_files_that_cannot_be_written(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    (tmp_path / "file").write_bytes(bytes(10))
    ends = os.pipe()
    os.mkfifo(tmp_path / "pipe")
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    for file, number in (
        (tmp_path / "no" / "file", errno.ENOENT),
        (tmp_path, errno.EISDIR),
        (9999, errno.EBADF),
        (ends[1], errno.ESPIPE),
        (tmp_path / "pipe", errno.ENXIO),  # no process waits for its other end
        (read_only, errno.EBADF),
    ):
        with pytest.raises(StorageError) as caught:
            handle.sync_pwrite(torch.ones(10), file)
        assert (caught.value.errno, caught.value.filename) == (number, file)
    with pytest.raises(StorageError, match="ESPIPE"):
        handle.async_pread(torch.ones(10), tmp_path / "pipe")
    assert_usable(handle, tmp_path)
    for descriptor in (*ends, read_only):
        os.close(descriptor)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors cannot be listed")
def test_no_descriptor_is_left_open(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    for index in range(3):
        assert_usable(handle, tmp_path)
        with pytest.raises(StorageError):
            handle.read(torch.zeros(100), tmp_path / "sound", False, 300_000)
        handle.async_pwrite(torch.zeros(10_000), tmp_path / f"{index}", index)
        with open(tmp_path / "sound") as file, pytest.raises(StorageError):
            handle.write(torch.zeros(100), file.fileno(), False)
        handle.wait()
    assert [path for path in open_files(os.getpid()) if path.startswith(str(tmp_path))] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_cannot_use_the_handle_and_the_parent_can(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    data = random_bytes(30_000_000)
    pinned = handle.new_cpu_locked_tensor(100, data)
    handle.async_pwrite(data, tmp_path / "file")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (handle.wait, lambda: handle.read(torch.zeros(10), tmp_path / "file", False)):
                with pytest.raises(OpArgumentError, match=f"belongs to process {os.getppid()}"):
                    call()
            del handle, pinned  # must not wait for the parent's threads
            make(async_io, ENGINES[0]).write(torch.full((10,), 3.0), tmp_path / "of the child", True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert handle.wait() == 1
    assert (tmp_path / "file").read_bytes() == raw(data)
    assert (tmp_path / "of the child").stat().st_size == 40


# System calls that fail ---------------------------------------------------------------------------------------------


def run(preloaded: Path, *arguments: str | Path, **variables: str | None) -> str:
    """What a program of tests/support/faulty_aio_programs.py prints."""
    return output_of("-m", faulty_aio_programs.__name__, *arguments, LD_PRELOAD=str(preloaded), **variables)


@needs_gxx
def test_calls_that_are_interrupted_refused_or_do_a_part(faulty_calls: Path, tmp_path: Path) -> None:
    run(faulty_calls, "transfers", tmp_path / "file", *ENGINES)


@needs_gxx
def test_a_write_that_grows_a_file_ends_however_often_it_is_interrupted(faulty_calls: Path, tmp_path: Path) -> None:
    run(faulty_calls, "one_transfer", tmp_path / "file", FAULTY_REFUSED="fallocate")


@needs_gxx
@pytest.mark.parametrize(
    ("refused", "chosen"), [("io_uring", "libaio"), ("io_uring,libaio", "threads"), ("commands", "threads")]
)
def test_the_next_engine_serves_where_the_kernel_refuses_one(faulty_calls: Path, refused: str, chosen: str) -> None:
    output = run(faulty_calls, "chosen", FAULTY_REFUSED=refused)
    assert f"engine {chosen} " in output
    for name in ("io_uring", "libaio") if refused == "commands" else refused.split(","):
        assert f"'{name}': 'the system refuses it: " in output


@needs_gxx
def test_where_o_direct_commands_are_refused_bytes_go_through_the_page_cache(faulty_calls: Path, disk: Path) -> None:
    output = run(faulty_calls, "cached", disk / "file", FAULTY_REFUSED="direct")
    assert "counted 0 0 400003 True" in output


@needs_gxx
def test_the_process_ends_without_a_device_that_does_nothing(faulty_calls: Path, tmp_path: Path) -> None:
    output = run(faulty_calls, "stalled", tmp_path / "file")
    assert "without 1 operations" in output


@needs_gxx
@pytest.mark.parametrize(("engine", "reason"), [("io_uring", "io_uring_disabled"), ("libaio", "ENOSYS")])
def test_a_forced_engine_that_the_kernel_refuses_is_an_error(faulty_calls: Path, engine: str, reason: str) -> None:
    output = run(faulty_calls, "forced", FAULTY_REFUSED=engine, ACCEL_AIO_ENGINE=engine)
    assert output.count("REFUSED") == 2
    assert reason in output


@needs_gxx
@each_engine
def test_overlap_events_starts_new_commands_while_others_are_in_flight(
    faulty_calls: Path, disk: Path, engine: str
) -> None:
    """Some devices complete all commands of libaio before its call returns, so only one is collected at a time."""
    output = run(faulty_calls, "overlaps", disk / "file", engine, FAULTY_REFUSED="events")
    assert re.findall("overlapped (.*)", output) == ["False True", "True True"]


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "threads"])
def test_operations_that_are_refused_for_now_are_retried_together(
    faulty_calls: Path, tmp_path: Path, engine: str
) -> None:
    output = run(faulty_calls, "full", tmp_path / "file", engine)
    assert "failures 16" in output
    # 1,000 for the operation that is submitted alone, 1,000 for the others.
    assert 1000 <= int(output.partition("submissions ")[2]) < 3000


@needs_gxx
@pytest.mark.skipif(ENGINES == ["threads"], reason="no other engine works here")
def test_an_engine_that_a_sandbox_refuses_later_is_named(faulty_calls: Path, tmp_path: Path) -> None:
    output = run(faulty_calls, "refused_later", tmp_path / "file", ENGINES[0])
    assert "True If a sandbox now refuses the I/O engine" in output


def test_a_file_above_the_limit_of_sizes_gets_no_blocks(tmp_path: Path) -> None:
    done = output_of("-m", faulty_aio_programs.__name__, "too_large", tmp_path / "file")
    assert done.split() == ["True", "0", "0", "1"]


@needs_gxx
def test_memory_that_may_not_be_locked_is_reported(faulty_calls: Path) -> None:
    output = run(faulty_calls, "locked", FAULTY_REFUSED="mlock")
    assert "True 0" in output
    assert output.count("not locked in memory: Cannot allocate memory. The limit is ulimit -l.") == 1


def test_engines_by_name(async_io: AsyncIOModule) -> None:
    with env.scope(ACCEL_AIO_ENGINE="threads"):
        assert async_io.aio_handle().engine == "threads"
        assert async_io.aio_handle(engine=ENGINES[0]).engine == "threads"  # the variable overrides the argument
    with env.scope(ACCEL_AIO_ENGINE=None):
        assert async_io.aio_handle(engine=ENGINES[-1]).engine == ENGINES[-1]
    with pytest.raises(OpArgumentError, match="Unknown engine 'quick'"):
        async_io.aio_handle(engine="quick")
    if "libaio" in ENGINES and int(Path("/proc/sys/fs/aio-max-nr").read_text()) < 1 << 15:
        with pytest.raises(IncompatibleOpError, match="aio-max-nr"):
            async_io.aio_handle(queue_depth=1 << 15, engine="libaio")


# Signals -------------------------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


@contextmanager
def handled_by(work: Callable[[], object], *, every_s: float = 0.0) -> Iterator[None]:
    """``work`` as the handler of SIGALRM, which runs in the main thread wherever that is."""
    before = signal.signal(signal.SIGALRM, lambda *_: work())
    try:
        signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stop() -> None:
    raise Stopped


def interrupt(handle: Handle, work: Callable[[], object]) -> None:
    """Let a signal raise Stopped in ``work()``, which reads a busy file, once the handle has retried that."""
    retries = handle.counters().retries

    def send() -> None:
        wait_until(lambda: handle.counters().retries > retries + 20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    def call() -> None:
        sender.start()
        work()

    sender = threading.Thread(target=send)
    with handled_by(stop):
        with pytest.raises(Stopped):
            call()
        sender.join()


def test_an_interrupted_wait_loses_no_failure(async_io: AsyncIOModule, tmp_path: Path, busy: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 10)
    handle = async_io.aio_handle()
    handle.async_pread(torch.zeros(4096, dtype=torch.uint8), tmp_path / "short")
    handle.async_pread(torch.zeros(1000, dtype=torch.uint8), busy)
    interrupt(handle, handle.wait)
    busy.with_name("released").touch()
    with pytest.raises(StorageError, match="byte 10"):
        handle.wait()
    assert_usable(handle, tmp_path)


def test_the_next_wait_waits_for_an_interrupted_call(async_io: AsyncIOModule, tmp_path: Path, busy: Path) -> None:
    handle = async_io.aio_handle()
    buffer = torch.full((1000,), 9, dtype=torch.uint8)
    interrupt(handle, lambda: handle.sync_pread(buffer, busy))
    busy.with_name("released").touch()
    assert handle.wait() == 1
    assert not buffer.any()
    assert_usable(handle, tmp_path)


def test_a_signals_handler_may_wait_at_any_moment(async_io: AsyncIOModule, tmp_path: Path) -> None:
    """Also while its thread waits: each operation is reported once, by one of both."""
    handle = async_io.aio_handle()
    buffer = torch.ones(1 << 12, dtype=torch.uint8)
    reported: list[int] = []
    with handled_by(lambda: reported.append(handle.wait()), every_s=0.0003):
        for _ in range(500):
            handle.async_pwrite(buffer, tmp_path / "file")
            assert handle.sync_pread(buffer, tmp_path / "file") == 1
            reported.append(handle.wait())
    assert sum(reported) + handle.wait() == 500
    assert_usable(handle, tmp_path)
