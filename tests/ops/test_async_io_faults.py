"""What goes wrong between a tensor and a file: told whole, nothing lost in silence, the handle usable afterwards.

Faults come from a file system of our own (FUSE), and from system calls that a preloaded library fails.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from op_builder import env
from op_builder.errors import IncompatibleOpError, OpArgumentError, StorageError
from op_builder.ops.io.aio_handle import Handle
from op_builder.ops.io.async_io import AsyncIOModule
from op_builder.system import storage_engines

ENGINES = [engine.name for engine in storage_engines.storage_engines() if engine.refusal is None]
IMPORTED_FROM = Path(env.__file__).parents[1]  # the checkout, or where a wheel was installed
SIZE = 1_000_003

each_engine = pytest.mark.parametrize("engine", ENGINES)


def bytes_of(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def make(async_io: AsyncIOModule, engine: str) -> Handle:
    return async_io.aio_handle(64 << 10, 4, False, True, 2, engine=engine)


def assert_usable(handle: Handle, directory: Path) -> None:
    """Nothing is left in the handle of what failed."""
    assert handle.wait() == 0
    data = bytes_of(300_001)
    handle.async_pwrite(data, directory / "sound")
    assert handle.wait() == 1
    back = torch.zeros_like(data)
    handle.sync_pread(back, directory / "sound")
    assert torch.equal(back, data)


@each_engine
def test_short_reads_and_writes_are_gone_on_with(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = make(async_io, engine)
    data = bytes_of(SIZE)
    # The kernel itself makes EIO of a short asynchronous write to FUSE.
    (handle if engine == "threads" else make(async_io, "threads")).sync_pwrite(data, faulty / "short", 5)
    assert (faulty.parent / "backing" / "short").read_bytes()[5:] == data.numpy().tobytes()
    back = torch.zeros_like(data)
    handle.sync_pread(back, faulty / "short", 5)
    assert torch.equal(back, data)
    assert handle.counters().retries > 10


@each_engine
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EFBIG])
@pytest.mark.parametrize("is_background", [False, True], ids=["at once", "in the background"])
def test_an_error_names_file_offset_bytes_and_errno(
    async_io: AsyncIOModule, faulty: Path, engine: str, number: int, is_background: bool
) -> None:
    handle = make(async_io, engine)
    name = errno.errorcode[number]
    path = faulty / f"{name}-500000"
    (faulty.parent / "backing" / path.name).write_bytes(bytes(SIZE))
    for doing, call in (("Writing", handle.pwrite), ("Reading", handle.pread)):
        if is_background:
            assert call(bytes_of(SIZE), path, False, True) == 0
        with pytest.raises(StorageError) as caught:
            handle.wait() if is_background else call(bytes_of(SIZE), path, False, False)
        error = caught.value
        assert error.errno == number
        assert error.filename == path
        assert 0 <= error.bytes_done < SIZE
        # The request that failed is one of at most a block, and has that byte in it.
        assert 500_000 - (64 << 10) < error.offset <= 500_000
        for told in (doing, str(path), f"at byte {error.offset} ", f"after {error.bytes_done} bytes", f"({name})"):
            assert told in str(error)
        assert isinstance(error, OSError)
    assert_usable(handle, faulty)


@each_engine
@pytest.mark.parametrize("overlap", [False, True], ids=["by rounds", "overlapped"])
def test_a_command_that_is_tried_again_holds_up_no_other(
    async_io: AsyncIOModule, faulty: Path, engine: str, overlap: bool
) -> None:
    handle = async_io.aio_handle(4096, 4, False, overlap, 1, engine=engine)
    data, small, large = bytes_of(1000), bytes_of(1000), bytes_of(90 * 4096)
    for path, content in (("backing/busy-600", data), ("small", small), ("large", large)):
        (faulty.parent / path).write_bytes(content.numpy().tobytes())
    back = torch.zeros_like(data)
    handle.async_pread(back, faulty / "busy-600")
    deadline_s = time.monotonic() + 60
    while handle.counters().retries < 300:  # from here on they come 3 ms and more after one another
        assert time.monotonic() < deadline_s
        time.sleep(0.01)

    def read_within(name: str, content: torch.Tensor, times: int, limit: int) -> None:
        """Read so often in fewer than ``limit`` retries: at once or, on a busy machine, in one of several goes."""
        while True:
            before = handle.counters().retries
            for _ in range(times):
                target = torch.zeros_like(content)
                handle.sync_pread(target, faulty.parent / name)
                assert torch.equal(target, content)
            retries = handle.counters().retries
            if retries - before < limit and retries < 600:  # it was tried again all the time
                return
            assert retries < 600, f"no go of {times} reads of {name} took fewer than {limit} retries"

    # Who is held up gets one request done for each retry, or as many blocks as there are slots left: three.
    read_within("small", small, times=30, limit=20)
    read_within("large", large, times=1, limit=20)
    assert handle.wait() == 1
    assert torch.equal(back, data)
    assert handle.counters().retries == 600


@each_engine
def test_a_command_is_tried_again_while_another_takes_long(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = async_io.aio_handle(64 << 10, 4, False, True, 1, engine=engine)
    size = 64 << 10  # whole pages, which no engine reads within the call that begins it
    for name in ("busy-600", "slow"):
        (faulty.parent / "backing" / name).write_bytes(bytes(size))
    busy, slow = (handle.new_cpu_locked_tensor(size, torch.ones(1, dtype=torch.uint8)).fill_(1) for _ in range(2))
    handle.async_pread(busy, faulty / "busy-600")
    handle.async_pread(slow, faulty / "slow")  # a second
    seen, deadline_s = [], time.monotonic() + 60
    while slow.any():
        seen.append((time.monotonic(), handle.counters().retries))
        assert seen[-1][0] < deadline_s
        time.sleep(0.01)
    done_s = time.monotonic()
    meanwhile = [retries for seen_s, retries in seen if done_s - 0.8 < seen_s < done_s - 0.2]
    assert meanwhile[-1] - meanwhile[0] > 10
    assert handle.wait() == 2
    assert not busy.any()


def test_nobody_is_busy_while_all_commands_wait_to_be_tried_again(async_io: AsyncIOModule, faulty: Path) -> None:
    handle = async_io.aio_handle(64 << 10, 1, False, True, 1, engine="threads")
    for name in ("busy-300", "sound"):
        (faulty.parent / "backing" / name).write_bytes(bytes(1000))
    targets = [torch.ones(1000, dtype=torch.uint8) for _ in range(2)]
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    for target, name in zip(targets, ("busy-300", "sound"), strict=True):
        handle.async_pread(target, faulty / name)
    assert handle.wait() == 2
    taken_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    assert handle.counters().retries == 300
    assert not any(target.any() for target in targets)
    assert taken_s > 0.4  # the pauses
    assert cpu_s < taken_s / 2


@pytest.mark.slow
def test_what_is_refused_for_ever_is_given_up_after_a_thousand_times(async_io: AsyncIOModule, faulty: Path) -> None:
    handle = make(async_io, "threads")
    (faulty.parent / "backing" / "EAGAIN-500").write_bytes(bytes(1000))
    with pytest.raises(StorageError, match="EAGAIN"):
        handle.read(bytes_of(1000), faulty / "EAGAIN-500", False)
    assert handle.counters().retries == 999
    assert_usable(handle, faulty)


@each_engine
def test_a_file_cut_during_a_read(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = make(async_io, engine)
    path = faulty / "cut-600000"
    (faulty.parent / "backing" / path.name).write_bytes(bytes(SIZE))
    with pytest.raises(StorageError, match="the file ends at byte") as caught:
        handle.read(bytes_of(SIZE), path, False)
    assert 600_000 <= caught.value.offset < SIZE
    assert caught.value.bytes_done <= 600_000
    assert_usable(handle, faulty)


@each_engine
def test_a_file_that_is_too_short_is_told_before_anything_is_read(
    async_io: AsyncIOModule, tmp_path: Path, engine: str
) -> None:
    handle = make(async_io, engine)
    (tmp_path / "file").write_bytes(bytes(1000))
    buffer = torch.ones(1000, dtype=torch.uint8)
    handle.async_pread(buffer, tmp_path / "file", 1)
    with pytest.raises(StorageError, match="the file ends at byte 1000, and byte 1001 is the end") as caught:
        handle.wait()
    assert (caught.value.errno, caught.value.offset, caught.value.bytes_done) == (errno.EIO, 1000, 0)
    assert buffer.all()
    assert_usable(handle, tmp_path)


def test_a_file_removed_during_a_read_is_read_whole(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    data = bytes_of(20_000_000)
    (tmp_path / "file").write_bytes(data.numpy().tobytes())
    back = torch.zeros_like(data)
    handle.async_pread(back, tmp_path / "file")
    (tmp_path / "file").unlink()
    assert handle.wait() == 1
    assert torch.equal(back, data)


@each_engine
def test_validation_compares(async_io: AsyncIOModule, faulty: Path, engine: str) -> None:
    handle = make(async_io, engine)
    data = bytes_of(50_000)
    path = faulty / "lies"  # no two reads of it are the same
    (faulty.parent / "backing" / path.name).write_bytes(data.numpy().tobytes())
    for call in (handle.read, handle.write):
        with pytest.raises(StorageError, match="of the file is not what the tensor has there") as caught:
            call(data, path, True)
        assert caught.value.bytes_done == 50_000
        assert caught.value.offset == int(re.search(r"byte (\d+) of the file is not", str(caught.value))[1])
        call(data, path, False)  # nobody looks
    assert_usable(handle, faulty)


def test_one_wait_tells_all_failures_once(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    for index in range(5):
        (tmp_path / f"{index}").write_bytes(bytes(10 if index % 2 else 1000))
        handle.async_pread(torch.zeros(1000, dtype=torch.uint8), tmp_path / f"{index}")
    with pytest.raises(StorageError) as caught:
        handle.wait()
    assert [Path(error.filename).name for error in (caught.value, *caught.value.others)] == ["1", "3"]
    assert handle.wait() == 0


def test_a_full_device(async_io: AsyncIOModule, tmp_path: Path) -> None:
    """A tmpfs of 1 MiB, by its own limit."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], check=False).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        for engine in ENGINES:
            handle = make(async_io, engine)
            with pytest.raises(StorageError, match=r"No space left on device \(ENOSPC\)"):
                handle.sync_pwrite(bytes_of(5 << 20), mount / "file")
            (mount / "file").unlink()
            assert_usable(handle, mount)
            (mount / "sound").unlink()
    finally:
        subprocess.run(["umount", "--lazy", mount], check=False)


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 24 MiB, which keeps what an allocation has got that fails half-way."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    image, mount = tmp_path / "image", tmp_path / "mount"
    with image.open("wb") as file:
        file.truncate(24 << 20)
    mount.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, mount], check=False, capture_output=True).returncode != 0:
        pytest.skip("a file cannot be mounted here")
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=False)


def free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bfree * status.f_frsize


def test_a_refused_write_leaves_file_and_disk_as_they_were(async_io: AsyncIOModule, small_ext4: Path) -> None:
    old = bytes_of(1000)
    for engine in ENGINES:
        handle = make(async_io, engine)
        for path, offset in ((small_ext4 / "file", 0), (small_ext4 / "file", 1 << 20), (small_ext4 / "new", 0)):
            (small_ext4 / "file").write_bytes(old.numpy().tobytes())
            (small_ext4 / "new").touch()
            size = path.stat().st_size
            os.sync()
            free = free_bytes(small_ext4)
            with pytest.raises(StorageError, match="ENOSPC") as caught:
                handle.sync_pwrite(torch.zeros(64 << 20, dtype=torch.uint8), path, offset)
            assert caught.value.bytes_done == 0
            assert path.stat().st_size == size
            os.sync()
            assert abs(free_bytes(small_ext4) - free) < 64 << 10  # the file system may keep a block of its own
            assert (small_ext4 / "file").read_bytes() == old.numpy().tobytes()
        assert_usable(handle, small_ext4)


@each_engine
def test_a_device_that_is_always_full(async_io: AsyncIOModule, tmp_path: Path, engine: str) -> None:
    handle = make(async_io, engine)
    with pytest.raises(StorageError) as caught:
        handle.write(bytes_of(100_000), "/dev/full", False)
    assert (caught.value.errno, caught.value.bytes_done) == (errno.ENOSPC, 0)
    assert_usable(handle, tmp_path)


BAD_FILES = {
    "missing": errno.ENOENT,
    "a directory": errno.EISDIR,
    "no descriptor": errno.EBADF,
    "a pipe": errno.ESPIPE,
    "a pipe's name": errno.ESPIPE,
    "open to read": errno.EBADF,
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_files_that_cannot_be_written(async_io: AsyncIOModule, tmp_path: Path, what: str) -> None:
    handle = make(async_io, ENGINES[0])
    (tmp_path / "file").write_bytes(bytes(10))
    ends = os.pipe()
    os.mkfifo(tmp_path / "pipe")
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    file = {
        "missing": tmp_path / "no" / "file",
        "a directory": tmp_path,
        "no descriptor": 9999,
        "a pipe": ends[1],
        "a pipe's name": tmp_path / "pipe",
        "open to read": read_only,
    }[what]
    with pytest.raises(StorageError) as caught:
        handle.sync_pwrite(torch.ones(10), file)
    assert caught.value.errno == BAD_FILES[what]
    assert caught.value.filename == file
    assert_usable(handle, tmp_path)
    for descriptor in (*ends, read_only):
        os.close(descriptor)


def test_a_named_pipe_is_not_waited_for(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    os.mkfifo(tmp_path / "pipe")
    for call in (handle.sync_pread, handle.sync_pwrite, handle.async_pread):
        with pytest.raises(StorageError, match="ESPIPE"), stopped_after(20):
            call(torch.ones(10), tmp_path / "pipe")


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
    targets = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    assert [target for target in targets if target.startswith(str(tmp_path))] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_cannot_use_the_handle_and_the_parent_can(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = make(async_io, ENGINES[0])
    data = bytes_of(30_000_000)
    pinned = handle.new_cpu_locked_tensor(100, data)
    handle.async_pwrite(data, tmp_path / "file")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (handle.wait, lambda: handle.read(torch.zeros(10), tmp_path / "file", False)):
                with pytest.raises(OpArgumentError, match=f"belongs to process {os.getppid()}"):
                    call()
            del handle, pinned  # which must not wait for threads that are not here
            own = make(async_io, ENGINES[0])
            own.write(torch.full((10,), 3.0), tmp_path / "of the child", True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert handle.wait() == 1
    assert (tmp_path / "file").read_bytes() == data.numpy().tobytes()
    assert (tmp_path / "of the child").stat().st_size == 40


# System calls that fail ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def faulty_calls(tmp_path_factory: pytest.TempPathFactory, async_io: AsyncIOModule) -> Path:  # noqa: ARG001
    """The library to preload; the op is built, by calls that do not fail."""
    if not sys.platform.startswith("linux"):
        pytest.skip("preloads a library")
    source = Path(__file__).parent / "native" / "faulty_calls.cpp"
    built = tmp_path_factory.mktemp("faulty") / "faulty_calls.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-O1", str(source), "-o", str(built), "-ldl"], check=True)
    return built


def run_with(faulty_calls: Path, code: str, **variables: str | None) -> str:
    """What a Python process says whose calls fail as the variables say."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env.child_environment(LD_PRELOAD=str(faulty_calls), PYTHONPATH=str(IMPORTED_FROM), **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@each_engine
@pytest.mark.parametrize("period", ["1", "2", "3"])
def test_calls_that_are_interrupted_refused_or_do_a_part(
    faulty_calls: Path, tmp_path: Path, engine: str, period: str
) -> None:
    said = run_with(
        faulty_calls,
        f"""
        import torch
        from op_builder.cpu import AsyncIOBuilder
        aio = AsyncIOBuilder().load()
        for single in (False, True):
            for overlap in (False, True):
                handle = aio.aio_handle(8192, 8, single, overlap, 2, engine={engine!r})
                data = torch.randint(0, 256, (400_003,), dtype=torch.uint8)
                handle.sync_pwrite(data, {str(tmp_path / "file")!r}, 3)
                handle.async_pwrite(data, {str(tmp_path / "file")!r}, 500_000)
                handle.wait()
                for offset in (3, 500_000):
                    back = torch.zeros_like(data)
                    handle.pread(back, {str(tmp_path / "file")!r}, True, False, offset)
                    assert torch.equal(back, data)
        print("sound")
        """,
        FAULTY_PERIOD=period,
    )
    assert "sound" in said


def test_a_write_that_grows_a_file_ends_however_often_it_is_interrupted(faulty_calls: Path, tmp_path: Path) -> None:
    said = run_with(
        faulty_calls,
        f"""
        import torch
        from op_builder.cpu import AsyncIOBuilder
        data = torch.randint(0, 256, (400_003,), dtype=torch.uint8)
        path = {str(tmp_path / "file")!r}
        AsyncIOBuilder().load().aio_handle(8192, 8, False, True, 2).sync_pwrite(data, path, 3)
        with open(path, "rb") as file:
            assert file.read()[3:] == data.numpy().tobytes()
        print("sound")
        """,
        FAULTY_REFUSED="fallocate",
    )
    assert "sound" in said


@pytest.mark.parametrize(
    ("refused", "chosen"),
    [("", ENGINES[0]), ("io_uring", "libaio"), ("io_uring,libaio", "threads")],
)
def test_the_next_engine_serves_where_the_kernel_refuses_one(faulty_calls: Path, refused: str, chosen: str) -> None:
    said = run_with(
        faulty_calls,
        """
        from op_builder.cpu import AsyncIOBuilder
        from op_builder import storage_engines
        print("engine", AsyncIOBuilder().load().aio_handle().engine)
        print(*(engine for engine in storage_engines.storage_engines()), sep="\\n")
        """,
        FAULTY_REFUSED=refused,
    )
    assert f"engine {chosen}\n" in said
    for name in filter(None, refused.split(",")):
        assert f"StorageEngine(name='{name}', refusal='the system refuses it: " in said


def test_bytes_count_as_what_they_went_by_in_the_end(faulty_calls: Path, disk: Path) -> None:
    """Where the file system takes the flag and refuses the commands: with a descriptor for the edges, and without."""
    said = run_with(
        faulty_calls,
        f"""
        import torch
        from op_builder.cpu import AsyncIOBuilder
        handle = AsyncIOBuilder().load().aio_handle(8192, 8, False, True, 2, engine="threads")
        for size in (400_003, 64 << 10):
            handle.sync_pwrite(torch.ones(size, dtype=torch.uint8), {str(disk / "file")!r})
        counters = handle.counters()
        print("counted", counters.direct_bytes, counters.bounced_bytes, counters.cached_bytes, counters.retries > 0)
        """,
        FAULTY_REFUSED="direct",
    )
    assert f"counted 0 0 {400_003 + (64 << 10)} True" in said


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "threads"])
def test_threads_without_a_queue_leave_the_work_to_those_with_one(
    faulty_calls: Path, tmp_path: Path, engine: str
) -> None:
    said = run_with(
        faulty_calls,
        f"""
        import torch
        from op_builder.cpu import AsyncIOBuilder
        aio = AsyncIOBuilder().load()
        handle = aio.aio_handle(8192, 8, False, True, 6, engine={engine!r})
        data, back = torch.randint(0, 256, (2_000_003,), dtype=torch.uint8), torch.zeros(2_000_003, dtype=torch.uint8)
        handle.sync_pwrite(data, {str(tmp_path / "file")!r})
        handle.sync_pread(back, {str(tmp_path / "file")!r})
        assert torch.equal(back, data)
        print("sound", handle.engine, aio.aio_handle().engine)
        """,
        FAULTY_QUEUES="2",
        ACCEL_AIO_ENGINE=None,
    )
    assert f"sound {engine} threads" in said  # the second handle found no queue left at all


def test_queues_leave_descriptors_for_files(async_io: AsyncIOModule, tmp_path: Path) -> None:  # noqa: ARG001
    code = f"""
        import os, resource, torch
        from op_builder.cpu import AsyncIOBuilder
        from op_builder.errors import IncompatibleOpError
        aio = AsyncIOBuilder().load()
        aio.aio_handle().write(torch.zeros(1), {str(tmp_path / "file")!r}, False)  # all is imported
        spare = 6
        last = max(map(int, os.listdir("/proc/self/fd")))
        for _ in range(last + 1 - len(os.listdir("/proc/self/fd"))):
            os.dup(0)  # no number below is free
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1 + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        handle = aio.aio_handle(8192, 8, False, True, 8)
        data, back = torch.ones(2_000_003, dtype=torch.uint8), torch.zeros(2_000_003, dtype=torch.uint8)
        handle.sync_pwrite(data, {str(tmp_path / "file")!r})
        handle.sync_pread(back, {str(tmp_path / "file")!r})
        assert torch.equal(back, data)
        try:
            print(aio.aio_handle(8192, 8, False, True, 8, engine="io_uring").engine)
        except IncompatibleOpError as error:
            print(error)
        print("sound", handle.engine)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env.child_environment(PYTHONPATH=str(IMPORTED_FROM), ACCEL_AIO_ENGINE=None),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sound" in done.stdout
    if "io_uring" in ENGINES:
        assert "sound io_uring" not in done.stdout
        assert "(EMFILE); the limit of open files (ulimit -n) leaves none for its queues and for files" in done.stdout


@pytest.mark.parametrize(("engine", "reason"), [("io_uring", "EPERM"), ("libaio", "ENOSYS")])
def test_a_forced_engine_that_the_kernel_refuses_is_an_error(faulty_calls: Path, engine: str, reason: str) -> None:
    said = run_with(
        faulty_calls,
        """
        from op_builder import env
        from op_builder.cpu import AsyncIOBuilder
        from op_builder.errors import IncompatibleOpError
        with env.scope(ACCEL_AIO_ENGINE=None):
            handle = AsyncIOBuilder().load().aio_handle
        for make in (lambda: AsyncIOBuilder().load().aio_handle(), handle):
            try:
                print(make().engine)
            except IncompatibleOpError as error:
                print("REFUSED", error)
        print(AsyncIOBuilder().is_compatible())
        """,
        FAULTY_REFUSED=engine,
        ACCEL_AIO_ENGINE=engine,
    )
    assert said.count("REFUSED") == 2
    assert reason in said
    assert said.rstrip().endswith("False")


def test_memory_that_may_not_be_locked_is_told(faulty_calls: Path) -> None:
    said = run_with(
        faulty_calls,
        """
        import logging, torch
        logging.basicConfig()
        from op_builder.cpu import AsyncIOBuilder
        handle = AsyncIOBuilder().load().aio_handle()
        tensor = handle.new_cpu_locked_tensor(5000, torch.zeros(1))
        print(handle.locked_memory_facts(tensor).is_locked, handle.is_pinned(tensor), tensor.data_ptr() % 4096)
        """,
        FAULTY_REFUSED="mlock",
    )
    assert "False True 0" in said
    assert "not locked in memory: Cannot allocate memory. The limit is ulimit -l." in said


def test_engines_by_name(async_io: AsyncIOModule) -> None:
    with env.scope(ACCEL_AIO_ENGINE="threads"):
        assert async_io.aio_handle().engine == "threads"
        assert async_io.aio_handle(engine=ENGINES[0]).engine == "threads"  # who runs a program has the last word
    with env.scope(ACCEL_AIO_ENGINE=None):
        assert async_io.aio_handle(engine=ENGINES[-1]).engine == ENGINES[-1]
    with env.scope(ACCEL_AIO_ENGINE="quick"), pytest.raises(ValueError, match="one of io_uring, libaio, threads"):
        async_io.aio_handle()
    with pytest.raises(OpArgumentError, match="no engine 'quick'"):
        async_io.aio_handle(engine="quick")
    if "libaio" in ENGINES:
        limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
        if limit < 1 << 15:
            with pytest.raises(IncompatibleOpError, match="aio-max-nr"):
                async_io.aio_handle(queue_depth=1 << 15, engine="libaio")


def test_memory_in_use_is_kept_when_the_tensor_gets_other_memory(async_io: AsyncIOModule, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes([7]) * (32 << 20))
    handle = async_io.aio_handle(block_size=4096, queue_depth=1)
    buffer = torch.zeros(32 << 20, dtype=torch.uint8)
    handle.async_pread(buffer, tmp_path / "file")
    buffer.data = torch.zeros(1, dtype=torch.uint8)
    others = [torch.zeros(32 << 20, dtype=torch.uint8) for _ in range(3)]
    assert all(operation.memory.nbytes == 32 << 20 for operation in handle._running.values())
    assert handle.wait() == 1
    assert not any(other.any() for other in others)
    assert not buffer.any()


class Stopped(Exception):
    pass


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_stopped(work: Callable[[], object], seconds: float, again: float) -> bool:
    """Whether ``work`` ran into the first of two signals; the other comes ``again`` seconds later, wherever that is."""
    later = [again]

    def stop(*_: object) -> None:
        if later:
            signal.setitimer(signal.ITIMER_REAL, later.pop())
        raise Stopped

    before, came = signal.signal(signal.SIGALRM, stop), False
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        work()
    except Stopped:
        came = True
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            return came
        except Stopped:
            came = True


def slow_file(directory: Path) -> tuple[Path, int]:
    """A file whose read by single pages takes a good while."""
    size = 256 << 20
    with open(directory / "slow", "wb") as file:
        file.truncate(size)
    return directory / "slow", size


def test_an_interrupted_wait_loses_no_failure(async_io: AsyncIOModule, tmp_path: Path) -> None:
    path, size = slow_file(tmp_path)
    (tmp_path / "short").write_bytes(b"x" * 10)
    handle = async_io.aio_handle(block_size=4096, queue_depth=1)
    handle.async_pread(torch.zeros(4096, dtype=torch.uint8), tmp_path / "short")
    buffer = torch.zeros(size, dtype=torch.uint8)
    for _ in range(4):  # so many that a fast disk is not done before the signal comes
        handle.async_pread(buffer, path)
    with pytest.raises(Stopped), stopped_after(0.2):
        handle.wait()
    with pytest.raises(StorageError, match="the file ends at byte 10"):
        handle.wait()
    assert_usable(handle, tmp_path)


def test_the_next_wait_waits_for_an_interrupted_call(async_io: AsyncIOModule, tmp_path: Path) -> None:
    path, size = slow_file(tmp_path)
    handle = async_io.aio_handle(block_size=4096, queue_depth=1)
    buffer = torch.full((size,), 9, dtype=torch.uint8)
    with pytest.raises(Stopped), stopped_after(0.05):
        handle.sync_pread(buffer, path)
    assert handle.wait() == 1
    assert not buffer.any()
    assert_usable(handle, tmp_path)


@contextmanager
def called_every(seconds: float, work: Callable[[], object]) -> Iterator[None]:
    """``work`` as a signal's handler, which runs in the main thread wherever that is."""
    before = signal.signal(signal.SIGALRM, lambda *_: work())
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_s_handler_may_wait_while_a_call_goes_on(async_io: AsyncIOModule, tmp_path: Path) -> None:
    path, size = slow_file(tmp_path)
    handle = async_io.aio_handle(block_size=4096, queue_depth=1)
    buffer = torch.full((size,), 9, dtype=torch.uint8)
    told: list[int] = []
    with called_every(0.05, lambda: told.append(handle.wait())):
        assert handle.sync_pread(buffer, path) == 1
    assert told
    assert set(told) == {0}  # the call tells of itself
    assert not buffer.any()
    assert_usable(handle, tmp_path)


def test_a_signal_s_handler_may_wait_at_any_moment(async_io: AsyncIOModule, tmp_path: Path) -> None:
    """Also while its thread waits itself, or holds a lock: each operation is told once, by one of both."""
    handle = async_io.aio_handle()
    buffer = torch.ones(1 << 12, dtype=torch.uint8)
    told: list[int] = []
    begun = 0
    with called_every(0.0003, lambda: told.append(handle.wait())):
        for _ in range(1500):
            handle.async_pwrite(buffer, tmp_path / "file")
            handle.sync_pread(buffer, tmp_path / "file")
            begun += 1
            told.append(handle.wait())
    assert begun == sum(told) + handle.wait()
    assert not handle._running
    assert_usable(handle, tmp_path)


def test_signals_while_operations_begin_leave_none_unknown(async_io: AsyncIOModule, tmp_path: Path) -> None:
    handle = async_io.aio_handle()
    interrupted = 0
    for _ in range(400):
        buffer = torch.ones(1 << 18, dtype=torch.uint8)

        def begin(buffer: torch.Tensor = buffer) -> None:
            for _ in range(20):
                handle.async_pwrite(buffer, tmp_path / "file")

        interrupted += is_stopped(begin, 0.0002, 0.0003)
        assert handle.wait() >= 0
        assert not handle._running
    assert interrupted > 20
    assert_usable(handle, tmp_path)
