"""What a store holds after the system failed its writer; a second process on it."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("call", "number", "value", "words"),
    [("fsync", 0, 1, "unchanged"), ("replace", 0, 1, "unchanged"), ("fsync", 1, 0, "power cut")],
    ids=["before the rename", "rename", "after the rename"],
)
def test_an_error_of_the_system_names_the_value_that_is_left(
    tmp_path: Path, call: str, number: int, value: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TensorStore(tmp_path)
    store.save("x", torch.ones(1))
    honest, calls = getattr(os, call), count()

    def fail(*arguments: Any) -> None:
        if next(calls) == number:
            raise OSError(errno.EIO, "made up")
        honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StorageError, match=words) as caught:
            store.save("x", torch.zeros(1))
    assert ("unchanged" in str(caught.value)) == bool(value)
    assert store.load("x") == value
    assert os.listdir(tmp_path) == ["x.safetensors"]
