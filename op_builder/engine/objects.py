"""Objects of earlier builds, reused where the compiler would make the same.

An object is one file in the cache's folder of objects: a zip of what a compile step wrote, and of the headers that it
read. Its name contains a digest of everything else that counts: the compilers' identity, the command and the
source's content. It replaces an older one with other headers atomically. Objects count in the cache's bound, and are
removed before any entry.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import zipfile
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_builder.cache import layout
from op_builder.cache.bundle import DAMAGED_ARCHIVE
from op_builder.cache.depfiles import HeaderGoneError, read_headers
from op_builder.cache.key import BuildKey, Header, PlanKey, Roots, SystemHeaders, saved_since
from op_builder.cache.layout import HOME, OBJECTS
from op_builder.cache.ownership import open_file, ownership_rejection
from op_builder.cache.store import Cache
from op_builder.engine.commands import (
    CompileStep,
    compile_steps,
    directories_of,
    lists_assembled,
    stamped_directories,
)
from op_builder.errors import AccelError
from op_builder.messages import warn_once
from op_builder.plan import BuildPlan
from op_builder.system.outcomes import Rejection
from op_builder.toolchains.compiler_probe import library_directories
from op_builder.toolchains.flags import PLACE_FLAGS, flags_of, linked_libraries
from op_builder.toolchains.toolset import Toolset

logger = logging.getLogger(__name__)

_RECORD, _OBJECT, _DEPFILE, _ASSEMBLED = "record.json", "object", "depfile", "assembled"
# Parts of a plan's key that concern other sources, or the linker alone.
_OTHER_PARTS = ("source ", "link flags", "linked ")
# What reading a damaged archive, or a record with other members, may raise.
_DAMAGED = (*DAMAGED_ARCHIVE, TypeError, AttributeError)


@dataclass(frozen=True)
class Objects:
    """The objects that builds of one plan can use."""

    cache: Cache
    plan: BuildPlan
    toolset: Toolset

    def restore(self, key: PlanKey, staging: Path) -> set[str]:
        """Copy the objects that fit into a build's directory; returns their names."""
        rejection = ownership_rejection(str(self.cache.root), HOME, OBJECTS)
        if rejection is not None:
            warn_once(logger, f"The cache's compiled objects are not used. {rejection}")
            return set()
        restored: set[str] = set()
        for step, name in self._names(key).items():
            with contextlib.suppress(*_DAMAGED):
                opened = open_file(str(self.cache.root), str(self.cache.home / OBJECTS / name))
                if isinstance(opened, Rejection):
                    warn_once(logger, f"A compiled object is not used. {opened}")
                    continue
                with os.fdopen(opened, "rb") as file, zipfile.ZipFile(file) as archive:
                    record = json.loads(archive.read(_RECORD))
                    if not _key_of(record).headers_unchanged(Roots.of(self._alone(step)), self.cache.memo):
                        continue
                    for member, path in _files(step, staging).items():
                        if member in archive.namelist():
                            path.write_bytes(archive.read(member))
                    restored.add(step.object_name)
                    os.utime(opened)
        return restored

    def store(self, key: PlanKey, staging: Path, names: Container[str], started_ns: int) -> None:
        """Keep objects of a build's directory; a failure is logged, and fails no build.

        Args:
            key: of the plan, whose sources have not changed since.
            names: of the objects.
            started_ns: when the build began; an object of files that were saved since is not kept.
        """
        try:
            folder = self.cache.writable_dir(OBJECTS)
            mode = layout.modes(self.cache.root).file
            for step, name in self._names(key).items():
                files = {member: path for member, path in _files(step, staging).items() if path.exists()}
                if step.object_name not in names or not {_OBJECT, _DEPFILE}.issubset(files):
                    continue
                read = key_of_steps(key, self._alone(step), self.toolset, staging, [step])
                # What names this build's directory would fit no other build.
                texts = (files[member].read_bytes() for member in (_OBJECT, _DEPFILE))
                is_tied = any(os.fsencode(os.path.realpath(staging)) in text for text in texts)
                if is_tied or saved_since(started_ns, self._alone(step), read):
                    continue
                fresh = staging / name
                with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                    archive.writestr(_RECORD, json.dumps([read.headers, read.absent, read.system]))
                    for member, path in files.items():
                        archive.write(path, member)
                fresh.chmod(mode)
                os.replace(fresh, folder / name)
        except (AccelError, HeaderGoneError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.debug("Objects of '%s' are not kept: %s", self.plan.op, error)

    def _names(self, key: PlanKey) -> dict[CompileStep, str]:
        """The file names of the objects of all steps."""
        common = {name: text for name, text in key.parts.items() if not name.startswith(_OTHER_PARTS)}
        names = {}
        for index, step in enumerate(compile_steps(self.plan, self.toolset)):
            source = key.parts[f"source {index} {step.source.label}"]
            # The object's number is its place in the plan.
            command = [word for word in step.command if step.object_name not in word]
            digest = PlanKey({**common, "source": source, "command": json.dumps(command)}).digest
            names[step] = f"{self.plan.op}-{digest}.zip"
        return names

    def _alone(self, step: CompileStep) -> BuildPlan:
        """The plan without the other sources, whose headers do not count."""
        return self.plan._replace(sources=(step.source,))


def key_of_steps(
    key: PlanKey,
    plan: BuildPlan,
    toolset: Toolset,
    staging: Path,
    steps: Sequence[CompileStep],
    linked: Path | None = None,
) -> BuildKey:
    """The key of what finished compile steps of ``plan`` made, with all files that they and the linker read.

    Args:
        linked: the linker's depfile.
    """
    assembled = [staging / step.assembled for step in steps]
    is_listed = lists_assembled(plan, toolset) and all(path.exists() for path in assembled)
    flags = [*plan.cxx_flags, *plan.nvcc_flags, *plan.link_flags, *toolset.cxx.flags, *toolset.variable_words]
    linker = (*toolset.cxx.command, *flags_of(PLACE_FLAGS, plan.link_flags))
    read = read_headers(
        plan,
        [staging / step.depfile for step in steps],
        stamped_directories(plan, toolset),
        {directories_of(step.command, step.source, toolset) for step in steps},
        flags=[*flags, *(flag for step in steps for flag in step.source.flags)],
        assembled=assembled if is_listed else None,
        linked=linked,
        library_directories=library_directories(linker) if linked_libraries(plan.link_flags) else (),
    )
    return BuildKey(key, *read)


def _files(step: CompileStep, staging: Path) -> dict[str, Path]:
    """The files that a step writes, by the archive's member."""
    names = {_OBJECT: step.object_name, _DEPFILE: step.depfile, _ASSEMBLED: step.assembled}
    return {member: staging / name for member, name in names.items()}


def _key_of(record: Any) -> BuildKey:
    """The headers that :meth:`Objects.store` has recorded, as a key."""
    headers, absent, (paths, digest, statuses) = record
    found = tuple(Header(root, path, sha256, tuple(status)) for root, path, sha256, status in headers)
    return BuildKey(PlanKey({}), found, tuple(absent), SystemHeaders(tuple(paths), digest, statuses))
