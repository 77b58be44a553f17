"""What a store holds after the system failed its writer; a second process on it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from op_builder.errors import StorageError
from op_builder.ops import TensorStore
from tests.support.files import mounted


def test_the_file_of_a_living_writer_is_not_removed(tmp_path: Path) -> None:
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


def test_a_full_disk_leaves_the_old_value_and_no_file(tmp_path: Path) -> None:
    small_disk = tmp_path / "small"
    with mounted(small_disk, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        store = TensorStore(small_disk)
        old = torch.arange(1000.0)
        store.save("x", old)
        message = r"Saving .*x\.safetensors failed(.|\n)*Free space(.|\n)*unchanged"
        with pytest.raises(StorageError, match=message) as caught:
            store.save("x", torch.zeros(1 << 20))
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == str(small_disk / "x.safetensors")
        assert os.listdir(small_disk) == ["x.safetensors"]
        assert torch.equal(store.load("x"), old)
        store.save("x", old + 1)
        assert torch.equal(store.load("x"), old + 1)


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
        with pytest.raises(StorageError, match="unchanged"):
            store.save("x", torch.zeros(3))
    assert store.load("x").sum() == 3
    assert os.listdir(tmp_path) == ["x.safetensors"]


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
    with pytest.raises(StorageError, match="power cut") as caught:
        store.save("x", torch.zeros(3))
    assert "old value" not in str(caught.value)
    assert store.load("x").sum() == 0
