"""What a store holds after its writer was killed, interrupted or ran out of space; several processes on one."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from op_builder.errors import StorageError
from op_builder.ops import TensorStore

WRITER = Path(__file__).with_name("killed_writer.py")


@pytest.fixture(scope="module", autouse=True)
def _built(async_io: object) -> None:
    """The op is in the cache before a child's time counts."""


def started(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, WRITER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_writer_killed_at_any_step_leaves_the_old_value_or_the_new(tmp_path: Path) -> None:
    writer = started("steps", tmp_path)
    told, _ = writer.communicate(timeout=120)
    assert writer.returncode == 0
    points = [line.split(maxsplit=2) for line in told.splitlines()]
    assert len(points) > 10
    found = [rest.partition("]")[0] + "]" for _, _, rest in points]
    assert set(found) == {"[0.0]", "[1.0]"}, "one value each, and both seen"
    assert found == sorted(found), "once it is the new one, it stays so"
    assert [how for _, how, _ in points] == ["9"] * (len(points) - 1) + ["survived"]
    files = [tuple(map(int, rest.partition("]")[2].split())) for _, _, rest in points]
    assert max(before for before, _ in files) == 3, "some have left a file"
    assert {after for _, after in files} == {2}, "which the next store removes"


def test_a_writer_killed_at_any_time_leaves_one_value_no_older_than_it_told(tmp_path: Path) -> None:
    writer = started("times", tmp_path)
    told, _ = writer.communicate(timeout=120)
    assert writer.returncode == 0
    lines = told.splitlines()
    assert len(lines) >= 50
    for line in lines:
        last, found, files = line.split()
        assert found in (f"[{last}.0]", f"[{int(last) + 1}.0]"), line
        assert files == "1", "the tensor's own"
    assert len({line.split()[0] for line in lines}) > 2, "they were killed at various times"


def test_a_living_writer_s_file_is_not_swept(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    value = torch.ones(100)
    files = []

    def open_another(_done: int, _total: int) -> None:
        child = os.fork()
        if child == 0:
            TensorStore(tmp_path)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        TensorStore(tmp_path)
        files.extend(os.listdir(tmp_path))

    store.save("x", value, progress=open_another)
    assert len(files) == 1
    assert files[0].endswith(".partial")
    assert torch.equal(store.load("x"), value)


def test_processes_share_a_directory(tmp_path: Path) -> None:
    writers = [started("loop", tmp_path) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        store = TensorStore(tmp_path)
        for _ in range(50):
            value = store.load("x")
            assert (value == value[0]).all()
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    # The kernel closes a killed process's io_uring, and with it the file that is locked, only after it is gone.
    deadline = time.monotonic() + 30
    while os.listdir(tmp_path) != ["x.tensor"] and time.monotonic() < deadline:
        assert TensorStore(tmp_path).names() == ["x"]
        time.sleep(0.05)
    assert os.listdir(tmp_path) == ["x.tensor"]


@pytest.mark.parametrize("in_background", [False, True])
def test_ctrl_c_ends_a_save_and_the_old_value_stays(tmp_path: Path, in_background: bool) -> None:
    store = TensorStore(tmp_path)
    store.save("x", torch.zeros(4))
    gate = threading.Event()

    def hold(_done: int, _total: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        gate.wait(0.2)

    def interrupted() -> None:
        if in_background:
            store.save_async("x", torch.ones(4), progress=hold).result()
        else:
            store.save("x", torch.ones(4), progress=hold)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    # In the background it goes on: Ctrl-C interrupts who waits.
    assert store.load("x").sum() == (4 if in_background else 0)
    assert os.listdir(tmp_path) == ["x.tensor"]


# No space --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a tmpfs cannot be mounted here")
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=True)


def test_a_full_disk_leaves_the_old_value_and_no_file(small_disk: Path) -> None:
    store = TensorStore(small_disk)
    old = torch.arange(1000.0)
    store.save("x", old)
    with pytest.raises(
        StorageError, match=r"Saving .*x\.tensor failed(.|\n)*Free space(.|\n)*value from before"
    ) as caught:
        store.save("x", torch.zeros(1 << 20))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(small_disk / "x.tensor")
    assert os.listdir(small_disk) == ["x.tensor"]
    assert torch.equal(store.load("x"), old)
    store.save("x", old + 1)
    assert torch.equal(store.load("x"), old + 1)


def test_a_limit_of_file_sizes_leaves_the_old_value(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    store.save("x", torch.ones(3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"x\.tensor") as caught:
            store.save("x", torch.zeros(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG
    assert store.load("x").sum() == 3
    assert os.listdir(tmp_path) == ["x.tensor"]


@pytest.mark.parametrize("is_durable", [True, False])
def test_new_directories_outlive_a_power_cut_too(
    tmp_path: Path, is_durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, settled = os.fsync, []

    def note(descriptor: int) -> None:
        settled.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    TensorStore(tmp_path / "a" / "b", is_durable=is_durable)
    assert sorted(settled) == ([tmp_path, tmp_path / "a"] if is_durable else [])


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_of_the_system_before_the_rename_leaves_the_old_value(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TensorStore(tmp_path)
    store.save("x", torch.ones(3))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "made up")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match=r"Saving .*x\.tensor failed(.|\n)*dmesg(.|\n)*value from before"):
            store.save("x", torch.zeros(3))
    assert store.load("x").sum() == 3
    assert os.listdir(tmp_path) == ["x.tensor"]


def test_an_error_after_the_rename_does_not_say_that_the_old_value_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TensorStore(tmp_path)
    store.save("x", torch.ones(3))
    honest, calls = os.fsync, []

    def fail_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EIO, "made up")
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(StorageError, match="outlives a power cut failed") as caught:
        store.save("x", torch.zeros(3))
    assert "from before" not in str(caught.value)
    assert store.load("x").sum() == 0
