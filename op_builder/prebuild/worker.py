"""The part of a prebuild that runs in the Python whose torch it is made against.

It gets an unpacked wheel, builds the ops of the packages in it, and leaves each binary with its manifest
below ``_prebuilt`` in the package that declares it, beside ``wheel.json``, which says what was built, by
what, for what, and what was left out and why.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from op_builder import env
from op_builder._version import __version__
from op_builder.build import Outcome, build_all
from op_builder.builder.cuda import CUDAOpBuilder
from op_builder.builder.sycl import SYCLOpBuilder
from op_builder.cache.headers import SystemHeaders
from op_builder.cache.store import MANIFEST, Cache, Manifest
from op_builder.catalog.registry import UnavailableOpBuilder, all_builders, registered_packages
from op_builder.errors import AccelError, IncompatibleOpError, ToolchainError
from op_builder.load.prebuilt import DIRECTORY, INDEX, INDEX_FORMAT
from op_builder.paths import outermost_package
from op_builder.prebuild.order import Order, variable_of
from op_builder.prebuild.tags import wheel_tag
from op_builder.prebuild.target import REFUSED, say
from op_builder.prebuild.wheel import distribution_of
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.compiler import find_cxx

if TYPE_CHECKING:
    from op_builder.builder.base import OpBuilder

_HOST_OPS = "op_builder.cpu"
_NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True)
class LeftOut:
    """An op that is not in the wheel, and why."""

    op: str
    reason: str


@dataclass(frozen=True)
class Built:
    """One binary of the wheel.

    Attributes:
        op: the op's name.
        package: directory of the package that declares it, in the unpacked wheel.
        directory: where the cache has it.
        manifest: what the wheel is to say of it.
    """

    op: str
    package: Path
    directory: Path
    manifest: Manifest

    @property
    def place(self) -> str:
        """Its directory below ``_prebuilt``, laid out as in the cache."""
        key = self.manifest.key
        return f"ops/{self.op}/{key.plan.digest}/{key.digest}"


def prebuild(tree: Path, order: Order) -> str:
    """Build what ``order`` wants of the packages in ``tree`` and put it there.

    Returns:
        the wheel's tag; empty where none of its ops is asked for.

    Raises:
        IncompatibleOpError: an op that it insists on cannot be built here, or nothing can.
        AccelError: compiling one failed, or a variable is wrong.
    """
    started = time.monotonic()
    from accelerator.selection import builder_package, requested_name

    accelerator, package = builder_package()
    candidates = [*all_builders(package).values(), *all_builders(_HOST_OPS).values()]
    registered = [found for found in registered_packages(package) if found.complaint]
    order.refuse_unknown(candidates, " ".join(found.complaint for found in registered))
    complaints = [found.complaint for found in registered if (tree / found.module.partition(".")[0]).exists()]
    for complaint in complaints:
        say(f"warning: {complaint}")
    own = [builder for builder in candidates if _is_in(tree, builder)]
    how = (
        "named" if requested_name() else f"detected; {env.ACCEL_ACCELERATOR.name} names another, which need not be here"
    )
    say(f"torch {torch_install().version}, Python {platform.python_version()}, accelerator {accelerator} ({how})")
    chosen, left_out = _choose(own, order, accelerator)
    if not chosen and not any(map(order.wants, own)):
        if complaints and order.everything:
            raise IncompatibleOpError(
                f"None of the ops asked for can be built. {' '.join(complaints)}",
                "Mend that, or unset ACCEL_BUILD_OPS: ops are then compiled when first loaded.",
            )
        say("none of this project's ops is asked for; the wheel holds none")
        return ""
    _refuse_cpu_of_compiler()
    with _cache_that_can_be_written():
        insisted = {builder.name for builder in chosen if order.insists_on(builder)}
        outcomes = build_all(chosen, required=insisted, force=False, report=_Progress(len(chosen)))
        built, more = _settle(chosen, outcomes)
        left_out = [left for left in (*left_out, *more) if left.reason != _NOT_ASKED_FOR]
        if not built:
            told = "".join(f"\n  {line}" for line in _by_reason(left_out))
            raise IncompatibleOpError(
                f"None of the ops asked for can be built here.{told}",
                "Mend that, or unset ACCEL_BUILD_OPS: ops are then compiled when first loaded.",
            )
        tag = wheel_tag([item.manifest for item in built])
        for package_dir in dict.fromkeys(item.package for item in built):
            _place([item for item in built if item.package == package_dir], package_dir)
            _write_index(package_dir, distribution_of(tree), accelerator, tag, built, left_out)
    names = ", ".join(dict.fromkeys(item.op for item in built))
    say(f"built in {time.monotonic() - started:.1f} s: {names}")
    for line in _by_reason(left_out):
        say(f"left out {line}")
    say(f"the wheel is tagged {tag}")
    return tag


def _refuse_cpu_of_compiler() -> None:
    """An op's own -march is in its recipe, by which a binary that does not fit is noticed; that of CXX is not."""
    try:
        command = find_cxx(Cache().memo).command
    except ToolchainError:  # each op's check tells that
        return
    tied = [word for word in command if word.startswith(("-march=", "-mcpu="))]
    if tied:
        raise ToolchainError(
            f"The compiler is {' '.join(command)}: {' '.join(tied)} ties each binary of the wheel to such CPUs, and "
            "nothing would tell where it is installed.",
            "Set CXX without it. This project's kernels choose among instruction sets when they are loaded.",
        )


def _is_in(tree: Path, builder: OpBuilder) -> bool:
    """Whether the wheel holds the package of a builder, or, of an op that is not there yet, this very project."""
    declared = builder.INSTEAD_OF if isinstance(builder, UnavailableOpBuilder) else type(builder)
    if declared is None:
        return Path(__file__).resolve().is_relative_to(tree)
    package = outermost_package(declared)
    return package is not None and package.is_relative_to(tree)


def _choose(builders: Sequence[OpBuilder], order: Order, accelerator: str) -> tuple[list[OpBuilder], list[LeftOut]]:
    """The builders whose ops are to be built, each recipe once, and what is left out."""
    # What one device does not have, another may.
    had = {builder.name for builder in builders if not isinstance(builder, UnavailableOpBuilder)}
    builders = [
        builder for builder in builders if not (isinstance(builder, UnavailableOpBuilder) and builder.name in had)
    ]
    chosen: dict[str, OpBuilder] = {}
    left_out: dict[str, LeftOut] = {}
    for builder in builders:
        if not order.wants(builder):
            said = f"{variable_of(builder)}=0" if variable_of(builder) in order.ops else _NOT_ASKED_FOR
            left_out[builder.name] = LeftOut(builder.name, said)
        elif isinstance(builder, UnavailableOpBuilder) and not order.insists_on(builder):
            left_out[builder.name] = LeftOut(builder.name, builder.REASON)
        elif _device_of(builder) not in (None, accelerator) and not order.insists_on(builder):
            device = _device_of(builder)
            reason = f"it is for {device}; {env.ACCEL_ACCELERATOR.name}={device} builds it, with or without a device"
            left_out[builder.name] = LeftOut(builder.name, reason)
        else:
            chosen.setdefault(f"{type(builder).__module__}.{type(builder).__qualname__}", builder)
    return list(chosen.values()), list(left_out.values())


def _device_of(builder: OpBuilder) -> str | None:
    """The accelerator that an op is for, None where it is for all."""
    if isinstance(builder, CUDAOpBuilder):
        return "cuda"
    return "xpu" if isinstance(builder, SYCLOpBuilder) else None


def _settle(builders: Sequence[OpBuilder], outcomes: Sequence[Outcome]) -> tuple[list[Built], list[LeftOut]]:
    failed = [(builder, told) for builder, told in zip(builders, outcomes, strict=True) if told.status == "failed"]
    if failed:
        raise AccelError(
            "".join(f"\n{outcome.op} cannot be built: {outcome.message}" for _, outcome in failed).strip(),
            f"Leave it out with {', '.join(dict.fromkeys(f'{variable_of(builder)}=0' for builder, _ in failed))}, "
            "or mend what is told above.",
        )
    built, left_out = [], []
    for builder, outcome in zip(builders, outcomes, strict=True):
        if outcome.status == "skipped":
            left_out.append(LeftOut(outcome.op, outcome.message))
            continue
        package = outermost_package(type(builder))
        assert package is not None, "chosen because its package is in the wheel"
        directory = Path(outcome.path).parent
        manifest = Manifest.from_json((directory / MANIFEST).read_text(encoding="utf-8"))
        # Not what of the system was read: that is the building machine's, and nobody asks for it in the wheel.
        manifest = replace(manifest, system_headers=SystemHeaders.of([]))
        built.append(Built(outcome.op, package, directory, manifest))
    return built, left_out


def _by_reason(left_out: Sequence[LeftOut]) -> list[str]:
    """A line for each reason, with the ops that it keeps out."""
    ops: dict[str, list[str]] = {}
    for left in left_out:
        ops.setdefault(left.reason, []).append(left.op)
    return [f"{', '.join(names)}: {reason}" for reason, names in ops.items()]


def _place(built: Sequence[Built], package: Path) -> None:
    for item in built:
        place = package / DIRECTORY / item.place
        place.mkdir(parents=True, exist_ok=True)
        (place / MANIFEST).write_text(item.manifest.to_json() + "\n", encoding="utf-8")
        shutil.copyfile(item.directory / item.manifest.artifact, place / item.manifest.artifact)


def _write_index(
    package: Path,
    distribution: str,
    accelerator: str,
    tag: str,
    built: Sequence[Built],
    left_out: Sequence[LeftOut],
) -> None:
    index: dict[str, Any] = {
        "format": INDEX_FORMAT,
        "distribution": distribution,
        "built_by": f"accel-ops {__version__}",
        "accelerator": accelerator,
        "tag": tag,
        "ops": [_facts(item) for item in built if item.package == package],
        "left_out": [asdict(left) for left in left_out],
    }
    (package / DIRECTORY / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _facts(item: Built) -> dict[str, Any]:
    manifest = item.manifest
    return {
        "op": item.op,
        "binary": f"{item.place}/{manifest.artifact}",
        "sha256": manifest.sha256,
        "size_bytes": manifest.size_bytes,
        "platform": manifest.key_parts["platform"],
        "torch": manifest.torch_needed,
        "python": manifest.python_needed,
        "cuda_archs": manifest.cuda_archs,
        "compilers": manifest.compilers,
        "needs": manifest.needs,
        "check": manifest.check,
        "built_at": manifest.built_at,
    }


@contextmanager
def _cache_that_can_be_written() -> Iterator[None]:
    """The user's cache of built ops, which makes a second wheel in no time; else one of this build alone."""
    obstacle = Cache().writable_obstacle()
    if not obstacle:
        yield
        return
    say(f"the cache {Cache().root} cannot be written ({obstacle}); building without it")
    with (
        tempfile.TemporaryDirectory(prefix="accel-ops-") as scratch,
        env.scope(**{env.ACCEL_CACHE_DIR.name: scratch}),
    ):
        yield


class _Progress:
    """Tells each step of each op, and how many ops are done."""

    def __init__(self, ops: int) -> None:
        self._ops = ops
        self._done: list[str] = []

    def __call__(self, op: str, done: int, total: int, step: str) -> None:
        if total:
            say(f"{op}: [{done}/{total}] {step}")
        elif step not in ("checking", "waiting"):
            self._done.append(op)
            say(f"{op}: {step} ({len(self._done)} of {self._ops} ops)")


def main(arguments: Sequence[str]) -> int:
    """Run by the backend: the unpacked wheel, the order and where the tag is to be written."""
    tree, order, answer = arguments
    everything, ops = json.loads(order)
    try:
        tag = prebuild(Path(os.path.realpath(tree)), Order(everything, ops))
    except AccelError as error:
        # Places below the unpacked wheel, which is gone when this is read, are those in the wheel.
        say(f"error: {error}".replace(f"{os.path.realpath(tree)}/", ""))
        return REFUSED
    Path(answer).write_text(tag, encoding="utf-8")
    return 0
