"""The part of a prebuild that runs in the Python whose torch the ops are built against.

It builds the ops of the packages in an unpacked wheel and puts each binary with its manifest into ``_prebuilt`` in the
package that declares it. ``wheel.json`` there lists what was built and what was left out, with the reasons.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder._version import __version__
from op_builder.cache.failures import cache_error
from op_builder.cache.key import SystemHeaders
from op_builder.cache.store import MANIFEST, Cache, Manifest
from op_builder.catalog.index import family_of
from op_builder.catalog.registry import all_specs, registered_packages
from op_builder.device import is_accelerator_named, requested_package
from op_builder.errors import AccelError, IncompatibleOpError, ToolchainError
from op_builder.load.prebuilt import DIRECTORY, INDEX, INDEX_FORMAT
from op_builder.messages import grouped
from op_builder.paths import outermost_package
from op_builder.plan import Binding
from op_builder.prebuild.batch import Batch, OpProgress, OpResult
from op_builder.prebuild.request import HOST_PACKAGE, BuildRequest, variable_of
from op_builder.prebuild.tags import wheel_tag
from op_builder.spec import OpSpec
from op_builder.system.records import encode
from op_builder.system.target import Target, requested_target
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import find_cxx

REPORTED = 3
"""The exit status after a failure was reported."""


def prebuild(tree: Path, request: BuildRequest) -> str:
    """Build the requested ops of the packages in ``tree`` into it.

    Returns:
        the wheel's tag; empty if none of its ops is requested.

    Raises:
        IncompatibleOpError: an op that its own variable requests is incompatible, or all ops are.
        AccelError: an op failed to compile, or a variable is invalid.
    """
    started = time.monotonic()
    target = requested_target()
    accelerator, package = requested_package() if target is None else ("cpu", HOST_PACKAGE)
    candidates = [spec for spec in (*all_specs(package), *all_specs(HOST_PACKAGE)) if spec.python is None]
    incomplete = [found for found in registered_packages(package) if found.reasons]
    request.check_names(candidates, " ".join(found.reason for found in incomplete))
    reasons = [found.reason for found in incomplete if (tree / found.module.partition(".")[0]).exists()]
    for reason in reasons:
        log(f"warning: {reason}")
    if target is not None:
        use = f"host ops for {target.name}"
    elif is_accelerator_named():
        use = f"accelerator {accelerator} (named)"
    else:
        name = env.ACCEL_ACCELERATOR.name
        use = f"accelerator {accelerator} (detected; {name} selects another, with or without its device)"
    log(f"torch {torch_install().version}, Python {platform.python_version()}, {use}")
    packages = ((spec, _package_of(spec)) for spec in candidates)
    own = [spec for spec, package_dir in packages if package_dir is not None and package_dir.is_relative_to(tree)]
    chosen, left_out = _choose(own, request, accelerator, target)
    if not any(map(request.wants, own)):
        if reasons and request.everything:
            raise _nothing_built(reasons)
        log("no op of this project is requested; the wheel has none")
        return ""
    if target is None:
        _reject_cpu_of_compiler()
    with _writable_cache():
        required = {spec.name for spec in chosen if request.requires(spec)}
        progress = _log_progress(len(chosen))
        results = Batch(Cache(), required, force=False, progress=progress, target=target).build_all(chosen)
        _raise_failures(chosen, results)
        left_out.update({result.op: result.message for result in results if result.status == "skipped"})
        left_out = {op: reason for op, reason in left_out.items() if reason}
        built = [_copy_binary(*pair) for pair in zip(chosen, results, strict=True) if pair[1].status != "skipped"]
    if not built:
        raise _nothing_built(grouped(left_out.items()))
    tag = wheel_tag([manifest for _, manifest, _ in built], target)
    for package_dir in dict.fromkeys(package_dir for package_dir, _, _ in built):
        index = {
            "distribution": next(tree.glob("*.dist-info")).name.partition("-")[0],
            "built_by": f"accel-ops {__version__}",
            "accelerator": accelerator,
            "tag": tag,
            "ops": [facts for package, _, facts in built if package == package_dir],
            "left_out": [{"op": op, "reason": reason} for op, reason in left_out.items()],
        }
        (package_dir / DIRECTORY / INDEX).write_text(encode(index, INDEX_FORMAT), encoding="ascii")
    log(
        f"built in {time.monotonic() - started:.1f} s: {', '.join(dict.fromkeys(facts['op'] for _, _, facts in built))}"
    )
    for line in grouped(left_out.items()):
        log(f"left out {line}")
    log(f"the wheel is tagged {tag}")
    return tag


def log(text: str) -> None:
    """Print a line for the user; frontends such as ``pip -v`` show it at once."""
    print(f"op_builder: {text}", file=sys.stderr, flush=True)


def _nothing_built(reasons: Sequence[str]) -> IncompatibleOpError:
    return IncompatibleOpError(
        "\n  ".join(["None of the requested ops can be built here.", *reasons]),
        "Fix what the reasons name, or unset the variables ACCEL_BUILD_*: ops are then compiled when first loaded.",
    )


def _reject_cpu_of_compiler() -> None:
    """Reject -march in CXX: it is not in the plan, so load() could not detect a binary for another CPU."""
    try:
        command = find_cxx(Cache().memo).command
    except ToolchainError:  # each op's checks report it
        return
    cpu_flags = [word for word in command if word.startswith(("-march=", "-mcpu="))]
    if cpu_flags:
        raise ToolchainError(
            f"The compiler is {' '.join(command)}. With {' '.join(cpu_flags)}, the wheel would crash on other CPUs.",
            "Set CXX without that flag. This project's kernels select an instruction set when they are loaded.",
        )


def _package_of(spec: OpSpec) -> Path | None:
    """The directory of the package that declares the op: this project's, or that of an author's class."""
    return Path(__file__).resolve().parents[1] if spec.owner is None else outermost_package(spec.owner)


def _choose(
    specs: Sequence[OpSpec], request: BuildRequest, accelerator: str, target: Target | None
) -> tuple[list[OpSpec], dict[str, str]]:
    """The ops to build, each once, and why the others are left out; empty if not requested."""
    available = {spec.name for spec in specs if spec.unavailable is None}
    chosen: dict[object, OpSpec] = {}
    left_out: dict[str, str] = {}
    for spec in specs:
        if spec.unavailable is not None and spec.name in available:
            continue  # another device has it
        lacking = _reason_against_target(spec, target)
        if lacking is not None and request.requires(spec):
            raise IncompatibleOpError(
                f"{spec.name} cannot be built: {lacking}.",
                f"Unset {variable_of(spec)}, or set ACCEL_BUILD_TARGET to another platform.",
            )
        reason = None if request.requires(spec) else _reason_against(spec, request, accelerator)
        reason = lacking if reason is None else reason
        if reason is None:
            chosen.setdefault(spec.owner or (spec.builder, spec.device), spec)
        else:
            left_out[spec.name] = reason
    return list(chosen.values()), left_out


def _reason_against(spec: OpSpec, request: BuildRequest, accelerator: str) -> str | None:
    variable, device = variable_of(spec), spec.device
    if not request.wants(spec):
        return f"{variable}=0" if variable in request.ops else ""
    if spec.unavailable is not None:
        return spec.unavailable.reason
    if device not in ("", accelerator):
        return f"it is for {device}; {env.ACCEL_ACCELERATOR.name}={device} builds it, with or without a device"
    return None


def _reason_against_target(spec: OpSpec, target: Target | None) -> str | None:
    if target is None:
        return None
    family = family_of(spec.builder)
    if family is not None and (reason := dict(family.not_on).get(target.system)):
        return f"{reason} (for {target.name})"
    if spec.binding is not Binding.STABLE or spec.device:
        return f"only host ops on the Stable ABI of torch can be built for {target.name}"
    return None


def _raise_failures(specs: Sequence[OpSpec], results: Sequence[OpResult]) -> None:
    failed = [(spec, each) for spec, each in zip(specs, results, strict=True) if each.status == "failed"]
    if failed:
        switches = ", ".join(dict.fromkeys(f"{variable_of(spec)}=0" for spec, _ in failed))
        raise AccelError(
            "\n".join(f"{result.op} cannot be built: {result.message}" for _, result in failed),
            f"Correct this, or build without it: set {switches}.",
        )


def _copy_binary(spec: OpSpec, result: OpResult) -> tuple[Path, Manifest, dict[str, Any]]:
    """Copy a binary from the cache to its package; returns the package, the manifest and the facts for the index."""
    package, artifact = _package_of(spec), Path(result.path)
    assert package is not None  # it is in the tree
    manifest = Manifest.from_json(artifact.with_name(MANIFEST).read_text(encoding="utf-8"))
    # Without what concerns only the building machine: system headers, and the status of files.
    headers = tuple(header._replace(status=()) for header in manifest.headers)
    manifest = manifest._replace(headers=headers, system_headers=SystemHeaders.of([]))
    epoch = env.SOURCE_DATE_EPOCH.get()
    if epoch is not None:  # a reproducible wheel
        built_at = datetime.fromtimestamp(epoch, timezone.utc).isoformat(timespec="seconds")
        manifest = manifest._replace(built_at=built_at, build_s=0.0)
    place = f"ops/{spec.name}/{manifest.key.plan.digest}/{manifest.key.digest}"  # laid out as in the cache
    directory = package / DIRECTORY / place
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).write_text(manifest.to_json(), encoding="ascii")
    shutil.copyfile(artifact, directory / artifact.name)
    facts = {
        "op": spec.name,
        "binary": f"{place}/{artifact.name}",
        "platform": manifest.key_parts["platform"],
        "torch": manifest.torch_needed,
        "python": manifest.python_needed,
    }
    copied = ("sha256", "size_bytes", "cuda_archs", "compilers", "needs", "check", "built_at")
    return package, manifest, {**facts, **{name: getattr(manifest, name) for name in copied}}


@contextmanager
def _writable_cache() -> Iterator[None]:
    """Use the user's cache, so that a second wheel takes seconds, or a temporary one if that is not writable."""
    found = cache_error(Cache().root)
    if found is None:
        yield
        return
    log(f"{found.message} Building without it.")
    with (
        tempfile.TemporaryDirectory(prefix="accel-ops-") as scratch,
        env.scope(**{env.ACCEL_CACHE_DIR.name: scratch}),
    ):
        yield


def _log_progress(ops: int) -> OpProgress:
    finished: list[str] = []

    def report(op: str, done: int, total: int, step: str) -> None:
        if total:
            log(f"{op}: [{done}/{total}] {step}")
        elif step not in ("checking", "waiting"):
            finished.append(op)
            log(f"{op}: {step} ({len(finished)} of {ops} ops)")

    return report


def main(tree: str, tag_file: str) -> int:
    """Build the requested ops into ``tree`` and write the tag to ``tag_file``; the build backend calls it."""
    root = Path(os.path.realpath(tree))
    try:
        tag = prebuild(root, BuildRequest.from_environment())
    except AccelError as error:
        # Show paths in the temporary tree as paths in the wheel.
        log(f"error: {error}".replace(f"{root}/", ""))
        return REPORTED
    Path(tag_file).write_text(tag, encoding="utf-8")
    return 0
