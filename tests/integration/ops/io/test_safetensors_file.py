"""Safetensors files of any program, read and refused; files of a TensorStore, read by the package safetensors."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from op_builder.cpu import AsyncIOBuilder
from op_builder.errors import AccelError, DamagedTensorError, IncompatibleOpError, StorageError
from op_builder.ops import TensorStore, load_safetensors
from op_builder.ops.io import file_pieces
from op_builder.ops.io.safetensors_format import DTYPES
from op_builder.ops.io.tensor_store_format import DTYPES as STORED_DTYPES
from tests.support.files import cache_only, random_bytes, raw
from tests.support.mutations import damaged, hostile

PIECE = 1 << 16
LARGE = (3 * PIECE + 5, 3 << 20, 4 << 20, 5 << 20)  # together more than tensors that share memory


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small files are read in several pieces, and by the op."""
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(file_pieces, "SMALL_BYTES", 0)


def value_of(dtype: torch.dtype, size: int = 6) -> torch.Tensor:
    return torch.arange(size) % 2 == 0 if dtype == torch.bool else random_bytes(size, dtype=dtype)


def sample(path: Path) -> dict[str, torch.Tensor]:
    """A file with tensors of every type and of sizes around those of a page, a piece and a block of memory."""
    tensors = {name: value_of(dtype).view(2, 3) for name, dtype in DTYPES.items()}
    for size in (0, 1, 4095, 4096, 4097, PIECE // 2, PIECE - 1, PIECE, PIECE + 1, *LARGE):
        tensors[f"size {size}"] = random_bytes(size, seed=size)
    tensors |= {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(3, 0, 2),
        "": torch.ones(1),
        "ä \U0001f600": torch.ones(2),
    }
    save_file(tensors, path)
    return tensors


def file_of(path: Path, header: bytes, data: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def tensor(shape: list[Any], begin: Any, end: Any, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, one in found.items():
        assert (one.dtype, one.shape, raw(one)) == (expected[name].dtype, expected[name].shape, raw(expected[name])), (
            name
        )


# Reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached_bytes", [None, 0, 3 * PIECE, -1], ids=["unknown", "not cached", "partly", "cached"])
@pytest.mark.parametrize("is_mapped", [False, True], ids=["copied", "mapped"])
def test_every_tensor_of_a_file_is_read(
    tmp_path: Path, cached_bytes: int | None, is_mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    tensors = sample(path)
    if cached_bytes is None:
        monkeypatch.delattr(os, "RWF_NOWAIT")
    else:
        cache_only(path, cached_bytes)
    steps: list[tuple[int, int]] = []
    found = load_safetensors(path, is_mapped=is_mapped, progress=lambda *step: steps.append(step))
    assert_same(found, tensors)
    assert_same(found, load_file(path))
    total = sum(one.nbytes for one in tensors.values())
    assert steps[-1] == (total, total)
    assert steps == sorted(set(steps))
    path.unlink()
    for one in found.values():  # each has memory of its own, and may be changed
        one.view(-1).view(torch.uint8).zero_()
    assert sum(raw(one).count(0) for one in found.values()) == total


@pytest.mark.parametrize("blanks", range(8))
def test_data_may_begin_at_any_byte(tmp_path: Path, blanks: int) -> None:
    value = random_bytes(3 * PIECE, dtype=torch.float64)
    header = json.dumps({"x": tensor([3 * PIECE], 0, value.nbytes, "F64")}).encode() + b" " * blanks
    found = load_safetensors(file_of(tmp_path / "x", header, raw(value)))["x"]
    assert raw(found) == raw(value)
    assert found.data_ptr() % 8 == 0


@pytest.mark.parametrize("engine", ["missing", "refused"])
def test_without_the_engine_files_are_read_with_a_warning(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise IncompatibleOpError(f"The engine is {engine}.", "Install g++.")  # a process logs each text once

    tensors = sample(tmp_path / "x")
    monkeypatch.setattr(file_pieces, "read_cached", lambda *_: 0)
    if engine == "missing":
        monkeypatch.setattr(file_pieces, "load_host", fail)
    else:
        monkeypatch.setattr(type(AsyncIOBuilder().load()), "aio_handle", fail)
    assert_same(load_safetensors(tmp_path / "x"), tensors)
    (record,) = caplog.records
    assert f"The engine is {engine}" in record.getMessage()


def test_tensors_go_to_the_device_and_obey_modes(tmp_path: Path) -> None:
    sample(tmp_path / "x")
    assert {one.device.type for one in load_safetensors(tmp_path / "x", "meta").values()} == {"meta"}
    with torch.inference_mode(), torch.device("meta"):
        found = load_safetensors(tmp_path / "x")
    assert all(one.is_inference() and one.device.type == "cpu" for one in found.values())


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    save_file({}, tmp_path / "x", metadata={"format": "pt"})
    assert load_safetensors(tmp_path / "x", progress=lambda *step: steps.append(step)) == {}
    assert steps == [(0, 0)]


def test_an_exception_in_progress_ends_the_load(tmp_path: Path) -> None:
    sample(tmp_path / "x")

    def interrupted(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_safetensors(tmp_path / "x", progress=interrupted)


# Refusing --------------------------------------------------------------------------------------

HOLE = {"a": tensor([2], 0, 2), "b": tensor([2], 3, 5)}
OVERLAP = {"a": tensor([3], 0, 3), "b": tensor([3], 2, 5)}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HOLE, "'b' leaves a gap of 1 bytes"),
        (OVERLAP, "'b' overlaps"),
        ({"a": tensor([4], 0, 4)}, "5 bytes follow its header"),
        ({"a": tensor([4], 0, 5)}, "'a' has 5 bytes"),
        ({"a": tensor([-5], 0, 5)}, "'a' lacks"),
        ({"a": tensor([5, 2], 0, 5, "F6_E2M3")}, "no type for 'F6_E2M3'"),
        ({"a": tensor([10, 1], 0, 5, "F4")}, "last dimension"),
        ({"x" * 5000: None}, r"'x+\.\.\.' lacks"),
        ({"__metadata__": {"format": 1}, "a": tensor([5], 0, 5)}, "object of texts"),
        (b"[]", "JSON object"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_an_invalid_header_is_one_error_that_names_the_file(
    tmp_path: Path, header: bytes | dict[str, Any], message: str
) -> None:
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = file_of(tmp_path / "x.safetensors", content, bytes(5))
    with pytest.raises(DamagedTensorError, match=rf"x\.safetensors is not .*{message}(.|\n)*Remedy: ") as caught:
        load_safetensors(path)
    assert caught.value.filename == str(path)


MEMBERS = '"dtype": "U8", "shape": [5], "data_offsets": [0, 5]'
WHOLE = f'{{"a": {{{MEMBERS}}}}}'
UNUSUAL = (
    *("", " ", "{}", "[]", "null", f" \t\r\n{WHOLE} \n", f"\ufeff{WHOLE}", f"{WHOLE}\0", f"{WHOLE}\f", f"{WHOLE}{{}}"),
    *('{"a": ' * 2000, '{"a": [' + "9" * 5000, f"{WHOLE[:-1]},}}", WHOLE.replace('"U8"', '"u8"')),
    *('{"a": ["U8", [5], [0, 5]]}', WHOLE.replace('"U8"', '{"U8": null}'), WHOLE.replace('"U8"', '{"U8": 1}')),
    *(WHOLE.replace("[5]", shape) for shape in ("[5.0]", "[5e0]", "[05]", "null", "{}", "[5, true]", '["5"]')),
    *(WHOLE.replace("[5]", f"[5{', 1' * count}]") for count in (63, 64, 200)),
    *(WHOLE.replace("[0, 5]", place) for place in ("[-0, 5]", "[0.0, 5]", "[0]", "[0, 5, 5]", "[5, 10]", "[5, 0]")),
    # Names that occur twice, and members that are ignored, if they are valid.
    f'{{"a": {{{MEMBERS}}}, "a": {{{MEMBERS}}}}}',
    *(f'{{"a": {{"{name}": 1, {MEMBERS}}}}}' for name in ("dtype", "shape", "data_offsets", "x", "")),
    *(f'{{"a": {{"x": {{"dtype": 1, "dtype": 2}}, "x": {value}, {MEMBERS}}}}}' for value in (
        *("1e39", "1e400", "-1e400", "NaN", "-Infinity", "9" * 300, "9" * 400, "9" * 5000),
        *('"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"'), *(depth * "[" + depth * "]" for depth in (1, 125, 126, 900)),
    )),
    *(WHOLE.replace('"a"', f'"a{text}"') for text in ("\\u0000", "\\ud83d\\ude00", "\\ud83d", "\\ud83d\\u0041", "\1")),
    *(f'{{"__metadata__": {texts}, "a": {{{MEMBERS}}}}}' for texts in (
        "null", "{}", "[]", "false", '""', '{"a": null}', '{"a": "b", "a": "c"}', '{"dtype": "b", "dtype": "c"}',
        '{}, "__metadata__": {}', '{"a": "\\ud800"}',
    )),
    *(f'{{"a": {{{MEMBERS}}}, "z": {{"dtype": "F32", "shape": {shape}, "data_offsets": [5, 5]}}}}' for shape in (
        *("[0]", f"[0, {1 << 63}]", f"[0, {1 << 32}, {1 << 32}]"),
        *(f"[{1 << 32}, {1 << 32}, 0]", f"[{1 << 31}, {1 << 31}, 0]"),
    )),
    *(WHOLE.replace('"U8", "shape": [5]', f'"{dtype}", "shape": {shape}') for dtype, shape in (
        ("F4", "[10]"), ("F4", "[5, 2]"), ("F4", "[10, 1]"), ("F4", "[9]"), ("F6_E2M3", "[5]"), ("F8_E8M0", "[5]"),
    )),
)  # fmt: skip


def content_of(header: dict[str, Any] | str, data: bytes) -> bytes:
    encoded = (header if isinstance(header, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(8, "little") + encoded + data


def test_files_are_accepted_and_refused_as_by_the_package_safetensors(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": tensor([2, 3], 0, 24, "F32"), "b": tensor([5], 24, 29)}
    header["e"] = tensor([0, 4], 29, 29, "BF16")
    contents = [content_of(text, bytes(5)) for text in UNUSUAL]
    contents += [content_of(variant, bytes(29)) for variant in hostile(header, 1500, seed=1)]
    contents += damaged(content_of(header, bytes(29)), 1500, seed=2)

    def described(load: Callable[[Path], dict[str, torch.Tensor]]) -> Any:
        try:
            return {name: (one.dtype, one.shape) for name, one in load(tmp_path / "x").items()}
        except Exception as error:
            return isinstance(error, AccelError), "refused"

    for content in contents:
        (tmp_path / "x").write_bytes(content)
        ours, theirs = described(load_safetensors), described(load_file)
        assert ours == ((True, "refused") if isinstance(theirs, tuple) else theirs), content[:300]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS(.|\n)*git lfs pull"),
        (b"/annex/objects/SHA256E-s9--0.safetensors\n", "git-annex(.|\n)*git annex get"),
        (b"\n<!DOCTYPE html><title>Log in</title>", "web page(.|\n)*address"),
        (b"PK\x03\x04" + bytes(9), r"zip(.|\n)*torch\.load"),
        (b"\x80\x02}q\0.", r"pickle(.|\n)*torch\.load"),
        (b"GGUF\x03\0\0\0", "GGUF"),
        (b"\x1f\x8b\x08\0\0", "gzip"),
        (bytes(257) + b"ustar\0", "tar archive"),
        (b'{"metadata": {}, "weight_map": {"a": "x-00001-of-00002.safetensors"}}', "JSON(.|\n)*index"),
        (bytes(4096), "begins with zeros"),
        (b"Entry not found", "a text that begins with 'Entry not found'"),
        ("outs:\n- path: ä".encode() * 20, "a text that begins with 'outs:'"),
        (pickle.dumps(["x"] * 9, 5), r"pickle(.|\n)*pickle\.load"),
    ],
    ids=lambda value: value[-12:] if isinstance(value, str) else "",
)
def test_another_format_is_named_with_what_reads_it(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DamagedTensorError, match=words):
        load_safetensors(tmp_path / "x")
    os.replace(tmp_path / "x", tmp_path / "x.safetensors")
    with pytest.raises(DamagedTensorError, match=words):
        TensorStore(tmp_path).load("x")


@pytest.mark.parametrize("content", [b"", b"\x02\0\0", b"\x03\0\0\0\0\0\0\0{}", b"\xff" * 8 + b"{}"])
def test_a_file_that_is_shorter_than_its_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DamagedTensorError, match="shorter than its header"):
        load_safetensors(tmp_path / "x")


def test_a_huge_header_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes((1 << 28).to_bytes(8, "little"))
    os.truncate(tmp_path / "x", 1 << 29)  # sparse
    with pytest.raises(DamagedTensorError, match="100000000 are allowed"):
        load_safetensors(tmp_path / "x")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nothing"):
        load_safetensors(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(DamagedTensorError, match="not a regular file"):
            load_safetensors(path)


@pytest.mark.parametrize("has_engine", [True, False])
def test_a_file_that_is_truncated_while_it_is_read_is_an_error(
    tmp_path: Path, has_engine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": random_bytes(100 * PIECE)}, path)

    def load(_: object) -> Any:
        raise IncompatibleOpError("No compiler was found.", "Install g++.")

    if not has_engine:
        monkeypatch.setattr(file_pieces, "load_host", load)
    with pytest.raises(StorageError, match=r"x\.safetensors failed") as caught:
        load_safetensors(path, progress=lambda *_: os.truncate(path, 2 * PIECE))
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("is_time_restored", [False, True])
def test_a_file_that_is_changed_and_restored_while_it_is_read_is_an_error(
    tmp_path: Path, is_time_restored: bool
) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": random_bytes(100 * PIECE)}, path)
    content = path.read_bytes()
    os.utime(path, (0, 0))

    def rewrite(_done: int, _total: int) -> None:
        with path.open("r+b") as file:
            file.write(bytes(len(content)))
            file.seek(0)
            file.write(content)
        if is_time_restored:
            os.utime(path, (0, 0))

    with pytest.raises(StorageError, match="changed the file"):
        load_safetensors(path, progress=rewrite)


@pytest.mark.parametrize("is_mapped", [False, True], ids=["copied", "mapped"])
def test_later_changes_of_a_file_reach_only_tensors_that_are_mapped(tmp_path: Path, is_mapped: bool) -> None:
    path = tmp_path / "x.safetensors"
    value = random_bytes(3 * PIECE)
    save_file({"x": value}, path)
    content = path.read_bytes()
    cache_only(path, -1)
    found = load_safetensors(path, is_mapped=is_mapped)["x"]
    with path.open("r+b") as file:
        file.write(bytes(len(content)))
    assert (raw(found) == bytes(3 * PIECE)) == is_mapped
    found.fill_(1)
    assert path.read_bytes() == bytes(len(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.rename(path.with_name("new")),
        lambda path: path.with_name("new").hardlink_to(path),
        lambda path: path.chmod(0o600),
        lambda path: path.with_name("other").replace(path),
        lambda path: path.unlink(),
    ],
    ids=["renamed", "linked", "mode", "replaced", "removed"],
)
def test_what_happens_to_the_name_of_a_file_that_is_read_is_no_change_of_its_content(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "x.safetensors"
    value = random_bytes(100 * PIECE)
    save_file({"x": value}, path)
    path.chmod(0o644)
    (tmp_path / "other").write_bytes(bytes(9))
    changes: list[object] = []
    found = load_safetensors(path, progress=lambda *_: changes or changes.append(change(path)))
    assert raw(found["x"]) == raw(value)
    assert changes


def test_a_big_endian_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.byteorder", "big")
    calls: list[Callable[[], object]] = [lambda: load_safetensors(tmp_path / "x"), lambda: TensorStore(tmp_path)]
    for call in calls:
        with pytest.raises(IncompatibleOpError, match="little-endian"):
            call()


# Files of a TensorStore ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("load", [load_file, load_safetensors])
def test_stored_tensors_are_safetensors_files(tmp_path: Path, load: Callable[[Path], dict[str, torch.Tensor]]) -> None:
    store = TensorStore(tmp_path)
    for dtype in sorted(set(STORED_DTYPES.values()), key=str):
        value = value_of(dtype).view(2, 3)
        store.save("x", value)
        path = tmp_path / "x.safetensors"
        found, stored = load(path)["x"], store.load("x")
        assert raw(found) == raw(stored) == raw(value), dtype
        assert (stored.dtype, store.info("x").dtype, stored.shape) == (dtype, dtype, value.shape)
        with safe_open(path, "pt") as file:
            texts = file.metadata()
        assert texts["format"] == "pt"
        if dtype in DTYPES.values():
            assert (found.dtype, found.shape) == (dtype, value.shape)
        else:
            assert texts["dtype"] == str(dtype).removeprefix("torch.")
            assert found.shape[:2] == value.shape
            assert found.shape[2] * found.itemsize == dtype.itemsize
    values = {
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(2, 0),
        "half_byte": value_of(torch.float4_e2m1fn_x2, 1)[0],
    }
    for name, value in values.items():
        store.save(name, value)
        found = load(tmp_path / f"{name}.safetensors")[name]
        assert raw(found) == raw(value)
        assert store.load(name).shape == value.shape
    value = torch.randn(4, dtype=torch.complex128)
    store.save("complex", value)
    assert torch.equal(torch.view_as_complex(load(tmp_path / "complex.safetensors")["complex"]), value)


def test_a_store_refers_to_load_safetensors_for_files_of_others(tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    for tensors in ({"x": torch.ones(3)}, {"x": torch.ones(3), "y": torch.ones(2000)}):
        save_file(tensors, tmp_path / "x.safetensors")
        with pytest.raises(DamagedTensorError, match=r"load_safetensors\(\) reads any"):
            store.load("x")
    with pytest.raises(AccelError, match="65 dimensions"):
        store.save("x", torch.ones([1] * 65))
