"""The manifest next to each binary: what was built, from what, and how it was checked."""

import json
from itertools import chain
from typing import Any, NamedTuple

from op_builder.cache.key import MANIFEST_FORMAT, BuildKey, Header, PlanKey, SystemHeaders
from op_builder.plan import Binding
from op_builder.system.records import (
    OtherFormatError,
    Schema,
    are_integers,
    are_texts,
    decode,
    encode,
    is_count,
    is_identifier,
    is_name,
    is_number,
    is_sha256,
    is_text,
    is_version,
    mapping_of,
    one_of,
    rows_of,
)
from op_builder.system.torch_install import MINIMUM_TORCH, parse_release

__all__ = ["MANIFEST", "Manifest", "OtherFormatError"]

MANIFEST = "manifest.json"
_TUPLES = ("namespaces", "defined_namespaces", "operators", "absent")
_FLAGS = ("c++ flags", "nvcc flags", "link flags")


def _are_key_parts(value: Any) -> bool:
    if not _is_mapping(value) or value.get("binding") not in _BINDINGS:
        return False
    try:
        are_flags = all(are_texts(json.loads(value.get(name, "[]"))) for name in _FLAGS)
    except (ValueError, RecursionError):
        return False
    if archs := value.get("cuda archs"):
        from op_builder.toolchains.cuda_archs import is_arch

        if not all(map(is_arch, archs.split(";"))):
            return False
    sources = [name.split(" ", 2) for name in value if name.startswith("source ")]
    return are_flags and all(len(words) == 3 and words[1].isdecimal() and len(words[1]) < 10 for words in sources)


def _is_release(value: Any) -> bool:
    try:
        return is_text(value) and len(value) < 100 and (not value or bool(parse_release(value)))
    except ValueError:
        return False


_is_mapping = mapping_of(is_text)
_BINDINGS = frozenset(binding.value for binding in Binding)
_HEADER: Schema = {
    "root": are_texts,
    "path": are_texts,
    "sha256": are_texts,
    "status": lambda value: {list}.issuperset(map(type, value)) and are_integers([*chain.from_iterable(value)]),
}
_SYSTEM: Schema = {"paths": are_texts, "sha256": is_text, "status": is_text}
_SCHEMA: Schema = {
    "op": is_identifier,
    "artifact": is_name,
    "size_bytes": is_count,
    "sha256": is_sha256,
    "kind": one_of("accel", "python", "torch_library", "library", "tvm_ffi", "header"),
    "namespaces": are_texts,
    "defined_namespaces": are_texts,
    "operators": are_texts,
    "key_parts": _are_key_parts,
    "headers": rows_of(_HEADER),
    "absent": are_texts,
    "system_headers": _SYSTEM,
    "check": is_text,
    "built_at": is_text,
    "build_s": is_number,
    "torch": _is_release,
    "accel_ops": is_text,
    "needs": mapping_of(is_version),
}


class Manifest(NamedTuple):
    """What was built, from what, and how it was checked.

    Attributes:
        op: the op's name.
        artifact: file name of the binary, in the same directory.
        size_bytes, sha256: of the binary.
        kind: how it is loaded: ``accel``, ``python``, ``torch_library``, ``library`` or ``tvm_ffi``; ``header`` if it
            is precompiled for GCC.
        namespaces: torch namespaces of the ops that loading it defines; empty for an ``accel`` binary.
        defined_namespaces, operators: the torch names that it defines; a process can define each only once.
        key_parts: the plan key's parts.
        headers, absent, system_headers: as in :class:`~op_builder.cache.key.BuildKey`.
        check: how the binary was tried before it was published.
        built_at: UTC, ISO 8601. ``build_s``: seconds the build took.
        torch: version it was built against, empty if it uses none. ``accel_ops``: version of this project that built
            it.
        needs: the newest required version of each system library: ``{"GLIBC": "2.32"}``.
    """

    op: str
    artifact: str
    size_bytes: int
    sha256: str
    kind: str
    namespaces: tuple[str, ...]
    defined_namespaces: tuple[str, ...]
    operators: tuple[str, ...]
    key_parts: dict[str, str]
    headers: tuple[Header, ...]
    absent: tuple[str, ...]
    system_headers: SystemHeaders
    check: str
    built_at: str
    build_s: float
    torch: str
    accel_ops: str
    needs: dict[str, str]

    @property
    def key(self) -> BuildKey:
        return BuildKey(PlanKey(self.key_parts), self.headers, self.absent, self.system_headers)

    @property
    def cuda_archs(self) -> list[str]:
        """The CUDA architectures that it has code for, as ``9.0a+PTX``; empty without CUDA sources."""
        return [arch for arch in self.key_parts.get("cuda archs", "").split(";") if arch]

    @property
    def least_torch(self) -> tuple[int, int]:
        """The oldest torch with the Stable ABI functions that it uses: the version it was compiled for."""
        _, _, version = self.key_parts.get("c++ flags", "").rpartition("-DTORCH_TARGET_VERSION=0x")
        try:
            return max(MINIMUM_TORCH, (int(version[:2], 16), int(version[2:4], 16)))
        except ValueError:  # the flag is missing or written in another way
            return MINIMUM_TORCH

    @property
    def fits_any_python(self) -> bool:
        """Whether it uses neither torch's C++ API nor Python."""
        return "python abi" not in self.key_parts

    @property
    def torch_needed(self) -> str:
        """The torch it fits: ``any``, ``>=2.10``, or for torch's C++ API the version it was built against."""
        if not self.torch:
            return "any"
        return f">={'.'.join(map(str, self.least_torch))}" if self.fits_any_python else self.torch

    @property
    def python_needed(self) -> str:
        """The Python it fits: ``any``, or one ABI by the suffix of its modules."""
        return self.key_parts.get("python abi", "any")

    @property
    def compilers(self) -> list[str]:
        """The compilers that built it, as ``g++ (Debian 12.2.0-14) 12.2.0``, without their paths."""
        names = (text for part, text in self.key_parts.items() if part.endswith(" compiler"))
        return [" ".join(name.split(" | ")[1:2]) for name in names]

    def to_json(self) -> str:
        headers = [header._asdict() for header in self.headers]
        data = {**self._asdict(), "headers": headers, "system_headers": self.system_headers._asdict()}
        return encode(data, MANIFEST_FORMAT)

    @staticmethod
    def from_json(text: str) -> "Manifest":
        """Raises RecordError when the text is damaged, OtherFormatError when another version wrote it."""
        data = decode(text, _SCHEMA, MANIFEST_FORMAT)
        for name in _TUPLES:
            data[name] = tuple(data[name])
        data["headers"] = tuple(Header(**{**header, "status": tuple(header["status"])}) for header in data["headers"])
        system = data["system_headers"]
        data["system_headers"] = SystemHeaders(tuple(system["paths"]), system["sha256"], system["status"])
        return Manifest(**data)
