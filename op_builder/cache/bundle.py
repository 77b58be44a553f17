"""Taking built ops elsewhere: a zip file of entries, checked on the way in.

A bundle made on one machine loads on another with the same key parts (platform, torch, sources), which needs no
compiler; if it has one, it must be the same.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from op_builder.cache.fingerprint import COMPILER_PARTS, plan_key
from op_builder.cache.headers import Roots
from op_builder.cache.store import MANIFEST, Cache, Entry, Manifest
from op_builder.errors import AccelError, CacheError
from op_builder.plan import Binding, BuildPlan, Language, Source
from op_builder.system.memo import Memo
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import find_toolset

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


class BundleError(AccelError, ValueError):
    """A file is not a bundle, or its content does not match its manifests; nothing of it was imported."""


def export_bundle(entries: Iterable[Entry], path: Path) -> int:
    """Write ``entries`` into the zip file ``path``; returns how many.

    Raises:
        CacheError: the file cannot be written.
        BundleError: there is nothing to export, an entry is damaged, or one is a precompiled header.
    """
    chosen = list(entries)
    if any(entry.manifest.kind == "header" for entry in chosen):
        raise BundleError(
            "A precompiled header is not exported: it fits only the compiler of this machine.",
            "Export the ops, and run python -m op_builder.build --precompile on the other machine.",
        )
    if not chosen:
        raise BundleError("There is no entry to export.", "Build the op first: python -m op_builder.build OP.")
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
                if not entry.is_intact():
                    raise BundleError(f"The entry {entry.directory} is damaged.", "python -m op_builder.cache verify")
                base = f"{entry.manifest.op}/{entry.directory.parent.name}/{entry.digest}"
                bundle.write(entry.directory / MANIFEST, f"{base}/{MANIFEST}")
                bundle.write(entry.artifact, f"{base}/{entry.manifest.artifact}")
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise CacheError(f"{path} cannot be written: {error.strerror}.", "Choose another place.") from error
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
    return len(chosen)


def import_bundle(cache: Cache, path: Path) -> list[Entry]:
    """Publish the entries of the bundle ``path``; existing entries are not replaced.

    Raises:
        BundleError: the file cannot be read as a bundle, or a binary does not match its manifest.
        CacheError: the cache directory cannot be written.
    """
    try:
        with zipfile.ZipFile(path) as bundle:
            found = [_read(bundle, name) for name in bundle.namelist() if name.endswith(f"/{MANIFEST}")]
    # zipfile raises the last three for bytes that were changed in transit.
    except (OSError, zipfile.BadZipFile, KeyError, EOFError, zlib.error, RuntimeError, ValueError) as error:
        raise BundleError(f"{path} cannot be read as a bundle: {error}.", "Export it again.") from error
    if not found:
        raise BundleError(f"{path} holds no built ops.", "Make it with: python -m op_builder.cache export FILE.")
    # Everything was checked before the first is published.
    return [_publish(cache, manifest, content) for manifest, content in found]


def misfits(manifest: Manifest, memo: Memo) -> list[str]:
    """Why an entry would never be used on this machine, a line for each part of its key; empty when it may be."""
    parts = manifest.key_parts
    # A plan that the same parts of this machine count for as for the entry's.
    kernel = Source(Path("any.cu"), "any.cu", Language.CUDA, text="")
    sources = (kernel,) if "cuda compiler" in parts else ()
    flags = ("-march=native",) if "cpu" in parts else ()
    plan = BuildPlan(manifest.op, manifest.op, Binding(parts["binding"]), sources, (), flags, (), ())
    compared = set(_MACHINE_PARTS)
    try:
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
    torch = Roots({"torch": str(torch_install().include_dir)})
    other = [header for header in manifest.headers if header.root == "torch" and not header.is_unchanged(torch)]
    return [*lines, *(f"{header.path} of torch differs here" for header in other)]


def _read(bundle: zipfile.ZipFile, name: str) -> tuple[Manifest, bytes]:
    try:
        manifest = Manifest.from_json(bundle.read(name).decode())
        Binding(manifest.key_parts["binding"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"The manifest {name} cannot be read: {error}.", "Export with the same version.") from error
    for text in (manifest.artifact, manifest.op):
        if Path(text).name != text or text in ("", ".", ".."):
            raise BundleError(f"The manifest {name} names {text!r}, not a plain name.", "Do not use this bundle.")
    content = bundle.read(f"{name.removesuffix(MANIFEST)}{manifest.artifact}")
    if hashlib.sha256(content).hexdigest() != manifest.sha256:
        raise BundleError(f"The binary of {name} does not match its manifest.", "Export it again.")
    return manifest, content


def _publish(cache: Cache, manifest: Manifest, content: bytes) -> Entry:
    with cache.staging(manifest.op) as staging, cache.errors_explained():
        result = staging / "result"
        result.mkdir()
        artifact = result / manifest.artifact
        artifact.write_bytes(content)
        artifact.chmod(0o755)
        return cache.publish(result, manifest)
