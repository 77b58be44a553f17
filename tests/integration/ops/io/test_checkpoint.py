"""Checkpoints of torch.distributed.checkpoint through CheckpointWriter and CheckpointReader."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlan

from op_builder.errors import AccelError, DamagedTensorError, OpArgumentError, StorageError
from op_builder.ops import CheckpointReader, CheckpointWriter, TensorStore
from op_builder.ops.io import checkpoint_files, file_pieces
from op_builder.ops.io.aio_handle import Handle
from tests.support.files import cache_only, mounted, random_bytes, raw
from tests.support.rank_processes import run_ranks, values

PROGRAMS = "checkpoint_programs"
MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")


def save(state: dict[str, Any], path: Path, **options: Any) -> None:
    dcp.save(state, storage_writer=CheckpointWriter(path, **options))


def load(state: dict[str, Any], path: Path) -> dict[str, Any]:
    dcp.load(state, storage_reader=CheckpointReader(path))
    return state


def failure(action: Callable[[], object]) -> BaseException:
    """The error of the only rank."""
    with pytest.raises(CheckpointException) as caught:
        action()
    ((error, _),) = caught.value.failures.values()
    assert isinstance(error, BaseException)
    return error


def data_file(path: Path) -> Path:
    (file,) = (file for file in path.iterdir() if file.name != "checkpoint.safetensors")
    return file


def of_all_kinds() -> dict[str, torch.Tensor]:
    tensors = {
        str(dtype): random_bytes(37, 1, dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint16, torch.complex128)
    }
    whole = torch.randn(40, 50)
    return tensors | {
        "bool": torch.tensor([True, False, True]),
        "empty": torch.empty(0, 3),
        "0-d": torch.tensor(2.5),
        "0-d complex32": torch.tensor(1 + 2j, dtype=torch.complex32),
        "large": torch.randn(3, 1_000_001),
        "transposed": whole.t(),
        "part": whole[3:7, 1:40:2],
        "alias": whole,
        "alias again": whole,
        "conjugate": torch.randn(5, dtype=torch.complex64).conj(),
        "__metadata__": torch.ones(2),
        "name with / and ä": torch.ones(1),
    }


@pytest.mark.parametrize("cached_bytes", [0, 3 * MIB + 5, -1], ids=["not cached", "cached in part", "cached"])
def test_every_kind_of_tensor_comes_back(cached_bytes: int, tmp_path: Path) -> None:
    tensors = of_all_kinds()
    save({"tensors": tensors}, tmp_path)
    cache_only(data_file(tmp_path), cached_bytes)
    loaded = load({"tensors": {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}}, tmp_path)
    for name, tensor in tensors.items():
        assert raw(loaded["tensors"][name].resolve_conj()) == raw(tensor.resolve_conj()), name


def test_other_values_come_back(tmp_path: Path) -> None:
    state = {
        "step": 7,
        "name": "run",
        "rates": [0.1, {"warm": True}],
        "none": None,
        "nested": {"a": {"b": torch.ones(3)}},
    }
    save(state, tmp_path)
    empty = {"step": 0, "name": "", "rates": [0.0, {"warm": False}], "none": 1, "nested": {"a": {"b": torch.zeros(3)}}}
    loaded = load(empty, tmp_path)
    assert loaded["nested"]["a"].pop("b").tolist() == [1, 1, 1]
    assert loaded == {**state, "nested": {"a": {}}}


def test_a_tensor_of_another_type_is_converted(tmp_path: Path) -> None:
    save({"x": torch.arange(6.0)}, tmp_path)
    assert load({"x": torch.zeros(6, dtype=torch.bfloat16)}, tmp_path)["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_autograd_notices_a_load(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    save({"x": weight}, tmp_path)
    loss = (weight * weight).sum()
    load({"x": weight}, tmp_path)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_other_programs_read_the_files(tmp_path: Path) -> None:
    state = {"a": torch.randn(5, 6), "b": torch.randn(7).bfloat16()}
    save(state, tmp_path)
    for name, tensor in load_file(data_file(tmp_path)).items():
        assert torch.equal(tensor, state[name])
    other = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(other, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path)))
    assert all(torch.equal(other[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize(("one", "kind"), [(2, "rows"), (3, "columns"), (1, "replicated")])
def test_shards_go_to_other_ranks(one: int, kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    values(run_ranks(PROGRAMS, "save", one, tmp_path / "save", arguments=[path, kind], by_gloo=True))
    for size, other in ((1, "replicated"), (2, "rows"), (3, "rows"), (2, "columns")):
        directory = tmp_path / f"load {size} {other}"
        values(run_ranks(PROGRAMS, "load", size, directory, arguments=[path, other], by_gloo=True))


def test_fsdp2_resumes_from_an_asynchronous_save_on_other_ranks(tmp_path: Path) -> None:
    def run(size: int, old: str | None, new: str | None) -> list[float]:
        names = [name and str(tmp_path / name) for name in (old, new)]
        directory = tmp_path / f"{size} {old}-{new}"
        results = run_ranks(PROGRAMS, "resume", size, directory, arguments=names, by_gloo=True)
        losses: list[float] = values(results)[0]
        return losses

    losses = run(2, None, "two")
    assert run(1, "two", None) == pytest.approx(losses[3:], rel=1e-4)
    assert run(2, "two", None) == losses[3:]


def test_an_error_of_one_rank_reaches_all(tmp_path: Path) -> None:
    results = run_ranks(PROGRAMS, "failing", 2, tmp_path / "ranks", arguments=[str(tmp_path / "c")], by_gloo=True)
    for errors in values(results):
        assert len(errors) == 1
        assert "OpArgumentError: 'own1' cannot be saved" in errors[0]
        assert "to_dense" in errors[0]


@pytest.mark.parametrize(
    ("step", "seed"), [("writing", 1), ("publishing", 1), ("removing", 2)], ids=lambda value: str(value)
)
def test_ranks_that_are_killed_leave_one_checkpoint(step: str, seed: int, tmp_path: Path) -> None:
    """The old one, of seed 1, or the new one."""
    path = tmp_path / "checkpoint"
    values(run_ranks(PROGRAMS, "save", 2, tmp_path / "save", arguments=[str(path), "rows"], by_gloo=True))
    before = os.listdir(path)
    results = run_ranks(PROGRAMS, "killed", 2, tmp_path / "killed", arguments=[str(path), step])
    assert all(result.status != 0 for result in results)
    values(run_ranks(PROGRAMS, "load", 2, tmp_path / "load", arguments=[str(path), "rows", seed], by_gloo=True))
    assert set(before) < set(os.listdir(path))
    values(run_ranks(PROGRAMS, "save", 2, tmp_path / "save again", arguments=[str(path), "rows"], by_gloo=True))
    assert len(os.listdir(path)) == len(before)


@pytest.mark.parametrize(
    ("call", "number", "value"),
    [("fsync", 0, 1), ("fsync", 1, 1), ("fsync", 2, 1), ("replace", 0, 1), ("fsync", 3, 0)],
    ids=["tensors", "directory before the rename", "contents", "rename", "directory after the rename"],
)
def test_an_error_of_the_system_leaves_one_checkpoint(
    tmp_path: Path, call: str, number: int, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save({"x": torch.ones(1)}, tmp_path)
    honest, calls = getattr(os, call), count()

    def fail(*arguments: Any) -> None:
        if next(calls) == number:
            raise OSError(errno.EIO, "made up")
        honest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert "dmesg" in str(failure(lambda: save({"x": torch.zeros(1)}, tmp_path)))
    assert load({"x": torch.full((1,), 5.0)}, tmp_path)["x"] == value


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as disk:
        save({"x": torch.ones(3)}, disk)
        error = failure(lambda: save({"x": torch.ones(2 * MIB)}, disk))
        assert isinstance(error, StorageError)
        assert error.errno == errno.ENOSPC
        assert "Free space" in str(error)
        assert load({"x": torch.zeros(3)}, disk)["x"].sum() == 3
        assert len(os.listdir(disk)) == 2


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with mounted(tmp_path / "fixed", "-t", "tmpfs", "-o", "ro", "tmpfs") as disk:
        assert "Choose a directory on a file system" in str(failure(lambda: save({"x": torch.ones(3)}, disk / "new")))
        assert "Choose a directory on a file system" in str(failure(lambda: save({"x": torch.ones(3)}, disk)))


def test_an_existing_checkpoint_is_replaced_unless_forbidden(tmp_path: Path) -> None:
    save({"x": torch.ones(3)}, tmp_path)
    error = failure(lambda: save({"x": torch.zeros(3)}, tmp_path, overwrite=False))
    assert isinstance(error, OpArgumentError)
    assert "overwrite" in str(error)
    (tmp_path / "notes.txt").touch()
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    for _ in range(2):
        dcp.save({"y": torch.zeros(3)}, storage_writer=CheckpointWriter(tmp_path), planner=planner)
    assert load({"y": torch.ones(3)}, tmp_path)["y"].sum() == 0
    assert len(os.listdir(tmp_path)) == 3, "the notes and the new checkpoint's two files"


@pytest.mark.parametrize("at", [0, MIB + 5, -1], ids=["first", "second block", "last"])
def test_a_flipped_byte_is_named_with_tensor_and_file(tmp_path: Path, at: int) -> None:
    save({"large": torch.randn(1 << 19), "small": torch.randn(3)}, tmp_path)
    file = data_file(tmp_path)
    content = bytearray(file.read_bytes())
    offset = len(content) - (2 * MIB + 12) + at if at >= 0 else len(content) - 1
    content[offset] ^= 4
    file.write_bytes(content)
    error = failure(lambda: load({"large": torch.zeros(1 << 19), "small": torch.zeros(3)}, tmp_path))
    assert isinstance(error, DamagedTensorError)
    assert f"Tensor {'small' if at < 0 else 'large'!r} of {file}" in str(error)
    assert error.filename == str(file)
    if at < 0:  # what is intact can be loaded
        assert load({"large": torch.zeros(1 << 19)}, tmp_path)["large"].any()


def test_after_an_error_nothing_is_read_into_the_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is slow: the next tensor is in flight when the damage is found."""
    names = ("a", "b")
    save({name: torch.ones(9 * MIB, dtype=torch.uint8) for name in names}, tmp_path)
    file = data_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[-2 * 9 * MIB] ^= 4
    file.write_bytes(content)
    started, ended, second = [], [], threading.Event()
    read = Handle.sync_pread

    def sync_pread(*arguments: Any) -> int:
        started.append(arguments)
        if len(started) == 1:
            second.wait(60)
        else:
            second.set()
            time.sleep(1)
        ended.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(Handle, "sync_pread", sync_pread)
    monkeypatch.setattr(file_pieces, "read_cached", lambda *_: 0)
    state = {name: torch.zeros(9 * MIB, dtype=torch.uint8) for name in names}
    assert isinstance(failure(lambda: load(state, tmp_path)), DamagedTensorError)
    assert len(started) > 1
    assert len(ended) == len(started)


def test_a_truncated_file_is_named_with_the_tensor(tmp_path: Path) -> None:
    save({"x": torch.randn(1000)}, tmp_path)
    file = data_file(tmp_path)
    os.truncate(file, file.stat().st_size - 1)
    error = failure(lambda: load({"x": torch.zeros(1000)}, tmp_path))
    assert isinstance(error, DamagedTensorError)
    assert f"Tensor 'x' of {file}" in str(error)


@pytest.mark.parametrize(
    "change",
    [lambda content: content[:-2] + b"xx", lambda _: b"", lambda content: content[:100], lambda content: content[:-1]],
    ids=["flipped", "empty", "cut in the header", "cut"],
)
def test_damaged_contents_are_an_error(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    save({"x": torch.randn(10)}, tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(change(file.read_bytes()))
    error = failure(lambda: load({"x": torch.zeros(10)}, tmp_path))
    assert isinstance(error, DamagedTensorError)
    assert str(file) in error.message
    assert "earlier checkpoint" in error.remedy
    save({"x": torch.ones(10)}, tmp_path)
    assert load({"x": torch.zeros(10)}, tmp_path)["x"].sum() == 10


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1}'])
def test_contents_of_another_program_are_an_error(text: str, tmp_path: Path) -> None:
    body = torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8) if text else torch.ones(3)
    TensorStore(tmp_path).save("checkpoint", body)
    error = failure(lambda: load({"x": torch.zeros(10)}, tmp_path))
    assert isinstance(error, DamagedTensorError)
    assert "another program" in error.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    save({"x": torch.randn(10)}, tmp_path)
    file = data_file(tmp_path)
    file.unlink()
    error = failure(lambda: load({"x": torch.zeros(10)}, tmp_path))
    assert isinstance(error, StorageError)
    assert f"{file} is missing" in str(error)


def test_a_load_that_a_save_overtakes_is_to_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = checkpoint_files.read_parts

    def after_a_save(*arguments: Any) -> None:
        monkeypatch.undo()
        save({"x": torch.ones(10)}, tmp_path)
        honest(*arguments)

    save({"x": torch.zeros(10)}, tmp_path)
    monkeypatch.setattr(checkpoint_files, "read_parts", after_a_save)
    error = failure(lambda: load({"x": torch.zeros(10)}, tmp_path))
    assert isinstance(error, StorageError)
    assert "is missing" in error.message
    assert "Load again" in str(error)
    assert load({"x": torch.zeros(10)}, tmp_path)["x"].sum() == 10


def test_ranks_that_find_different_checkpoints_load_neither(tmp_path: Path) -> None:
    plans = []
    for value in range(2):
        save({"x": torch.full((1,), value)}, tmp_path)
        reader = CheckpointReader(tmp_path)
        reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    assert reader.prepare_global_plan([plans[1]] * 2) == [plans[1]] * 2
    with pytest.raises(StorageError, match="different checkpoints for different ranks"):
        reader.prepare_global_plan(plans)


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    torchs = tmp_path / "torchs"
    dcp.save({"x": torch.ones(1)}, storage_writer=dcp.FileSystemWriter(torchs))
    others = tmp_path / "others"
    others.mkdir()
    save_file({"x": torch.ones(1)}, others / "model.safetensors")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / f"{0:016x}-00000.safetensors").touch()
    for path, word, number in (
        (tmp_path / "missing", "does not exist", errno.ENOENT),
        (file, "is a file", errno.EINVAL),
        (torchs, "FileSystemReader", errno.EINVAL),
        (others, "HuggingFaceStorageReader", errno.EINVAL),
        (unfinished, "did not end", errno.ENOENT),
        (tmp_path, "no checkpoint", errno.ENOENT),
    ):
        error = failure(lambda path=path: load({"x": torch.zeros(1)}, path))  # type: ignore[misc]
        assert isinstance(error, StorageError)
        assert error.errno == number
        assert str(path) in str(error)
        assert word in str(error)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("owner", "step"),
    [(CheckpointWriter, "write_data"), (CheckpointWriter, "finish"), (checkpoint_files, "save_contents")],
)
def test_a_save_that_begins_and_ends_during_another_disturbs_it_at_no_step(
    owner: Any, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(owner, step)

    def after_another_save(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.undo()
        save({"x": torch.ones(1)}, tmp_path)
        return honest(*arguments, **keywords)

    save({"x": torch.zeros(1)}, tmp_path)
    monkeypatch.setattr(owner, step, after_another_save)
    save({"x": torch.full((1,), 2.0)}, tmp_path)
    assert load({"x": torch.zeros(1)}, tmp_path)["x"] == 2
    assert len(os.listdir(tmp_path)) == 2


def test_a_save_that_ends_during_another_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = CheckpointWriter.finish
    finishes: list[Callable[[], None]] = []

    def collect(writer: CheckpointWriter, **arguments: Any) -> None:
        finishes.append(partial(finish, writer, **arguments))
        if len(finishes) == 1:
            save({"x": torch.ones(1)}, tmp_path)
        else:
            for one in finishes:
                one()

    monkeypatch.setattr(CheckpointWriter, "finish", collect)
    save({"x": torch.zeros(1)}, tmp_path)
    assert load({"x": torch.zeros(1)}, tmp_path)["x"] == 1
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("is_pickled", [False, True])
@pytest.mark.parametrize("other", ["", "other"])
def test_saves_by_one_writer_at_the_same_time_are_both_complete(other: str, is_pickled: bool, tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Waiting(dcp.DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Any:
            begun.set()
            assert may_end.wait(600)
            return super().resolve_data(write_item)

    writer = CheckpointWriter(tmp_path / "default")
    if is_pickled:
        writer = pickle.loads(pickle.dumps(writer))
    first = dcp.async_save({"x": torch.zeros(1)}, storage_writer=writer, checkpoint_id=tmp_path, planner=Waiting())
    assert begun.wait(600)
    dcp.async_save({"x": torch.ones(1)}, storage_writer=writer, checkpoint_id=tmp_path / other).result()
    assert load({"x": torch.full((1,), 9.0)}, tmp_path / other)["x"] == 1
    may_end.set()
    first.result()
    assert load({"x": torch.full((1,), 9.0)}, tmp_path)["x"] == 0
    assert load({"x": torch.full((1,), 9.0)}, tmp_path / other)["x"] == (1 if other else 0)
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 2


def test_what_cannot_be_removed_after_a_save_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"x": torch.zeros(1)}, tmp_path)
    publish = checkpoint_files.save_contents

    def then_the_directory_cannot_be_listed(*arguments: Any) -> None:
        publish(*arguments)
        monkeypatch.setattr(os, "listdir", Mock(side_effect=OSError(errno.EIO, "I/O error")))

    monkeypatch.setattr(checkpoint_files, "save_contents", then_the_directory_cannot_be_listed)
    save({"x": torch.ones(1)}, tmp_path)
    monkeypatch.undo()
    assert load({"x": torch.zeros(1)}, tmp_path)["x"] == 1


def test_a_failed_save_forbids_no_other_one(tmp_path: Path) -> None:
    """Its writer cannot know that it failed: the files of its ranks stay until its next save, others' are removed."""

    class Failing(dcp.DefaultSavePlanner):
        def finish_plan(self, _: Any) -> Any:
            raise ValueError

    left = tmp_path / f"{0:016x}-00001.safetensors"
    left.touch()
    writer = CheckpointWriter(tmp_path)
    failure(lambda: dcp.save({"x": torch.ones(1)}, storage_writer=writer, planner=Failing()))
    assert not left.exists(), "of a save that was killed before"
    left.touch()
    for _ in range(2):
        save({"x": torch.ones(1)}, tmp_path)
    assert left.exists()
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".safetensors"]) == 3
    dcp.save({"x": torch.ones(1)}, storage_writer=writer)
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("path", ["", "s3://bucket/x", Path("gs://bucket/x")])
def test_what_is_not_the_path_of_a_directory_is_refused(
    path: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for storage in (CheckpointWriter, CheckpointReader):
        assert not storage.validate_checkpoint_id(path)
        with pytest.raises(OpArgumentError, match="mounted"):
            storage(path)
    with pytest.raises(OpArgumentError, match="mounted"):
        dcp.save({"x": torch.ones(1)}, storage_writer=CheckpointWriter("a"), checkpoint_id=path)
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("path", "remedy"),
    [("file", "Choose another path"), ("link", "Choose another path"), ("file/x", "part"), ("taken", "Move")],
)
def test_a_path_that_is_taken_is_an_error_with_a_remedy(path: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("missing")
    (tmp_path / "taken" / "checkpoint.safetensors").mkdir(parents=True)
    error = failure(lambda: save({"x": torch.ones(1)}, tmp_path / path))
    assert isinstance(error, StorageError)
    assert remedy in error.remedy


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    save({"x": torch.ones(2)}, tmp_path)
    assert "x" in str(failure(lambda: load({"x": torch.ones(3)}, tmp_path)))
    assert "y" in str(failure(lambda: load({"y": torch.ones(3)}, tmp_path)))
    assert "to_dense" in str(failure(lambda: save({"x": torch.ones(2).to_sparse()}, tmp_path)))
    with pytest.raises(OpArgumentError, match="use_collectives"):
        dcp.save({}, storage_writer=CheckpointWriter(tmp_path), use_collectives=False)
    assert load({"x": torch.zeros(2)}, tmp_path)["x"].sum() == 2


@pytest.mark.parametrize(
    "error",
    [
        StorageError("message", "remedy", errno=28, filename="file", offset=3, bytes_done=4),
        DamagedTensorError("message", "remedy", filename="file"),
        OpArgumentError("message", "remedy"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_between_ranks(error: AccelError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert getattr(copy, "errno", None) == getattr(error, "errno", None)
    assert getattr(copy, "filename", None) == getattr(error, "filename", None)
