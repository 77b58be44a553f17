"""Tensors in and out of a store, also in the background; what it reports of bad arguments and bad files."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder.errors import (
    DamagedTensorError,
    IncompatibleOpError,
    OpArgumentError,
    StorageError,
    TensorNotFoundError,
)
from op_builder.ops import TensorStore
from op_builder.ops.io import file_pieces
from op_builder.ops.io.tensor_store_format import HEADER_BYTES
from tests.support.files import fake_tensor, random_bytes, raw
from tests.support.foreign_package import output_of
from tests.support.processes import fork, wait_for
from tests.support.threads import in_threads
from tests.support.waiting import wait_until

PIECE = 1 << 16


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TensorStore]:
    """A store that transfers even small tensors in several pieces."""
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", PIECE)
    with TensorStore(tmp_path / "store") as store:
        yield store


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds a transfer by ``progress=lambda *_: gate.wait(600)``."""
    event = threading.Event()
    yield event
    event.set()


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether type, shape and bytes are equal."""
    return one.dtype == other.dtype and one.shape == other.shape and raw(one) == raw(other)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, 3 << 20])
def test_every_size_comes_back_in_new_and_in_given_memory(store: TensorStore, size: int) -> None:
    value = random_bytes(size)
    store.save("x", value)
    out = torch.zeros(size + 3, dtype=torch.uint8)[1 : size + 1]
    assert store.load("x", out) is out
    assert same(out, value)
    assert same(store.load("x"), value)
    assert (store.directory / "x.safetensors").stat().st_size == HEADER_BYTES + size


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(()),
        torch.randn(3, 0, 2),
        torch.randn(7, 5).t(),
        torch.randn(40)[::3],
        torch.randn(4, 1).expand(4, 6),
        torch.randn(6, dtype=torch.complex64).conj(),
        torch.randn(6, dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(torch.randn(4)),
        (torch.randn(4, requires_grad=True) * 2),
    ],
    ids=["scalar", "empty", "transposed", "strided", "expanded", "conj", "neg", "parameter", "with graph"],
)
def test_tensors_are_stored_as_their_values(store: TensorStore, value: torch.Tensor) -> None:
    store.save("x", value)
    loaded = store.load("x")
    assert same(loaded, value.detach().resolve_conj().resolve_neg())
    assert not loaded.requires_grad
    assert store.info("x").shape == value.shape


def test_autograd_notices_a_load_into_a_parameter(store: TensorStore) -> None:
    value = torch.randn(3, 4)
    store.save("x", value)
    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    loss = (parameter * parameter).sum()
    store.load("x", parameter)
    assert torch.equal(parameter, value)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


def test_tensors_can_be_listed_and_deleted(store: TensorStore) -> None:
    for name in ("b", "a.weight", "C-3_x"):
        store.save(name, torch.ones(2))
    (store.directory / "notes.txt").touch()
    assert store.names() == list(store) == ["C-3_x", "a.weight", "b"]
    assert len(store) == 3
    assert "b" in store
    assert "../b" not in store
    assert 3 not in store
    store.delete("b")
    assert "b" not in store
    with pytest.raises(TensorNotFoundError, match="no tensor 'b'"):
        store.delete("b")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "-x", "a\0", "a\n", "ä", "x" * 201, "__metadata__", 3, None],
    ids=ascii,
)
def test_a_name_that_could_leave_the_directory_is_refused(store: TensorStore, name: object) -> None:
    for call in (
        lambda: store.save(name, torch.ones(1)),
        lambda: store.save_async(name, torch.ones(1)),
        lambda: store.load(name),
        lambda: store.load_async(name),
        lambda: store.delete(name),
        lambda: store.info(name),
    ):
        with pytest.raises(OpArgumentError, match="cannot be stored under the name"):
            call()
    assert os.listdir(store.directory) == []


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [1.0], "of type list"),
        (lambda: torch.ones(2, device="meta"), "meta tensor has no values"),
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.nested.nested_tensor([torch.ones(2)]), "is nested"),
        (fake_tensor, "FakeTensor without memory of its own"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8"),
    ],
    ids=["list", "meta", "sparse", "nested", "fake", "quantized"],
)
def test_a_tensor_whose_bytes_are_not_all_of_it_is_refused(
    store: TensorStore, make: Callable[[], torch.Tensor], message: str
) -> None:
    with pytest.raises(OpArgumentError, match=message):
        store.save("x", make())
    assert os.listdir(store.directory) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3),
        lambda: torch.zeros(2, 2),
        lambda: torch.zeros(4, dtype=torch.float64),
        lambda: torch.zeros(1).expand(4),
        lambda: [1],
        fake_tensor,
    ],
    ids=["size", "shape", "type", "expanded", "list", "fake"],
)
def test_an_out_that_does_not_fit_is_refused_untouched(store: TensorStore, make: Callable[[], torch.Tensor]) -> None:
    out = make()
    store.save("x", torch.ones(4))
    with pytest.raises(OpArgumentError, match="out"):
        store.load("x", out)
    assert type(out) is not torch.Tensor or not out.any()


@pytest.mark.parametrize(
    ("size", "stride", "is_refused"),
    [
        ((2, 2), (1, 1), True),
        ((3, 4), (4, 2), True),
        ((2, 3), (1, 2), False),
        ((2, 3, 2), (2, 4, 1), False),
        ((0, 3), (0, 0), False),
    ],
)
def test_an_out_may_have_any_strides_unless_elements_share_memory(
    store: TensorStore, size: tuple[int, ...], stride: tuple[int, ...], is_refused: bool
) -> None:
    value = torch.randn(size)
    store.save("x", value)
    out = torch.zeros(20).as_strided(size, stride)
    if is_refused:
        with pytest.raises(OpArgumentError, match="memory for each element"):
            store.load("x", out)
        assert not out.any()
    else:
        assert store.load("x", out) is out
        assert torch.equal(out, value)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"aio": aio} for aio in ({"blocksize": 3}, {"queue_depth": 0}, {"engine": "quick"})),
        *({"threads": threads} for threads in (0, 1.5, True, "2")),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_at_once(tmp_path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(OpArgumentError):
        TensorStore(tmp_path / "store", **arguments)
    assert not (tmp_path / "store").exists()


def test_a_missing_tensor_is_named_with_near_matches(store: TensorStore) -> None:
    store.save("layer.weight", torch.ones(1))
    with pytest.raises(TensorNotFoundError, match=r"Did you mean layer\.weight"):
        store.load("layer.weigth")
    with pytest.raises(KeyError):
        store.load_async("nothing").result()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/store"):
        TensorStore(tmp_path / "file" / "store")


# Damage ----------------------------------------------------------------------------------------


def test_a_named_pipe_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    os.mkfifo(tmp_path / "x.safetensors")
    for read in (store.load, store.info):
        with pytest.raises(StorageError, match=r"x\.safetensors"):
            read("x")


@pytest.mark.parametrize("byte", [0, 25, HEADER_BYTES, HEADER_BYTES + PIECE + 17, -1])
def test_one_changed_bit_is_an_error_that_names_the_file(store: TensorStore, byte: int) -> None:
    store.save("x", random_bytes(2 * PIECE + 100))
    path = store.directory / "x.safetensors"
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedTensorError, match="Save the tensor again") as caught:
        store.load("x")
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + 99, HEADER_BYTES + 101])
def test_a_file_that_was_truncated_or_grew_is_an_error(store: TensorStore, size: int) -> None:
    store.save("x", random_bytes(100))
    os.truncate(store.directory / "x.safetensors", size)
    with pytest.raises(DamagedTensorError, match=r"x\.safetensors"):
        store.load("x")
    with pytest.raises(DamagedTensorError):
        store.info("x")


def test_a_file_that_is_truncated_while_it_is_read_is_an_error_that_names_it(store: TensorStore) -> None:
    store.save("x", random_bytes(100 * PIECE))
    path = store.directory / "x.safetensors"
    with pytest.raises(StorageError, match=r"Loading .*x\.safetensors failed") as caught:
        store.load("x", progress=lambda *_: os.truncate(path, HEADER_BYTES + PIECE))
    assert caught.value.filename == str(path)


def test_a_reader_keeps_the_value_that_is_replaced_while_it_reads(store: TensorStore) -> None:
    old, new = random_bytes(4 * PIECE), random_bytes(4 * PIECE, seed=1)
    other = TensorStore(store.directory)
    store.save("x", old)
    assert same(store.load("x", progress=lambda _done, _total: other.save("x", new)), old)
    assert same(store.load("x"), new)


# Progress and the background -------------------------------------------------------------------


def test_progress_is_reported_up_to_the_end(store: TensorStore) -> None:
    size = 2 * PIECE + 7
    steps: list[tuple[int, int]] = []
    expected = [(PIECE, size), (2 * PIECE, size), (size, size)]
    store.save("x", random_bytes(size), progress=lambda *step: steps.append(step))
    assert steps == expected
    steps.clear()
    store.load_async("x", progress=lambda *step: steps.append(step)).result()
    assert steps == expected
    store.save("empty", torch.ones(0), progress=lambda *step: steps.append(step))
    assert steps[-1] == (0, 0)


def test_an_exception_in_progress_ends_the_save_and_keeps_the_old_value(store: TensorStore) -> None:
    store.save("x", torch.ones(3))

    def interrupted(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save("x", random_bytes(3 * PIECE), progress=interrupted)
    assert store.load("x").sum() == 3
    assert os.listdir(store.directory) == ["x.safetensors"]


def test_requests_for_one_name_are_done_in_their_order(tmp_path: Path) -> None:
    with TensorStore(tmp_path, threads=4) as store:
        loads: list[Future[torch.Tensor]] = []
        for number in range(30):
            store.save_async("x", torch.full((50_000,), number))
            loads.append(store.load_async("x"))
        assert [int(load.result()[-1]) for load in loads] == list(range(30))
        store.save_async("x", torch.ones(1))
        store.delete("x")
        assert "x" not in store


def test_a_tensor_that_is_not_contiguous_is_copied_at_once(tmp_path: Path, gate: threading.Event) -> None:
    with TensorStore(tmp_path, threads=1) as store:
        store.save_async("first", torch.ones(1), progress=lambda *_: gate.wait(600))
        value = torch.ones(4, 6).t()
        store.save_async("x", value)
        value.zero_()
        gate.set()
        assert store.load("x").sum() == 24


def test_a_future_that_is_done_keeps_no_tensor(tmp_path: Path) -> None:
    with TensorStore(tmp_path) as store:
        tensor = torch.ones(1)
        memory = weakref.ref(tensor.untyped_storage())
        future = store.save_async("x", tensor)
        del tensor
        store.wait()
        assert future.done()
        wait_until(lambda: memory() is None)
        assert not future.cancel()


def test_failures_that_no_future_has_reported_are_raised_by_wait_and_close(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    for name in ("a", "b", "c"):
        store.load_async(name)
    with pytest.raises(TensorNotFoundError) as caught:
        store.wait()
    failures = [caught.value, *caught.value.others]
    assert sorted(str(error).partition("no tensor ")[2][:3] for error in failures) == ["'a'", "'b'", "'c'"]
    store.wait()  # each is reported once
    with pytest.raises(TensorNotFoundError):
        store.load_async("missing").result()
    store.wait()
    store.load_async("missing")
    with pytest.raises(TensorNotFoundError):
        store.close()
    with pytest.raises(OpArgumentError, match="closed"):
        store.save("x", torch.ones(1))


def test_a_save_for_which_no_thread_starts_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    store = TensorStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            store.save_async("x", torch.ones(3))
    store.save_async("x", torch.zeros(3)).result()
    store.close()
    with pytest.raises(OpArgumentError, match="closed"):
        store.save_async("x", torch.ones(3))
    assert not TensorStore(tmp_path).load("x").any()


def test_an_op_that_cannot_be_loaded_is_the_only_error_shown(
    store: TensorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise IncompatibleOpError("No compiler was found.", "Install g++.")

    monkeypatch.setattr(file_pieces, "load_host", refuse)
    with pytest.raises(IncompatibleOpError, match="No compiler") as caught:
        store.save("x", random_bytes(4 * PIECE))
    assert caught.value.__context__ is None
    assert store.names() == []


def test_many_threads_share_a_store(store: TensorStore) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            value = torch.full((20_000,), number * 100 + turn)
            store.save(f"own-{number}", value)
            store.save_async("shared", value)
            assert same(store.load(f"own-{number}"), value)
            shared = store.load("shared")
            assert (shared == shared[0]).all()

    in_threads(6, work)
    assert len(store) == 7


def test_what_was_begun_is_done_when_python_ends(tmp_path: Path) -> None:
    code = """
import sys, torch
from op_builder.ops import TensorStore
store = TensorStore(sys.argv[1], threads=2, is_durable=False)
for number in range(30):
    store.save_async("x", torch.full((1000,), number))
    store.save_async(f"y-{number}", torch.full((1000,), number))
"""
    output_of("-c", code, tmp_path)
    store = TensorStore(tmp_path)
    assert store.load("x")[0] == 29
    assert len(store) == 31


def test_a_thread_that_outlives_the_program_loads(tmp_path: Path) -> None:
    code = """
import sys, threading, torch
from op_builder.ops import TensorStore, load_safetensors
main = threading.main_thread()
store = TensorStore(sys.argv[1])
store.save("x", torch.arange(20_000_000))
def load():
    main.join()
    for found in (store.load("x"), load_safetensors(store.directory / "x.safetensors")["x"]):
        print(found.equal(torch.arange(20_000_000)))
threading.Thread(target=load).start()
"""
    assert output_of("-c", code, tmp_path).split() == ["True", "True"]


@pytest.mark.parametrize("threads", [1, 2])
def test_callbacks_of_futures_may_use_the_store_and_wait(tmp_path: Path, gate: threading.Event, threads: int) -> None:
    found: list[float] = []
    done = threading.Semaphore(0)

    def use(store: TensorStore, name: str) -> None:
        found.append(store.load(name).item())
        found.append(store.load_async(name).result(timeout=600).item())
        store.wait()
        done.release()

    store = TensorStore(tmp_path, threads=threads)
    store.save("x", torch.ones(1))
    # More callbacks than threads, and each waits for what comes after its own.
    for _ in range(4):
        future = store.load_async("x", progress=lambda *_: gate.wait(600))
        future.add_done_callback(lambda _: use(store, "y"))
    store.save_async("y", torch.full((1,), 7.0))
    gate.set()
    assert all(done.acquire(timeout=600) for _ in range(4))
    assert found == [7.0] * 8
    store.close()


@pytest.mark.parametrize("is_background", [False, True], ids=["at once", "in the background"])
def test_progress_that_waits_for_its_own_store_is_refused(tmp_path: Path, is_background: bool) -> None:
    store = TensorStore(tmp_path, threads=1)
    for name in ("x", "other"):
        store.save(name, torch.ones(3))

    def save(progress: Callable[[int, int], object]) -> None:
        if is_background:
            store.save_async("x", torch.zeros(3), progress=progress).result(timeout=600)
        else:
            store.save("x", torch.zeros(3), progress=progress)

    for waiting in (
        lambda: store.wait(),
        lambda: store.close(),
        lambda: store.load("x"),
        lambda: store.load("other"),
        lambda: store.delete("other"),
        lambda: store.load_async("x").result(),
    ):
        with pytest.raises(OpArgumentError, match="would wait for itself"):
            save(lambda *_, wait=waiting: wait())
        store.wait()
        assert store.load("x").sum() == store.load("other").sum() == 3
    store.close()


def test_a_fork_can_use_the_store_and_does_not_wait_for_its_parents_work(tmp_path: Path, gate: threading.Event) -> None:
    store = TensorStore(tmp_path)
    store.save_async("y", torch.ones(4)).result()
    store.save_async("x", torch.ones(1000), progress=lambda *_: gate.wait(600))

    def use() -> None:
        store.wait()
        assert store.load_async("y").result(timeout=600).sum() == 4
        store.close()

    assert wait_for([fork(use)]) == [0]
    gate.set()
    store.close()
    assert TensorStore(tmp_path).load("x").sum() == 1000


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)], ids=["inference", "autocast"]
)
def test_the_background_has_the_thread_local_state_of_the_caller(
    store: TensorStore, gate: threading.Event, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    def state(*_: object) -> None:
        gate.wait(600)
        states = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"))
        seen.append((*states, torch.get_default_device()))

    seen: list[object] = []
    value = random_bytes(24, dtype=torch.float32)
    with mode():
        store.save_async("x", value, progress=state)
        out = torch.zeros(48, device="cpu")[::2]
        into = store.load_async("x", out, progress=state)
        new = store.load_async("x", progress=state)
        new.add_done_callback(state)
        gate.set()
        assert same(into.result(), value)
        assert same(new.result(), value)
        store.wait()
        state()
    assert len(set(seen)) == 1
    assert out.is_inference() == (mode is torch.inference_mode)


def test_the_op_is_used_again_once_it_can_be_loaded(store: TensorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files could not be opened for a moment: too many were open."""
    value = random_bytes(3 * PIECE)
    store.save("x", value)
    monkeypatch.setattr(file_pieces, "SMALL_BYTES", 0)
    loads: list[bool] = []
    load_host = file_pieces.load_host

    def failing(spec: Any) -> object:
        loads.append(True)
        if len(loads) == 1:
            raise IncompatibleOpError("Too many open files.", "Close some.")
        return load_host(spec)

    monkeypatch.setattr(file_pieces, "load_host", failing)
    monkeypatch.setattr(file_pieces, "_PLAIN_S", 0.0)
    handles = file_pieces.Handles()
    out = torch.zeros_like(value)
    with (store.directory / "x.safetensors").open("rb") as file:
        for _ in range(2):
            handles.read(out, file.fileno(), HEADER_BYTES)
            assert same(out, value)
    assert len(loads) == 2
