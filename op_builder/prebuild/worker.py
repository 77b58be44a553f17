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
from typing import TYPE_CHECKING, Any

from op_builder import env
from op_builder._version import __version__
from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.builder.sycl import SYCLOpBuilder
from op_builder.cache.failures import cache_error
from op_builder.cache.key import SystemHeaders
from op_builder.cache.store import MANIFEST, Cache, Manifest
from op_builder.catalog.index import family_of
from op_builder.catalog.registry import all_builders, registered_packages
from op_builder.device import is_accelerator_named, requested_package
from op_builder.errors import AccelError, IncompatibleOpError, ToolchainError
from op_builder.load.prebuilt import DIRECTORY, INDEX, INDEX_FORMAT
from op_builder.messages import grouped
from op_builder.paths import outermost_package
from op_builder.plan import Binding
from op_builder.prebuild.batch import OpProgress, OpResult, build_all
from op_builder.prebuild.request import HOST_PACKAGE, BuildRequest, variable_of
from op_builder.prebuild.tags import wheel_tag
from op_builder.system.records import encode
from op_builder.system.target import Target, requested_target
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.toolset import find_cxx

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder

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
    every = [*all_builders(package).values(), *all_builders(HOST_PACKAGE).values()]
    candidates = [builder for builder in every if builder.spec().python is None]
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
    own = [builder for builder in candidates if _is_in(tree, builder)]
    chosen, left_out = _choose(own, request, accelerator, target)
    if not any(map(request.wants, own)):
        if reasons and request.everything:
            raise _nothing_built(reasons)
        log("no op of this project is requested; the wheel has none")
        return ""
    if target is None:
        _reject_cpu_of_compiler()
    with _writable_cache():
        required = {builder.name for builder in chosen if request.requires(builder)}
        results = build_all(chosen, required=required, force=False, progress=_log_progress(len(chosen)), target=target)
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
        "Fix that, or unset the variables ACCEL_BUILD_*; ops are then compiled when they are first loaded.",
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


def _is_in(tree: Path, builder: OpBuilder) -> bool:
    """Whether the wheel contains the package that declares the op: this project, or that of an author's class."""
    owner = builder.spec().owner
    if owner is None:
        return Path(__file__).resolve().is_relative_to(tree)
    package = outermost_package(owner)
    return package is not None and package.is_relative_to(tree)


def _choose(
    builders: Sequence[OpBuilder], request: BuildRequest, accelerator: str, target: Target | None
) -> tuple[list[OpBuilder], dict[str, str]]:
    """The builders to build, each class once, and why the others are left out; empty if not requested."""
    available = {builder.name for builder in builders if builder.spec().unavailable is None}
    chosen: dict[str, OpBuilder] = {}
    left_out: dict[str, str] = {}
    for builder in builders:
        if builder.spec().unavailable is not None and builder.name in available:
            continue  # another device has it
        lacking = _reason_against_target(builder, target)
        if lacking is not None and request.requires(builder):
            raise IncompatibleOpError(
                f"{builder.name} cannot be built: {lacking}.", "Request other ops, or another platform."
            )
        reason = None if request.requires(builder) else _reason_against(builder, request, accelerator)
        reason = lacking if reason is None else reason
        if reason is None:
            chosen.setdefault(f"{type(builder).__module__}.{type(builder).__qualname__}", builder)
        else:
            left_out[builder.name] = reason
    return list(chosen.values()), left_out


def _reason_against(builder: OpBuilder, request: BuildRequest, accelerator: str) -> str | None:
    variable, device = variable_of(builder), _device_of(builder)
    if not request.wants(builder):
        return f"{variable}=0" if variable in request.ops else ""
    if (rejection := builder.spec().unavailable) is not None:
        return rejection.reason
    if device not in (None, accelerator):
        return f"it is for {device}; {env.ACCEL_ACCELERATOR.name}={device} builds it, with or without a device"
    return None


def _reason_against_target(builder: OpBuilder, target: Target | None) -> str | None:
    if target is None:
        return None
    family = family_of(type(builder).__name__)
    if family is not None and (reason := dict(family.not_on).get(target.system)):
        return f"{reason} (for {target.name})"
    if builder.BINDING is not Binding.STABLE or _device_of(builder) is not None:
        return f"only host ops on the Stable ABI of torch can be built for {target.name}"
    return None


def _device_of(builder: OpBuilder) -> str | None:
    """The accelerator that an op is for; None if it is for all."""
    if isinstance(builder, CUDAOpBuilder):
        return "cuda"
    return "xpu" if isinstance(builder, SYCLOpBuilder) else None


def _raise_failures(builders: Sequence[OpBuilder], results: Sequence[OpResult]) -> None:
    failed = [(builder, each) for builder, each in zip(builders, results, strict=True) if each.status == "failed"]
    if failed:
        switches = ", ".join(dict.fromkeys(f"{variable_of(builder)}=0" for builder, _ in failed))
        raise AccelError(
            "\n".join(f"{result.op} cannot be built: {result.message}" for _, result in failed),
            f"Fix that, or leave it out with {switches}.",
        )


def _copy_binary(builder: OpBuilder, result: OpResult) -> tuple[Path, Manifest, dict[str, Any]]:
    """Copy a binary from the cache to its package; returns the package, the manifest and the facts for the index."""
    package, artifact = outermost_package(type(builder)), Path(result.path)
    assert package is not None  # _is_in() has found it
    manifest = Manifest.from_json(artifact.with_name(MANIFEST).read_text(encoding="utf-8"))
    # Without what concerns only the building machine: system headers, and the status of files.
    headers = tuple(header._replace(status=()) for header in manifest.headers)
    manifest = manifest._replace(headers=headers, system_headers=SystemHeaders.of([]))
    epoch = env.SOURCE_DATE_EPOCH.get()
    if epoch is not None:  # a reproducible wheel
        built_at = datetime.fromtimestamp(epoch, timezone.utc).isoformat(timespec="seconds")
        manifest = manifest._replace(built_at=built_at, build_s=0.0)
    place = f"ops/{builder.name}/{manifest.key.plan.digest}/{manifest.key.digest}"  # laid out as in the cache
    directory = package / DIRECTORY / place
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).write_text(manifest.to_json(), encoding="ascii")
    shutil.copyfile(artifact, directory / artifact.name)
    facts = {
        "op": builder.name,
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
