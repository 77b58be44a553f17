"""Tensors in and out of a store, in the background too; what it says of bad arguments and bad files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from op_builder.errors import DamagedTensorError, OpArgumentError, StorageError, TensorNotFoundError
from op_builder.ops import TensorStore
from op_builder.ops.io import tensor_store_transfer
from op_builder.ops.io.tensor_store_format import DTYPES, HEADER_BYTES
from op_builder.ops.io.tensor_store_queue import StoreQueue

PIECE = 1 << 16


def fake_tensor() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(4)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TensorStore]:
    """A store whose transfers have several pieces also with small tensors."""
    monkeypatch.setattr(tensor_store_transfer, "_PIECE_BYTES", PIECE)
    with TensorStore(tmp_path / "store") as store:
        yield store


def random_bytes(size: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(0, 256, (size * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether type, shape and bytes are the same; a NaN is."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", sorted(set(DTYPES.values()), key=str), ids=str)
def test_every_type_comes_back_with_every_byte(store: TensorStore, dtype: torch.dtype) -> None:
    value = torch.tensor([True, False, True]) if dtype == torch.bool else random_bytes(37, dtype)
    store.save("x", value)
    assert same(store.load("x"), value)
    assert store.info("x").dtype == dtype


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5, 3 << 20])
def test_every_size_comes_back_in_new_and_in_given_memory(store: TensorStore, size: int) -> None:
    value = random_bytes(size)
    store.save("x", value)
    out = torch.zeros(size + 3, dtype=torch.uint8)[1 : size + 1]
    assert store.load("x", out) is out
    assert same(out, value)
    assert same(store.load("x"), value)
    assert (store.directory / "x.tensor").stat().st_size == HEADER_BYTES + size


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (2, 3, 5)], ids=str)
def test_every_shape_comes_back(store: TensorStore, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape)
    store.save("x", value)
    assert same(store.load("x"), value)
    assert store.info("x").shape == shape


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(7, 5).t(),
        torch.randn(40)[::3],
        torch.randn(4, 1).expand(4, 6),
        torch.randn(6, dtype=torch.complex64).conj(),
        torch.randn(6, dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(torch.randn(4)),
        (torch.randn(4, requires_grad=True) * 2),
    ],
    ids=["transposed", "strided", "expanded", "conj", "neg", "parameter", "with graph"],
)
def test_what_is_not_plain_memory_is_stored_as_its_values(store: TensorStore, value: torch.Tensor) -> None:
    store.save("x", value)
    loaded = store.load("x")
    assert same(loaded, value.detach().resolve_conj().resolve_neg())
    assert not loaded.requires_grad


def test_out_may_be_strided_or_a_parameter(store: TensorStore) -> None:
    value = torch.randn(3, 4)
    store.save("x", value)
    transposed = torch.zeros(4, 3).t()
    assert store.load("x", transposed) is transposed
    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    version = parameter._version
    store.load("x", parameter)
    assert torch.equal(transposed, value)
    assert torch.equal(parameter, value)
    assert parameter._version > version  # or a backward pass would not know


def test_a_name_holds_the_last_value_saved(store: TensorStore) -> None:
    for size in (PIECE * 2, 5, 0, 100):
        store.save("x", random_bytes(size))
        last = torch.full((size,), size % 256, dtype=torch.uint8)
        store.save("x", last)
        assert same(store.load("x"), last)
    assert os.listdir(store.directory) == ["x.tensor"]


def test_what_is_there_can_be_listed_and_deleted(store: TensorStore) -> None:
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
    "name", ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "-x", "a\0", "a\n", "ä", "x" * 201, 3, None]
)
def test_a_name_that_could_leave_the_directory_is_refused(store: TensorStore, name: object) -> None:
    for act in (
        lambda: store.save(name, torch.ones(1)),
        lambda: store.save_async(name, torch.ones(1)),
        lambda: store.load(name),
        lambda: store.load_async(name),
        lambda: store.delete(name),
        lambda: store.info(name),
    ):
        with pytest.raises(OpArgumentError, match="no name of a tensor"):
            act()
    assert os.listdir(store.directory) == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([1.0], "list is no tensor"),
        (torch.ones(2, device="meta"), "meta tensor has no values"),
        (torch.eye(3).to_sparse(), "sparse"),
        (fake_tensor(), "FakeTensor without memory of its own"),
    ],
    ids=["list", "meta", "sparse", "fake"],
)
def test_what_has_no_bytes_is_refused(store: TensorStore, value: object, told: str) -> None:
    with pytest.raises(OpArgumentError, match=told):
        store.save("x", value)
    assert os.listdir(store.directory) == []


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused_as_its_bytes_are_not_all_of_it(store: TensorStore) -> None:
    with pytest.raises(OpArgumentError, match="qint8"):
        store.save("x", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


@pytest.mark.parametrize(
    "out",
    [torch.zeros(3), torch.zeros(2, 2), torch.zeros(4, dtype=torch.float64), torch.zeros(1).expand(4)],
    ids=["size", "shape", "type", "expanded"],
)
def test_an_out_that_does_not_fit_is_refused_untouched(store: TensorStore, out: torch.Tensor) -> None:
    store.save("x", torch.ones(4))
    with pytest.raises(OpArgumentError, match="out"):
        store.load("x", out)
    assert not out.any()


@pytest.mark.parametrize("out", [[1], 3, fake_tensor()], ids=["list", "int", "fake"])
def test_an_out_that_is_no_memory_is_refused(store: TensorStore, out: object) -> None:
    store.save("x", torch.ones(4))
    with pytest.raises(OpArgumentError, match="out is a"):
        store.load("x", out)


@pytest.mark.parametrize(
    ("size", "stride"), [((2, 2), (1, 1)), ((2, 2), (2, 2)), ((3, 2), (2, 2)), ((2, 3, 2), (3, 1, 3)), ((3, 4), (4, 2))]
)
def test_an_out_whose_elements_share_memory_is_refused(
    store: TensorStore, size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    store.save("x", torch.arange(float(torch.Size(size).numel())).view(size))
    out = torch.zeros(20).as_strided(size, stride)
    with pytest.raises(OpArgumentError, match="memory for each element"):
        store.load("x", out)
    assert not out.any()


@pytest.mark.parametrize(
    ("size", "stride"), [((2, 3), (3, 1)), ((2, 3), (1, 2)), ((1, 3), (0, 2)), ((2, 3, 2), (2, 4, 1)), ((0, 3), (0, 0))]
)
def test_an_out_may_have_any_strides_without_that(
    store: TensorStore, size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    value = torch.randn(size)
    store.save("x", value)
    assert torch.equal(store.load("x", torch.zeros(20).as_strided(size, stride)), value)


@pytest.mark.parametrize("aio", [{"blocksize": 3}, {"queue_depth": 0}, {"engine": "quick"}], ids=str)
def test_settings_that_no_handle_takes_are_refused_at_once(tmp_path: Path, aio: dict[str, object]) -> None:
    with pytest.raises(OpArgumentError):
        TensorStore(tmp_path / "store", aio=aio)
    assert not (tmp_path / "store").exists()


def test_a_missing_tensor_is_named_with_those_near_to_it(store: TensorStore) -> None:
    store.save("layer.weight", torch.ones(1))
    with pytest.raises(TensorNotFoundError, match=r"layer\.weigth(.|\n)*Did you mean layer\.weight\?"):
        store.load("layer.weigth")
    with pytest.raises(KeyError):
        store.load_async("nothing").result()


# Damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", [0, 25, HEADER_BYTES, HEADER_BYTES + PIECE + 17, -1])
def test_one_changed_bit_is_an_error_that_names_the_file(store: TensorStore, byte: int) -> None:
    store.save("x", random_bytes(2 * PIECE + 100))
    path = store.directory / "x.tensor"
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedTensorError, match=r"x\.tensor(.|\n)*Remedy: Save the tensor again") as caught:
        store.load("x")
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, HEADER_BYTES + 99, HEADER_BYTES + 101])
def test_a_file_that_was_cut_or_grew_is_an_error(store: TensorStore, size: int) -> None:
    store.save("x", random_bytes(100))
    os.truncate(store.directory / "x.tensor", size)
    with pytest.raises(DamagedTensorError, match=r"x\.tensor"):
        store.load("x")
    with pytest.raises(DamagedTensorError):
        store.info("x")


def test_a_file_that_is_cut_while_it_is_read_is_an_error(store: TensorStore) -> None:
    store.save("x", random_bytes(4 * PIECE))

    def cut(_done: int, _total: int) -> None:
        os.truncate(store.directory / "x.tensor", HEADER_BYTES + PIECE)

    with pytest.raises(StorageError, match=r"Loading .*x\.tensor failed") as caught:
        store.load("x", progress=cut)
    assert caught.value.filename == str(store.directory / "x.tensor")
    store.save("x", torch.ones(3))
    assert store.load("x").sum() == 3


def test_a_reader_keeps_the_value_that_is_replaced_while_it_reads(store: TensorStore) -> None:
    old, new = random_bytes(4 * PIECE), random_bytes(4 * PIECE)
    other = TensorStore(store.directory)
    store.save("x", old)
    assert same(store.load("x", progress=lambda _done, _total: other.save("x", new)), old)
    assert same(store.load("x"), new)


# Progress and the background -------------------------------------------------------------------


def test_progress_is_told_up_to_the_end(store: TensorStore) -> None:
    size = 2 * PIECE + 7
    told: list[tuple[int, int]] = []
    expected = [(PIECE, size), (2 * PIECE, size), (size, size)]
    store.save("x", random_bytes(size), progress=lambda *step: told.append(step))
    assert told == expected
    told.clear()
    store.load_async("x", progress=lambda *step: told.append(step)).result()
    assert told == expected
    store.save("empty", torch.ones(0), progress=lambda *step: told.append(step))
    assert told[-1] == (0, 0)


def test_what_progress_raises_ends_the_saving_and_keeps_the_old_value(store: TensorStore) -> None:
    store.save("x", torch.ones(3))

    def interrupted(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save("x", random_bytes(3 * PIECE), progress=interrupted)
    assert store.load("x").sum() == 3
    assert os.listdir(store.directory) == ["x.tensor"]


def test_operations_on_one_name_are_done_in_their_order(tmp_path: Path) -> None:
    with TensorStore(tmp_path, threads=4) as store:
        loads: list[Future[torch.Tensor]] = []
        for number in range(30):
            store.save_async("x", torch.full((50_000,), number))
            loads.append(store.load_async("x"))
        assert [int(load.result()[-1]) for load in loads] == list(range(30))
        store.save_async("x", torch.ones(1))
        store.delete("x")
        assert "x" not in store


def test_a_copy_is_made_at_once_of_what_is_not_plain_memory(tmp_path: Path) -> None:
    gate = threading.Event()
    with TensorStore(tmp_path, threads=1) as store:
        store.save_async("first", torch.ones(1), progress=lambda *_: gate.wait(20))
        value = torch.ones(4, 6).t()
        store.save_async("x", value)
        value.zero_()
        gate.set()
        assert store.load("x").sum() == 24


def test_a_future_can_be_cancelled_before_its_turn(tmp_path: Path) -> None:
    gate = threading.Event()
    with TensorStore(tmp_path, threads=1) as store:
        store.save("x", torch.zeros(1))
        store.save_async("y", torch.ones(1), progress=lambda *_: gate.wait(20))
        cancelled = store.save_async("x", torch.ones(1))
        behind_it = store.save_async("y", torch.ones(1))
        for future in (cancelled, behind_it):
            assert future.cancel()
            assert wait([future], timeout=0).done
        later = store.load_async("x")
        gate.set()
        assert later.result() == 0
        with pytest.raises(CancelledError):
            cancelled.result()


def test_a_cancelled_future_keeps_no_tensor(tmp_path: Path) -> None:
    gate = threading.Event()
    with TensorStore(tmp_path, threads=1) as store:
        store.save_async("x", torch.ones(1), progress=lambda *_: gate.wait(20))
        in_line, ready = torch.ones(1), torch.ones(1)
        futures = [store.save_async("x", in_line), store.save_async("y", ready)]
        # The store may have a view of the tensor: what counts is the memory.
        memories = [weakref.ref(tensor.untyped_storage()) for tensor in (in_line, ready)]
        del in_line, ready
        assert all(memory() is not None for memory in memories)
        assert all(future.cancel() for future in futures)
        assert all(memory() is None for memory in memories)
        gate.set()


def test_a_failure_that_no_future_told_is_raised_by_wait_and_close(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    store.load_async("missing")
    with pytest.raises(TensorNotFoundError):
        store.wait()
    store.wait()  # told once
    asked = store.load_async("missing")
    with pytest.raises(TensorNotFoundError):
        asked.result()
    store.wait()
    store.load_async("missing")
    with pytest.raises(TensorNotFoundError):
        store.close()
    with pytest.raises(OpArgumentError, match="closed"):
        store.save("x", torch.ones(1))


def test_an_exception_in_the_block_is_not_replaced_by_one_of_the_background(tmp_path: Path) -> None:
    def fail() -> None:
        with TensorStore(tmp_path) as store:
            store.load_async("missing")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_many_threads_share_a_store(store: TensorStore) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                value = torch.full((20_000,), number * 100 + turn)
                store.save(f"own-{number}", value)
                store.save("shared", value)
                assert same(store.load(f"own-{number}"), value)
                shared = store.load("shared")
                assert (shared == shared[0]).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store) == 7


def test_a_fork_can_use_the_store(store: TensorStore) -> None:
    store.save_async("x", torch.ones(4)).result()
    child = os.fork()
    if child == 0:
        os._exit(0 if store.load_async("x").result(timeout=20).sum() == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.load("x").sum() == 4


def test_counters_tell_what_was_transferred(store: TensorStore) -> None:
    store.save("x", torch.ones(100))
    store.load("x")
    store.load("x")
    counters = store.counters()
    assert (counters.bytes_written, counters.bytes_read) == (400, 800)
    assert counters.written_s > 0
    assert counters.read_s > 0


# Opening ---------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/store"):
        TensorStore(tmp_path / "file" / "store")


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_a_number_of_threads_that_makes_no_sense_is_refused(tmp_path: Path, threads: object) -> None:
    with pytest.raises(OpArgumentError, match="threads"):
        TensorStore(tmp_path, threads=threads)


def test_settings_of_the_handles_are_taken(tmp_path: Path) -> None:
    settings = {"block_size": 1 << 16, "queue_depth": 2, "engine": "threads"}
    store = TensorStore(tmp_path, aio=settings)
    value = random_bytes(1 << 20)
    store.save("x", value)
    assert same(store.load("x"), value)
    with pytest.raises(OpArgumentError, match="queue_depth"):
        TensorStore(tmp_path, aio={"queue_depth": 0}).load("x")


def test_importing_the_front_ends_imports_neither_torch_nor_xxhash() -> None:
    code = "import sys, op_builder.ops; sys.exit(any(name in sys.modules for name in ('torch', 'xxhash')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_what_cannot_be_begun_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TensorStore(tmp_path)
    store.save("x", torch.ones(2))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            store.load_async("x")
        assert store.load("x").sum() == 2
        store.wait()
    assert store.load_async("x").result().sum() == 2


def test_what_was_begun_is_done_without_a_thread_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TensorStore(tmp_path, threads=1)
    begun: list[Future[torch.Tensor]] = []

    def begin(_done: int, _total: int) -> None:
        begun.extend(store.load_async("x") for _ in range(3))  # each waits for its turn

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        store.save("x", torch.ones(2), progress=begin)
        assert [future.result(timeout=0).sum() for future in begun] == [2, 2, 2]


def test_what_was_begun_is_done_when_python_ends(tmp_path: Path) -> None:
    code = """
import sys, torch
from op_builder.ops import TensorStore
store = TensorStore(sys.argv[1], threads=2, is_durable=False)
for number in range(30):
    store.save_async("x", torch.full((1000,), number))
    store.save_async(f"y-{number}", torch.full((1000,), number))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=120, env=environment)
    store = TensorStore(tmp_path)
    assert store.load("x")[0] == 29
    assert len(store) == 31


def test_a_thread_that_could_work_does_not_stand_in_line(tmp_path: Path) -> None:
    gate = threading.Event()
    with TensorStore(tmp_path, threads=2) as store:
        store.save_async("x", torch.ones(1), progress=lambda *_: gate.wait(60))
        loads = [store.load_async("x") for _ in range(5)]
        try:
            store.save_async("y", torch.ones(1)).result(timeout=30)
            assert not any(load.done() for load in loads)
        finally:
            gate.set()
        assert all(load.result() == 1 for load in loads)


@pytest.mark.parametrize("names", [1, 100], ids=["one name", "many names"])
def test_many_small_saves_share_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: int) -> None:
    gate, started, start = threading.Event(), [], threading.Thread.start

    def count(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", count)
    with TensorStore(tmp_path, threads=2, is_durable=False) as store:
        for name in ("a", "b"):
            store.save_async(name, torch.ones(1), progress=lambda *_: gate.wait(60))
        for number in range(200):
            store.save_async(f"x-{number % names}", torch.full((1,), number))
        gate.set()
        store.wait()
        assert store.load(f"x-{names - 1}") == 199
    assert len(started) == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_callbacks_of_futures_may_use_the_store_and_wait(tmp_path: Path, threads: int) -> None:
    gate, found, told = threading.Event(), [], threading.Semaphore(0)

    def use(store: TensorStore, name: str) -> None:
        found.append(store.load(name).item())
        found.append(store.load_async(name).result(timeout=30).item())
        store.wait()
        told.release()

    store = TensorStore(tmp_path, threads=threads)
    store.save("x", torch.ones(1))
    # More callbacks than threads, and each waits for what comes after its own.
    for _ in range(4):
        future = store.load_async("x", progress=lambda *_: gate.wait(60))
        future.add_done_callback(lambda _: use(store, "y"))
    store.save_async("y", torch.full((1,), 7.0))
    gate.set()
    assert all(told.acquire(timeout=30) for _ in range(4))
    assert found == [7.0] * 8
    store.close()


@pytest.mark.parametrize("is_background", [False, True], ids=["at once", "in the background"])
@pytest.mark.parametrize(
    "waiting",
    [
        lambda store: store.wait(),
        lambda store: store.close(),
        lambda store: store.load("x"),
        lambda store: store.load("other"),
        lambda store: store.info("other"),
        lambda store: store.delete("other"),
        lambda store: store.load_async("x").result(),
        lambda store: store.load_async("x").exception(),
    ],
    ids=["wait", "close", "load", "load another", "info", "delete", "result", "exception"],
)
def test_progress_that_waits_for_its_own_store_is_refused(
    tmp_path: Path, waiting: Callable[[TensorStore], object], is_background: bool
) -> None:
    store = TensorStore(tmp_path, threads=1)
    for name in ("x", "other"):
        store.save(name, torch.ones(3))

    def progress(_done: int, _total: int) -> None:
        waiting(store)

    def save() -> None:
        if is_background:
            store.save_async("x", torch.zeros(3), progress=progress).result(timeout=30)
        else:
            store.save("x", torch.zeros(3), progress=progress)

    with pytest.raises(OpArgumentError, match="would wait for itself"):
        save()
    store.wait()
    assert store.load("x").sum() == store.load("other").sum() == 3
    store.close()


def test_progress_may_begin_more_and_look(store: TensorStore) -> None:
    begun: list[Future[None]] = []

    def progress(done: int, total: int) -> None:
        assert store.names() == []
        begun.append(store.save_async("x" if done < total else "y", torch.full((2,), done)))

    store.save("x", random_bytes(PIECE + 1), progress=progress)
    store.wait()
    assert all(future.done() for future in begun)
    assert store.load("x").tolist() == [PIECE] * 2
    assert store.load("y").tolist() == [PIECE + 1] * 2


def test_threads_that_save_one_name_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    store = TensorStore(tmp_path, threads=1, is_durable=False)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        value = torch.ones(4)
        threads = [
            threading.Thread(target=lambda: [store.save_async("x", value) for _ in range(300)], daemon=True)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch_s)
    waiter = threading.Thread(target=store.wait, daemon=True)
    waiter.start()
    waiter.join(60)
    assert not waiter.is_alive()
    assert store.counters().bytes_written == 4 * 300 * value.nbytes


def test_wait_tells_all_failures(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    for name in ("a", "b", "c"):
        store.load_async(name)
    with pytest.raises(TensorNotFoundError) as caught:
        store.wait()
    told = [caught.value, *caught.value.others]
    assert sorted(str(error).partition("no tensor ")[2][:3] for error in told) == ["'a'", "'b'", "'c'"]
    store.close()


@pytest.mark.parametrize("ending", ["close", "wait"])
def test_a_fork_does_not_wait_for_what_its_parent_does(tmp_path: Path, ending: str) -> None:
    may_go_on = threading.Event()
    store = TensorStore(tmp_path)
    store.save_async("x", torch.ones(1000), progress=lambda *_: may_go_on.wait(60))
    child = os.fork()
    if child == 0:
        getattr(store, ending)()
        os._exit(0)
    try:
        deadline_s = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if ended[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0)
    finally:
        may_go_on.set()
        store.close()


def test_wait_tells_a_failure_whose_callbacks_have_not_run_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_leave = threading.Event()
    leave = StoreQueue._leave

    def slow(queue: StoreQueue, name: str, task: object) -> None:
        may_leave.wait(60)
        leave(queue, name, task)

    monkeypatch.setattr(StoreQueue, "_leave", slow)
    store = TensorStore(tmp_path, threads=1)
    store.load_async("a")
    try:
        with pytest.raises(TensorNotFoundError):
            store.wait()
    finally:
        may_leave.set()
    store.wait()
    store.close()
