"""Export and import of built ops: a zip file of entries, checked when it is imported.

A bundle made on one machine loads on another with the same key parts (platform, torch, sources), which needs no
compiler; if it has one, it must be the same.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from op_builder.cache.key import COMPILER_PARTS, INSTALLED, Roots, plan_key, platform_name
from op_builder.cache.store import MANIFEST, Cache, Entry, Manifest
from op_builder.errors import AccelError, CacheError
from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.system.file_kinds import kind_of_file
from op_builder.system.records import Memo, OtherFormatError
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import find_toolset

# What zipfile raises for bytes that were changed.
DAMAGED_ARCHIVE = (OSError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, ValueError, LookupError)

# The parts of a key that come from the machine and what is installed there, not from the op.
_MACHINE_PARTS = (
    "format",
    "platform",
    "torch headers",
    "torch c++ abi",
    "python abi",
    "cpu",
    "flags in CXX",
    *COMPILER_PARTS,
)

_REMEDY = "Copy the bundle again, or export it again with `accel-ops cache export FILE`."
# Binaries compress to a quarter; sections of zeros, to a thousandth.
_FREE_BYTES = 64 << 20
_MOST_EXPANSION = 100
_MOST_MANIFEST_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16
_ENCRYPTED = 1
_ELF_HEADER_BYTES = 20
_ELF_CLASS_AND_ORDER, _ELF_TYPE, _ELF_MACHINE = slice(4, 6), slice(16, 18), slice(18, 20)
_ELF_SHARED = 3


class BundleError(AccelError, ValueError):
    """A file is not a bundle, or its content does not match its manifests; nothing of it was imported."""


def export_bundle(cache: Cache, entries: Iterable[Entry], path: Path) -> int:
    """Write ``entries`` of ``cache`` into the zip file ``path``; returns how many.

    Raises:
        CacheError: the file cannot be written.
        BundleError: there is nothing to export, ``load()`` would not use an entry, or one is a precompiled header.
    """
    chosen = list({_member_name(entry.manifest): entry for entry in entries}.values())
    if any(entry.manifest.kind == "header" for entry in chosen):
        raise BundleError(
            "A precompiled header is not exported: it fits only the compiler of this machine.",
            "Export the ops, and run `accel-ops build --precompile` on the other machine.",
        )
    if not chosen:
        raise BundleError("The cache has no entry to export.", "Build the op first: `accel-ops build OP`.")
    partial: Path | None = None
    try:
        # A name of its own: another process may export to the same file.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".partial")
        partial = Path(name)
        # Files from an image may be older than a zip file can express.
        with (
            os.fdopen(handle, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as bundle,
        ):
            for entry in chosen:
                if (rejection := cache.rejection_of(entry)) is not None:
                    raise BundleError(
                        f"{entry.directory} is not exported. {rejection.reason}",
                        "Run `accel-ops cache verify`, which moves damaged entries aside, then export again.",
                    )
                bundle.write(entry.directory / MANIFEST, f"{_directory(entry.manifest)}/{MANIFEST}")
                bundle.write(entry.artifact, _member_name(entry.manifest))
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise CacheError(f"{path} cannot be written: {error.strerror}.", "Pass another FILE.") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return len(chosen)


def import_bundle(cache: Cache, path: Path) -> list[Entry]:
    """Publish the entries of the bundle ``path``; existing entries are not replaced.

    Binaries go to the disk in pieces. Nothing is published before everything is checked.

    Raises:
        BundleError: the file cannot be read as a bundle, would expand too far, or a binary does not match its manifest.
        CacheError: the cache directory cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would wait, and a device has no end
            raise BundleError("It is not a regular file.", _REMEDY)
        with zipfile.ZipFile(path) as bundle:
            members = _members(bundle, path.stat().st_size)
            manifests = [_read_manifest(bundle, members, name) for name in members if name.endswith(f"/{MANIFEST}")]
            if not manifests:
                raise BundleError("It contains no built ops.", "Make it with: `accel-ops cache export FILE`.")
            if len(members) != 2 * len(manifests):
                raise BundleError("It contains files that belong to no op.", _REMEDY)
            with cache.staging("bundle") as staging:
                staged = [staging / str(number) for number in range(len(manifests))]
                for directory, manifest in zip(staged, manifests, strict=True):
                    _stage(cache, bundle, manifest, directory)
                return [cache.publish(*pair) for pair in zip(staged, manifests, strict=True)]
    except BundleError as error:
        raise BundleError(f"{path} is not imported: {error.message}", error.remedy) from None
    except DAMAGED_ARCHIVE as error:
        if isinstance(error, AccelError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if kind := kind_of_file(path, expected="zip"):
            raise BundleError(f"{path} is not a bundle: it is {kind[0]}.", kind[1]) from error
        raise BundleError(f"{path} cannot be read as a bundle: {reason}.", _REMEDY) from error


def differences_here(manifest: Manifest, memo: Memo) -> list[str]:
    """Why this machine would never use an entry, a line for each differing part of its key; empty if it may."""
    parts = manifest.key_parts
    # A plan with the same machine parts in its key as the entry's plan would have here.
    kernel = Source(Path("any.cu"), "any.cu", Language.CUDA, text="")
    sources = (kernel,) if "cuda compiler" in parts else ()
    flags = ("-march=native",) if "cpu" in parts else ()
    plan = BuildPlan(manifest.op, manifest.op, Binding(parts["binding"]), sources, (), flags, (), ())
    compared = set(_MACHINE_PARTS)
    try:
        if plan.binding.uses_torch:
            torch_install()
    except AccelError as error:
        return [error.message]
    try:
        toolset = find_toolset(plan, memo)
    except AccelError:  # without a compiler, entries of any compiler are used
        toolset = None
        compared.difference_update(COMPILER_PARTS)
    here = plan_key(plan, toolset, memo).parts
    differing = [name for name in _MACHINE_PARTS if name in compared and parts.get(name) != here.get(name)]
    lines = [f"{name}: built for {parts.get(name, 'none')}, here {here.get(name, 'none')}" for name in differing]
    # Torch's headers that an op on the Stable ABI has read; for others they are a part of the key.
    of_torch = (header for header in manifest.headers if header.root == f"{INSTALLED}torch")
    other = [header for header in of_torch if not header.is_unchanged(Roots.of(plan))]
    lines += [f"no tool lists the inputs of {what}" for what in manifest.key.unlisted]
    return [*lines, *(f"{header.path} of torch differs here" for header in other)]


def _members(bundle: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The members of a bundle by name, if its index is plausible; reads none of them."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in bundle.infolist():
        if members.setdefault(member.filename, member) is not member:
            raise BundleError(f"It contains two files named {member.filename!a:.200}.", _REMEDY)
    for name, member in members.items():
        is_plain = name.isascii() and name.isprintable() and name == member.orig_filename
        if not is_plain or name.count("/") != 3:
            raise BundleError(f"It contains {member.orig_filename!a:.200}, which is not a file of an op.", _REMEDY)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or member.flag_bits & _ENCRYPTED:
            raise BundleError(f"{name} is encrypted or compressed by an unknown method.", _REMEDY)
    expanded = sum(member.file_size for member in members.values())
    if expanded > _FREE_BYTES + _MOST_EXPANSION * file_bytes:
        raise BundleError(f"It has {file_bytes} bytes and would expand to {expanded}, which no built ops do.", _REMEDY)
    return members


def _read_manifest(bundle: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str) -> Manifest:
    """A manifest whose binary is in the bundle, according to the index."""
    if members[name].file_size > _MOST_MANIFEST_BYTES:
        size_bytes = members[name].file_size
        raise BundleError(f"The manifest {name} has {size_bytes} bytes, more than {_MOST_MANIFEST_BYTES}.", _REMEDY)
    try:
        manifest = Manifest.from_json(bundle.read(name).decode("ascii"))
    except OtherFormatError as error:
        raise BundleError(f"{name}: {error}.", "Export and import with the same version of accel-ops.") from None
    except ValueError as error:
        raise BundleError(f"{name} is damaged: {error}.", _REMEDY) from None
    if manifest.kind == "header":
        raise BundleError(f"{name} is of a precompiled header, which fits only the machine that made it.", _REMEDY)
    binary = members.get(_member_name(manifest))
    if binary is None or name != f"{_directory(manifest)}/{MANIFEST}" or manifest.artifact == MANIFEST:
        raise BundleError(f"{name} describes a binary that the bundle does not contain.", _REMEDY)
    if binary.file_size != manifest.size_bytes:
        raise BundleError(
            f"{_member_name(manifest)} has {binary.file_size} bytes; its manifest says {manifest.size_bytes}.", _REMEDY
        )
    return manifest


def _stage(cache: Cache, bundle: zipfile.ZipFile, manifest: Manifest, directory: Path) -> None:
    """Write a binary below ``directory``, if it is the one that its manifest describes."""
    digest, start = hashlib.sha256(), b""
    with bundle.open(_member_name(manifest)) as source, cache.errors_explained():
        directory.mkdir()
        artifact = directory / manifest.artifact
        with artifact.open("xb") as target:
            while piece := source.read(_PIECE_BYTES):
                start = start or piece[:_ELF_HEADER_BYTES]
                digest.update(piece)
                target.write(piece)
        artifact.chmod(0o755)
    if digest.hexdigest() != manifest.sha256:
        raise BundleError(f"{_member_name(manifest)} does not match its manifest.", _REMEDY)
    platform = manifest.key_parts.get("platform", "")
    if platform.startswith("linux") and not _is_library(start, is_for_here=platform == platform_name()):
        raise BundleError(f"{_member_name(manifest)} is not a shared library of the platform in its manifest.", _REMEDY)


def _is_library(start: bytes, *, is_for_here: bool) -> bool:
    """Whether a file with this start is an ELF file, and if it is meant for this machine, a shared library for it."""
    if not start.startswith(b"\x7fELF") or len(start) < _ELF_HEADER_BYTES:
        return False
    try:
        with open("/proc/self/exe", "rb") as file:
            here = file.read(_ELF_HEADER_BYTES)
    except OSError:  # another system, or no /proc
        return True
    same = all(start[part] == here[part] for part in (_ELF_CLASS_AND_ORDER, _ELF_MACHINE))
    return not is_for_here or (same and int.from_bytes(start[_ELF_TYPE], sys.byteorder) == _ELF_SHARED)


def _directory(manifest: Manifest) -> str:
    return f"{manifest.op}/{manifest.key.plan.digest}/{manifest.key.digest}"


def _member_name(manifest: Manifest) -> str:
    return f"{_directory(manifest)}/{manifest.artifact}"
