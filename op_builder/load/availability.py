"""Whether ``load()`` would work, without loading; for the report and ``is_compatible()``."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from op_builder import env
from op_builder.cache.store import Entry
from op_builder.errors import AccelError, IncompatibleOpError
from op_builder.load.loader import NOEXEC_REMEDY
from op_builder.load.op import Op
from op_builder.load.prebuilt import Rejected, find_prebuilt, refused_by_linker
from op_builder.load.resolver import JIT_FORBIDDEN, JIT_REMEDY, Request
from op_builder.system.file_contents import mapping_obstacle
from op_builder.system.outcomes import CheckOutcome, Failed, Passed, failures, guarded
from op_builder.system.target import require_supported

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Availability:
    """Whether ``load()`` would work, and what it would use.

    Attributes:
        prebuilt: the prebuilt binary that fits, or the one that does not, with the reason.
        cached: the entry in the cache.
        outcomes: the checks that apply; those of building only if there is no binary.
    """

    prebuilt: Entry | Rejected | None
    cached: Entry | None
    outcomes: list[CheckOutcome]

    @property
    def is_installed(self) -> bool:
        return isinstance(self.prebuilt, Entry)

    @property
    def failed(self) -> list[Failed]:
        return failures(self.outcomes)


def examine(op: Op) -> Availability:
    """Find out what ``load()`` would do, without compiling the op."""
    try:
        require_supported(sys.platform)
    except IncompatibleOpError as error:
        return Availability(None, None, [Failed("system", error.message, error.remedy)])
    prebuilt = find_prebuilt(op)
    if isinstance(prebuilt, Entry):
        prebuilt = refused_by_linker(prebuilt) or prebuilt
    cached: Entry | None = None
    needs_binary = False
    broken: list[CheckOutcome] = []
    try:
        request = Request.of(op)
        needs_binary = True
        cached = request.find_cached()
    except AccelError as error:
        logger.debug("'%s' has no plan: %s", op.name, error.message)
    except Exception as error:  # the methods of another package's builder may raise anything
        remedy = f"Report this to the author of {type(op).__module__}."
        broken = [Failed("plan", f"its builder fails: {type(error).__name__}: {error}", remedy)]
    outcomes = [*broken, *op.load_checks()]
    if isinstance(prebuilt, Entry):
        pass
    elif cached is None:
        outcomes = list(dict.fromkeys([*op.build_checks(), *outcomes]))
        if needs_binary:
            outcomes.append(guarded("JIT", _jit_check))
    else:
        artifact = cached.artifact
        outcomes.append(guarded("cached binary", lambda: _mapping_check(artifact)))
    return Availability(prebuilt, cached, outcomes)


def _mapping_check(artifact: Path) -> CheckOutcome:
    with artifact.open("rb") as file:
        obstacle = mapping_obstacle(file.fileno())
    if obstacle:
        return Failed("cached binary", f"{artifact}: {obstacle}.", NOEXEC_REMEDY)
    return Passed("cached binary", str(artifact))


def _jit_check() -> CheckOutcome:
    return Passed("JIT", "allowed") if env.ACCEL_JIT.get() else Failed("JIT", JIT_FORBIDDEN, JIT_REMEDY)
