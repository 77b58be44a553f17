"""Damage and hostile values in any record are a miss, or an error of this project, and never another exception."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
import xxhash
from torch.distributed import HashStore

from accelerator.launch.output import Failure
from op_builder.cache.compare import nearest_miss
from op_builder.cache.key import Header, PlanKey, Roots, SystemHeaders
from op_builder.cache.manifest import MANIFEST, Manifest
from op_builder.cache.store import Cache
from op_builder.commands.cache import main
from op_builder.errors import CommunicationError, DamagedTensorError
from op_builder.load import prebuilt
from op_builder.load.prebuilt import read_index
from op_builder.ops.comm.shared_memory_meeting import GroupPlace
from op_builder.ops.io.safetensors_format import METADATA, encoded
from op_builder.ops.io.tensor_store import TensorStore
from op_builder.ops.io.tensor_store_format import HEADER_BYTES, TensorInfo, encoded_header
from op_builder.system.records import Memo, OtherFormatError, RecordError, decode, encode, is_count, is_flag, is_text
from tests.support import entries
from tests.support.mutations import damaged, hostile

COUNT = 300
Variant = TypeVar("Variant")
Result = TypeVar("Result")
ROOTS = Roots({"include0": "/nowhere"})


def sealed(text: str, seed: int, count: int = COUNT) -> Iterator[str]:
    """Hostile variants of a record, each with the right checksum."""
    record, number = entries.members_of(text)
    return (encode(variant, number) for variant in hostile(record, count, seed))


def accepted(variants: Iterable[Variant], read: Callable[[Variant], Result], error: type[Exception]) -> list[Result]:
    """What ``read`` returns for the variants that it accepts; each of the others must raise ``error``."""
    found = []
    for variant in variants:
        with contextlib.suppress(error):
            found.append(read(variant))
    return found


# Text and members ---------------------------------------------------------------------------


def test_a_record_reads_back_the_same() -> None:
    schema = {"name": is_text, "size": is_count}
    record = {"name": "caf\u00e9 \udcff\n", "size": 1 << 62}
    assert decode(encode(record, 3), schema, 3) == record
    with pytest.raises(OtherFormatError):
        decode(encode(record, 3), schema, 4)


def test_every_flipped_bit_is_found() -> None:
    schema = {"name": is_text, "size": is_count}
    whole = encode({"name": "x", "size": 3}, 1).encode()
    for at in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(RecordError):
            decode(flipped.decode("latin-1"), schema, 1)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, '"\ud800"'])
def test_texts_that_no_parser_takes_are_damage(text: str) -> None:
    with pytest.raises(RecordError):
        decode(text, {}, 1)


def test_a_format_of_another_type_is_another_format() -> None:
    formats = [True, 1.0, "1", [1], None]
    assert accepted(formats, lambda found: decode(encode({"format": found}, 1), {}, 1), OtherFormatError) == []


# The cache ----------------------------------------------------------------------------------


def detailed(manifest: Manifest) -> Manifest:
    """A manifest with something in each member."""
    parts = {"c++ flags": '["-O3"]', "cuda archs": "9.0a;8.0+PTX", "source 0 small.cpp": "ab -O3"}
    return manifest._replace(
        namespaces=("small",),
        defined_namespaces=("small",),
        operators=("small::add",),
        key_parts={**manifest.key_parts, **parts},
        headers=(Header("include0", "a.h", "ab" * 32, (1, 2, 3, 4)), Header("", "/nowhere/b.h", "cd" * 32, ())),
        absent=("include0/c.h",),
        system_headers=SystemHeaders(("/usr/include/stdio.h",), "ef" * 32, ""),
        needs={"GLIBC": "2.32"},
    )


def plant(cache: Cache, texts: Iterable[bytes], good: Manifest) -> None:
    """Write entries with these manifests and the right binary."""
    for number, text in enumerate(texts):
        directory = cache.writable_dir("ops") / good.op / good.key.plan.digest / f"{number:032x}"
        directory.mkdir(parents=True)
        (directory / MANIFEST).write_bytes(text)
        (directory / good.artifact).write_bytes(b"binary")


def run(root: Path, *arguments: str) -> int:
    return main([*arguments, "--directory", str(root)])


def test_a_damaged_manifest_is_a_miss_which_verify_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = entries.manifest()
    plant(Cache(tmp_path), damaged(good.to_json().encode(), COUNT, 1), good)
    cache = Cache(tmp_path, is_ours=False)
    assert entries.find(cache) is None
    assert entries.find(cache, any_compiler=True) is None
    assert len(cache.damaged) == COUNT
    for command in (["list"], ["info", good.op], ["export", str(tmp_path / "x.zip")]):
        assert run(tmp_path, *command) in (0, 2)
    capsys.readouterr()
    assert run(tmp_path, "--json", "verify") == 1
    assert len(json.loads(capsys.readouterr().out)["damaged"]) == COUNT
    assert run(tmp_path, "verify") == 0
    assert entries.publish(Cache(tmp_path)) == entries.find(Cache(tmp_path))


def test_a_hostile_manifest_ends_no_command_and_no_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = detailed(entries.manifest())
    plant(Cache(tmp_path), map(str.encode, sealed(good.to_json(), 2)), good)
    cache = Cache(tmp_path, is_ours=False)
    key = PlanKey(good.key_parts)
    for any_compiler in (False, True):
        cache.find(key, good.op, ROOTS, any_compiler=any_compiler)
    nearest_miss(cache.entries(), PlanKey({**good.key_parts, "c++ flags": "[]"}), ROOTS, cache.memo)
    shutil.copytree(tmp_path / "v1" / "ops", Cache(tmp_path / "again").writable_dir("ops"), dirs_exist_ok=True)
    for command in (["list"], ["info", good.op], ["export", str(tmp_path / "x.zip")], ["verify"], ["clear"]):
        assert run(tmp_path, *command) in (0, 1, 2)
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err
    assert Cache(tmp_path / "again").find(key, good.op, ROOTS) is None


# Indexes of wheels, and what ranks publish -------------------------------------------------

Record = tuple[str, Callable[[bytes], object], type[Exception]]
"""The text of a whole record, what reads a variant, and the only error that this may raise."""


def index_of_a_wheel(directory: Path) -> Record:
    names = ("op", "binary", "platform", "torch", "python", "check", "built_at")
    facts = {**dict.fromkeys(names, "x"), "sha256": "ab" * 32, "size_bytes": 1, "cuda_archs": ["9.0"]}
    facts |= {"compilers": ["g++"], "needs": {"GLIBC": "2"}}
    index = {**dict.fromkeys(("distribution", "built_by", "accelerator", "tag"), "x"), "ops": [facts]}
    index["left_out"] = [{"op": "other", "reason": "x"}]

    def read(content: bytes) -> object:
        (directory / prebuilt.INDEX).write_bytes(content)
        found = read_index(directory)
        assert found is not None
        assert found.keys() == index.keys()
        return found

    text = encode(index, prebuilt.INDEX_FORMAT)
    assert read(text.encode()) == index
    return text, read, RecordError


def meeting(_: Path) -> Record:
    store, numbers = HashStore(), count()
    with pytest.raises(CommunicationError, match="waited"):
        GroupPlace(2, 0, "", store, "first", 0.01).exchange("ranks", -1)

    def read(content: bytes) -> object:
        name = str(next(numbers))
        store.set(f"{name}/ranks/1", content.decode("latin-1"))
        return GroupPlace(2, 0, "", store, name, 5).exchange("ranks", -1)

    return store.get("first/ranks/0").decode(), read, CommunicationError


@pytest.mark.parametrize("record", [index_of_a_wheel, meeting])
def test_a_damaged_record_is_one_error(tmp_path: Path, record: Callable[[Path], Record]) -> None:
    text, read, error = record(tmp_path)
    assert accepted(damaged(text.encode(), COUNT, 3), read, error) == []
    invalid = accepted(map(str.encode, sealed(text, 4)), read, error)
    if record is meeting:  # whose every member is checked; the other has free texts
        assert invalid == []


# Memos --------------------------------------------------------------------------------------

FACT = {"version": "g++ 12", "target": "x86_64", "is_gcc": True}
FACT_SCHEMA = {"version": is_text, "target": is_text, "is_gcc": is_flag}


def test_a_damaged_memo_is_worked_out_again(tmp_path: Path) -> None:
    Memo(tmp_path).get("compiler", FACT_SCHEMA, lambda: (FACT, [str(tmp_path)]))
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    new = {**FACT, "version": "g++ 13"}
    for content in damaged(text.encode(), COUNT, 5):
        file.write_bytes(content)
        assert Memo(tmp_path).get("compiler", FACT_SCHEMA, lambda: (new, [])) == new


# Stored tensors -----------------------------------------------------------------------------


def sealed_header(members: dict[str, Any]) -> bytes:
    """The header with these members, and the right checksum."""
    texts = members.get(METADATA)
    if isinstance(texts, dict):
        texts["header_xxh3_64"] = "0" * 16
        texts["header_xxh3_64"] = xxhash.xxh3_64_hexdigest(encoded(members, HEADER_BYTES))
    return encoded(members, HEADER_BYTES)


def test_a_damaged_header_of_a_stored_tensor_is_one_error(tmp_path: Path) -> None:
    info = TensorInfo(torch.float32, (2, 3), 24, "0" * 16)
    header = encoded_header("x", info)
    file = tmp_path / "x.safetensors"
    with TensorStore(tmp_path) as store:

        def read(content: bytes) -> TensorInfo:
            file.write_bytes(content + bytes(24))
            return store.info("x")

        assert read(header) == info
        endless = header[:8] + (b'{"":' * 1000).ljust(HEADER_BYTES - 8)
        assert accepted([*damaged(header, COUNT, 7), endless], read, DamagedTensorError) == []
        variants = map(sealed_header, hostile(json.loads(header[8:]), COUNT, 8))
        assert all(found.size_bytes == 24 for found in accepted(variants, read, DamagedTensorError))


def test_a_damaged_report_of_a_failed_rank_is_output() -> None:
    line = Failure(1, 0, "host", 12, 3, 1.5, "tail").to_line()
    mark, text = line.split("{", 1)
    for content in damaged(f"{{{text}".encode(), COUNT, 13):
        str(Failure.from_line(mark + content.decode("latin-1")))
    for facts in hostile(json.loads(f"{{{text}"), COUNT, 14):
        str(Failure.from_line(mark + json.dumps(facts)))
