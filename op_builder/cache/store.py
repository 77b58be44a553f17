"""The store: one directory per build, found by key, published by one atomic rename (directories: :mod:`.layout`).

A reader needs no lock and no write access: an entry is either there whole or not at all.
"""

import contextlib
import errno
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from op_builder.cache import layout
from op_builder.cache.key import COMPILER_PARTS, PlanKey, Roots
from op_builder.cache.layout import HOME, KERNELS, LOCKS, OPS, REJECTED, STAGING, default_cache_dir
from op_builder.cache.machine import ExaminedMachine, machine_rejection
from op_builder.cache.manifest import MANIFEST, Manifest, OtherFormatError
from op_builder.cache.ownership import open_file, ownership_rejection, ownership_rejection_below, unusable
from op_builder.errors import AccelError, CacheError
from op_builder.messages import warn_once
from op_builder.system.file_contents import content_sha256, opened_sha256, subdirectories
from op_builder.system.outcomes import Rejection
from op_builder.system.records import SHA256_FACT, Memo, RecordError, read_text

logger = logging.getLogger(__name__)

__all__ = ["MANIFEST", "Cache", "Entry", "Manifest", "default_cache_dir"]

_NOTE_EVERY_S = 30.0  # less than the time for which pruning keeps a used entry
_ATTEMPTS = 5
# Hashing more than this takes a second and is done again only when the file's status changes.
_LARGE_BYTES = 64 << 20
DAMAGED = Rejection("Its binary does not match its manifest.", "load() builds it again.")
CHANGED = Rejection("A header that it was built with has changed.", "load() builds it again.")
_UNREADABLE = Rejection("Its manifest cannot be read.", "load() builds it again.")


class Entry(NamedTuple):
    """One published build."""

    directory: Path
    manifest: Manifest

    @property
    def artifact(self) -> Path:
        return self.directory / self.manifest.artifact

    @property
    def digest(self) -> str:
        """The build key's digest, which identifies this build of its op."""
        return self.directory.name

    def is_intact(self, *, through_links: bool = False) -> bool:
        """Whether the binary is the one the manifest describes."""
        # Opened and read: a network file system may report the size that the file had seconds ago.
        path, size_bytes = str(self.artifact), self.manifest.size_bytes
        try:
            return content_sha256(path, through_links=through_links, most_bytes=size_bytes) == self.manifest.sha256
        except OSError:
            return False


class StagingGoneError(CacheError):
    """A build's directory was removed during the build."""


class Cache:
    """Built ops below one directory. Creating the object writes nothing.

    Args:
        root: the directory; :func:`default_cache_dir` when not given.
        is_ours: whether damaged entries may be moved out of the way; not by a report.
        in_package: it is a directory of an installed package, which is trusted like the package's code.

    Attributes:
        home: the directory in ``root`` that contains everything.
        damaged: damaged entries that were left in place, with the reason.
    """

    def __init__(self, root: Path | None = None, *, is_ours: bool = True, in_package: bool = False) -> None:
        if sys.platform == "win32":  # Windows has neither the locks nor the permissions that a cache relies on
            from op_builder.system.target import require_supported

            require_supported(sys.platform)
        self.root = root or default_cache_dir()
        self.home = self.root if in_package else self.root / HOME
        self._is_ours = is_ours and not in_package
        self._in_package = in_package
        self.damaged: dict[Path, Rejection] = {}
        self.memo = Memo() if in_package else layout.memo(self.root)

    def matching(
        self, key: PlanKey, op: str, roots: Roots, *, any_compiler: bool = False
    ) -> Iterator[tuple[Entry, Rejection | None]]:
        """The entries of ``key``, each with why it cannot be used, or None; checked one by one, as they are taken.

        Damaged ones are moved out of the way.

        Args:
            any_compiler: entries of any compiler match; for machines without one.
        """
        op_dir = self.home / OPS / op
        for directory in _keyed(op_dir) if any_compiler else [op_dir / key.digest]:
            for entry in self._entries_in(directory):
                if any_compiler and not key.differs_only_in(entry.manifest.key_parts, COMPILER_PARTS):
                    continue
                unchanged = entry.manifest.key.headers_unchanged(roots, self.memo, any_system=any_compiler)
                rejection = self.rejection_of(entry) if unchanged else CHANGED
                if rejection is DAMAGED:
                    self.set_aside(entry.directory, rejection)
                elif rejection is not None and rejection is not CHANGED:
                    warn_once(logger, f"{entry.directory} is not used. {rejection}")
                yield entry, rejection

    def find(self, key: PlanKey, op: str, roots: Roots, *, any_compiler: bool = False) -> Entry | None:
        """The first usable entry of :meth:`matching`, or None; one of any compiler must fit this machine."""
        for entry, rejection in self.matching(key, op, roots, any_compiler=any_compiler):
            if rejection is None and any_compiler:
                rejection = machine_rejection(entry.manifest, ExaminedMachine())
            if rejection is None:
                self.note_use(entry)
                return entry
        return None

    def note_use(self, entry: Entry) -> None:
        """Renew an entry's time of last use, for pruning; at most twice a minute, and not in a read-only cache."""
        manifest = entry.directory / MANIFEST
        with contextlib.suppress(OSError):
            # The file system's clock may differ.
            if self._is_ours and abs(time.time() - manifest.stat().st_mtime) > _NOTE_EVERY_S:
                os.utime(manifest)

    def entries(self, op: str | None = None) -> list[Entry]:
        """All entries, or those of one op, by directory name."""
        ops = [path for path in subdirectories(self.home / OPS) if path.name.isidentifier() and op in (None, path.name)]
        return [entry for directory in ops for plan in _keyed(directory) for entry in self._entries_in(plan)]

    @contextmanager
    def staging(self, op: str) -> Iterator[Path]:
        """A new private directory for one build, removed at the end if it is still there.

        Raises:
            CacheError: the cache directory cannot be written.
            StagingGoneError: the body could not use the directory, because it was removed meanwhile.
        """
        from op_builder.cache.staging import make_directory, process_lock, sweep

        parent = self.writable_dir(STAGING)
        with contextlib.ExitStack() as ending:
            with self.errors_explained():
                sweep(self.root)
                directory = make_directory(parent, op)
                ending.callback(shutil.rmtree, directory, ignore_errors=True)
                ending.enter_context(process_lock(directory))
            try:
                yield directory
            except (AccelError, OSError) as error:
                if os.path.isdir(directory):
                    raise
                raise StagingGoneError(
                    f"The cache directory {self.root}, or a part of it, was removed while '{op}' was built.",
                    "Load the op again, and remove a cache only while it is not in use.",
                ) from error

    def publish(self, staged: Path, manifest: Manifest) -> Entry:
        """Make the directory ``staged``, which contains the binary, the entry of its key.

        If another process was first, its entry is returned, and ``staged`` stays.

        Raises:
            CacheError: the disk is full or the directory cannot be written.
        """
        key = manifest.key
        final = self.home / OPS / manifest.op / key.plan.digest / key.digest
        with self.errors_explained():
            (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            modes = layout.modes(self.root)
            for path in staged.iterdir():
                path.chmod(modes.file)
            _flush(staged / MANIFEST)
            _flush(staged / manifest.artifact)
            staged.chmod(modes.directory)
            if (rejection := self._ownership_rejection(final.parent)) is not None:
                raise unusable(self.root, rejection)
            for _ in range(_ATTEMPTS):
                try:
                    layout.make_directory(final.parent, modes.directory)
                    os.rename(staged, final)
                    return Entry(final, manifest)
                except OSError as error:
                    # The target exists, perhaps as a file or a link; or another process has just removed the
                    # parent directory, or the rename was done and a network file system lost the answer.
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.ENOENT, errno.ESTALE):
                        raise
                    failure = error
                if (winner := self.usable(final, key.digest)) is not None:
                    return winner
                self.set_aside(final, DAMAGED)
            raise failure

    def require_ours(self) -> None:
        """Raise a CacheError if the directory exists and is not a cache that this user may change."""
        if (rejection := layout.location_rejection(self.root)) is not None:
            raise unusable(self.root, rejection)

    def writable_dir(self, name: str) -> Path:
        """The folder ``name``, created if it is missing.

        Raises:
            CacheError: it cannot be created or written, or the root is not a cache.
        """
        directory = self.home / name
        with self.errors_explained():
            self.require_ours()
            layout.claim(self.root)
            layout.make_directory(directory, layout.modes(self.root).directory)
            if (rejection := ownership_rejection(str(self.root), HOME, name)) is not None:
                raise unusable(self.root, rejection)
            # Try it: permissions, read-only mounts and quotas can refuse in many ways.
            with tempfile.TemporaryFile(dir=directory):
                pass
        return directory

    def lock_file(self, name: str) -> IO[str]:
        """Open the file that a build locks; no other user may lock it.

        Raises:
            OSError: it cannot be opened.
            CacheError: the cache directory cannot be written.
        """
        self.writable_dir(LOCKS)
        return layout.open_lock(self.root, name)

    def kernel_directory(self) -> Path | None:
        """The directory for kernels that the SYCL runtime compiles, and executes later; None if it cannot be used."""
        directory = self.home / KERNELS
        try:
            self.writable_dir(KERNELS)
        except CacheError:  # an administrator's cache may be read-only
            if not os.path.isdir(directory) or ownership_rejection(str(self.root), HOME, KERNELS) is not None:
                return None
        if (rejection := ownership_rejection_below(str(self.root), str(directory))) is not None:
            warn_once(logger, f"No compiled kernels are kept. {rejection}")
            return None
        return directory

    def errors_explained(self) -> AbstractContextManager[None]:
        """Turn an OSError of the body into a CacheError with a remedy."""
        from op_builder.cache.failures import errors_explained

        return errors_explained(self.root)

    def usable(self, directory: Path, digest: str) -> Entry | None:
        """The entry in ``directory``; None if it is damaged or not trusted."""
        try:
            entry = _read_entry(directory, digest)
            return entry if self.rejection_of(entry) is None else None
        except (OSError, RecordError):
            return None

    def _ownership_rejection(self, directory: Path) -> Rejection | None:
        """Why an entry's directory, or one above it, is not trusted; None if all are."""
        if self._in_package:
            return None
        return ownership_rejection(str(self.root), *directory.relative_to(self.root).parts)

    def rejection_of(self, entry: Entry) -> Rejection | None:
        """Why an entry is not used: it is damaged, or not trusted; None if it is used."""
        if self._in_package:  # some installers link files
            return None if entry.is_intact(through_links=True) else DAMAGED
        if (rejection := self._ownership_rejection(entry.directory)) is not None:
            return rejection
        path, size_bytes = str(entry.artifact), entry.manifest.size_bytes
        try:
            opened = open_file(str(self.root), str(entry.directory / MANIFEST))
            if isinstance(opened, int):
                os.close(opened)
                opened = open_file(str(self.root), path)
            if isinstance(opened, Rejection):
                return opened
            if size_bytes < _LARGE_BYTES:
                is_intact = opened_sha256(opened, path, size_bytes) == entry.manifest.sha256
                return None if is_intact else DAMAGED
            os.close(opened)

            def digest() -> tuple[dict[str, str], list[str]]:
                return {"sha256": content_sha256(path, through_links=False, most_bytes=size_bytes)}, [path]

            fact = self.memo.get(f"sha256 {path}", SHA256_FACT, digest)
        except OSError:
            return DAMAGED
        return None if fact["sha256"] == entry.manifest.sha256 else DAMAGED

    def _entries_in(self, plan_directory: Path) -> list[Entry]:
        found = []
        for directory in _keyed(plan_directory):
            try:
                found.append(_read_entry(directory, directory.name if self._is_ours else None))
            except OSError:
                # Removed just now, or a network file system does not show all of it yet. If it is damaged,
                # publishing the same build again finds out.
                self._ignore(directory, _UNREADABLE)
            except OtherFormatError:  # that version may still use it
                if self._in_package:
                    self._ignore(directory, Rejection("Its manifest is of another version of accel-ops."))
            except RecordError:
                self.set_aside(directory, _UNREADABLE)
        return found

    def _ignore(self, directory: Path, rejection: Rejection) -> None:
        """Leave an entry where it is; in a package, to which no other process writes, it counts as damaged."""
        if not self._is_ours:
            self.damaged[directory] = rejection

    def set_aside(self, directory: Path, why: Rejection) -> None:
        """Move a damaged entry's directory out of the way, so that it is built again.

        It is checked again after the move, and put back if it is intact: another host may have replaced the entry
        already, and a network file system shows that late.
        """
        if not self._is_ours:
            if directory not in self.damaged:
                logger.warning("%s is not used. %s", directory, why.reason)
            self.damaged[directory] = why
            return
        if (rejection := self._ownership_rejection(directory.parent)) is not None:
            warn_once(logger, f"{directory} is not used, and stays in the cache. {rejection}")
            return
        with contextlib.suppress(OSError):  # a CacheError is one
            target = self.writable_dir(REJECTED)
            place = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=target))
            place.chmod(layout.modes(self.root).directory)  # another member of the group may remove it
            moved = place / "entry"
            is_intact = False
            with contextlib.suppress(OSError):
                os.rename(directory, moved)
                is_intact = self.usable(moved, directory.name) is not None
                if is_intact:
                    os.rename(moved, directory)  # fails if there is a new entry by now
            if not os.path.lexists(moved):
                place.rmdir()
                return
            reason = why.reason
            if is_intact:  # kept, because processes may have its binary open
                reason = "It is intact, but another entry replaced it during the check."
            else:
                logger.warning("%s is not used. %s", directory, reason)
            (place / "reason.txt").write_text(f"{directory}: {reason}\n", encoding="utf-8", errors="surrogateescape")


def _keyed(directory: Path) -> list[Path]:
    """The subdirectories of an op's or a plan's directory that are named by a key."""
    found = subdirectories(directory)
    return [path for path in found if len(path.name) == 32 and not path.name.strip("0123456789abcdef")]


def _read_entry(directory: Path, digest: str | None) -> Entry:
    """The entry in a directory.

    Args:
        digest: of the key that the directory is named by; None to skip that check.

    Raises:
        RecordError: its manifest cannot be read, or differs from ``digest``. Such an entry would be found
            under its plan, never match, and block the place of a new build.
    """
    manifest = Manifest.from_json(read_text(directory / MANIFEST))
    if digest is not None and manifest.key.digest != digest:
        raise RecordError("the manifest was changed")
    return Entry(directory, manifest)


def _flush(path: Path) -> None:
    # The rename must not reach the disk before the content does.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
