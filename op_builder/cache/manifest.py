"""The manifest beside each binary: what was built, from what, and how it was checked."""

import json
from typing import NamedTuple

from op_builder.cache.fingerprint import BuildKey, PlanKey
from op_builder.cache.headers import Header, SystemHeaders
from op_builder.system.torch_install import MINIMUM_TORCH

MANIFEST = "manifest.json"
_FORMAT = 6
_TEXTS = ("op", "artifact", "sha256", "kind", "check", "built_at", "torch", "accel_ops")
_TUPLES = ("namespaces", "defined_namespaces", "operators", "absent")


class OtherFormatError(ValueError):
    """A manifest that another version wrote."""


class Manifest(NamedTuple):
    """What was built, from what, and how it was checked.

    Attributes:
        op: the op's name.
        artifact: file name of the binary, in the same directory.
        size_bytes, sha256: of the binary.
        kind: how it is loaded: ``accel``, ``python`` or ``torch_library``; ``header`` if it is precompiled for GCC.
        namespaces: torch namespaces of the ops that loading it defines; empty for an ``accel`` binary.
        defined_namespaces, operators: the torch names that it defines; a process can define each only once.
        key_parts: the plan key's parts.
        headers, absent, system_headers: what the compiler read in addition to the sources, and where it found nothing.
        check: how the binary was tried before it was published.
        built_at: UTC, ISO 8601. ``build_s``: seconds the build took.
        torch: version it was built against. ``accel_ops``: version of this project that built it.
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
        """CUDA architectures it holds code for, as ``9.0a+PTX``; empty without CUDA sources."""
        return [arch for arch in self.key_parts.get("cuda archs", "").split(";") if arch]

    @property
    def least_torch(self) -> tuple[int, int]:
        """The oldest torch with the Stable ABI functions that it uses: the version it was compiled for."""
        _, _, version = self.key_parts.get("c++ flags", "").rpartition("-DTORCH_TARGET_VERSION=0x")
        try:
            return max(MINIMUM_TORCH, (int(version[:2], 16), int(version[2:4], 16)))
        except ValueError:  # another way of saying it, or none
            return MINIMUM_TORCH

    @property
    def torch_needed(self) -> str:
        """The torch it fits: ``>=2.10`` for the Stable ABI, else the version it was built against."""
        return f">={'.'.join(map(str, self.least_torch))}" if self.kind == "accel" else self.torch

    @property
    def python_needed(self) -> str:
        """The Python it fits: ``any``, or the suffix of modules of one."""
        return "any" if self.kind == "accel" else self.key_parts.get("python abi", "any")

    @property
    def compilers(self) -> list[str]:
        """What it was compiled by, as ``g++ (Debian 12.2.0-14) 12.2.0``, without their places."""
        names = (text for part, text in self.key_parts.items() if part.endswith(" compiler"))
        return [" ".join(name.split(" | ")[1:2]) for name in names]

    def to_json(self) -> str:
        headers = [header._asdict() for header in self.headers]
        data = {**self._asdict(), "headers": headers, "system_headers": self.system_headers._asdict()}
        return json.dumps({"format": _FORMAT, **data}, indent=1)

    @staticmethod
    def from_json(text: str) -> "Manifest":
        """Raises OtherFormatError, or ValueError, KeyError or TypeError when the text is damaged."""
        data = dict(json.loads(text))
        if data.pop("format") != _FORMAT:
            raise OtherFormatError("the manifest is of another version of accel-ops")
        for name in ("key_parts", "needs"):
            data[name] = dict(data[name])
        for name in _TUPLES:
            data[name] = tuple(data[name])
        texts = (*map(data.__getitem__, _TEXTS), *data["key_parts"].values(), *data["needs"].values())
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("something in the manifest is not text")
        data["headers"] = tuple(Header(**{**header, "status": tuple(header["status"])}) for header in data["headers"])
        system = data["system_headers"]
        data["system_headers"] = SystemHeaders(tuple(system["paths"]), system["sha256"], system["status"])
        return Manifest(**data)
