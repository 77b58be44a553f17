"""The store: one directory per build, found by key, published by one atomic rename.

::

    <cache>/ops/<op>/<plan key>/<build key>/   manifest.json and the binary; never changed once there
    <cache>/staging/                           running builds, each in its own directory
    <cache>/rejected/                          entries whose binary no longer matched its manifest
    <cache>/sycl_kernels/                      kernels that the SYCL runtime compiled, in its own layout
    <cache>/locks/  logs/  memo/               save work, hold compiler output, remember small facts

A reader needs no lock and no write access: an entry is either there whole or not at all.
"""

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from op_builder import env
from op_builder.cache.fingerprint import COMPILER_PARTS, PlanKey
from op_builder.cache.headers import Roots
from op_builder.cache.manifest import MANIFEST, Manifest, OtherFormatError
from op_builder.errors import CacheError
from op_builder.system.file_contents import content_sha256, file_sha256, mapping_obstacle, subdirectories
from op_builder.system.memo import Memo

logger = logging.getLogger(__name__)

__all__ = ["MANIFEST", "Cache", "Entry", "Manifest", "default_cache_dir", "disk_full"]

_NOTE_EVERY_S = 30.0  # less than what pruning takes for "just now"
_ATTEMPTS = 5
_WRITTEN = ("staging", "locks", "logs", "ops")  # directories that a build writes to
# Hashing more than this takes a second and is done again only when the file's status changes.
_LARGE_BYTES = 64 << 20


def default_cache_dir() -> Path:
    """``$ACCEL_CACHE_DIR``, else ``accel-ops`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        CacheError: this user has no home directory, or the current directory was deleted.
    """
    asked = env.ACCEL_CACHE_DIR.get()
    if asked is None:
        return _user_cache_dir()
    try:
        return asked.absolute()
    except FileNotFoundError:
        raise CacheError(
            f"ACCEL_CACHE_DIR={str(asked)!r} is relative and the current directory was deleted.",
            "Set ACCEL_CACHE_DIR to an absolute path, or change to an existing directory.",
        ) from None


def _user_cache_dir() -> Path:
    base = env.XDG_CACHE_HOME.get()
    if base is not None and base.is_absolute():  # the XDG specification has programs ignore a relative one
        return base / "accel-ops"
    try:
        return Path.home() / ".cache" / "accel-ops"
    except RuntimeError:  # an id without an entry in the user database, as in containers
        raise CacheError("This user has no home directory for the cache.", "Set ACCEL_CACHE_DIR.") from None


def _memo_directories(root: Path) -> list[Path]:
    """Where memos of the cache at ``root`` are: in it; where that cannot be written, also in the user's own."""
    directories = [root / "memo"]
    if os.path.exists(root) and not os.access(root, os.W_OK):
        with contextlib.suppress(CacheError):
            directories.append(_user_cache_dir() / "memo")
    return directories


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

    def note_use(self) -> None:
        """Renew the time of last use, for pruning; at most twice a minute, and not in a read-only cache."""
        manifest = self.directory / MANIFEST
        with contextlib.suppress(OSError):
            if time.time() - manifest.stat().st_mtime > _NOTE_EVERY_S:
                os.utime(manifest)

    def is_intact(self) -> bool:
        """Whether the binary is the one the manifest describes."""
        # Opened and read: a network file system may report the size that the file had seconds ago.
        try:
            return content_sha256(str(self.artifact)) == self.manifest.sha256
        except OSError:
            return False


class Cache:
    """Built ops below one directory. Making the object touches nothing.

    Args:
        root: the directory; :func:`default_cache_dir` when not given.
        is_ours: whether damaged entries may be moved out of the way; not in an installed package, nor by a report.

    Attributes:
        damaged: entries that were found damaged and stayed where they are, with the reason.
    """

    def __init__(self, root: Path | None = None, *, is_ours: bool = True) -> None:
        self.root = root or default_cache_dir()
        self._is_ours = is_ours
        self.damaged: dict[Path, str] = {}
        self.memo = Memo(*_memo_directories(self.root))

    def find(self, key: PlanKey, op: str, roots: Roots, *, any_compiler: bool = False) -> Entry | None:
        """The intact entry of ``key`` whose headers are all as they were, or None.

        Args:
            any_compiler: take an entry whatever it was compiled with; for machines without one.
        """
        of_op = self._op_dir(op)
        directories = subdirectories(of_op) if any_compiler else [of_op / key.digest]
        for directory in directories:
            for entry in self._entries_in(directory):
                if any_compiler and not key.differs_only_in(entry.manifest.key_parts, COMPILER_PARTS):
                    continue
                if not entry.manifest.key.headers_unchanged(roots, self.memo, any_system=any_compiler):
                    continue
                if self._is_intact(entry):
                    if self._is_ours:
                        entry.note_use()
                    return entry
                self.set_aside(entry.directory, "its binary does not match its manifest")
        return None

    def entries(self, op: str | None = None) -> list[Entry]:
        """All entries, or those of one op, by directory name."""
        ops = [self._op_dir(op)] if op is not None else subdirectories(self.root / "ops")
        return [entry for directory in ops for plan in subdirectories(directory) for entry in self._entries_in(plan)]

    def size_bytes(self) -> int:
        """Bytes of all files below the cache directory."""
        total = 0
        for directory, _, names in os.walk(self.root):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(directory, name)).st_size
        return total

    @contextmanager
    def staging(self, op: str) -> Iterator[Path]:
        """A new private directory for one build, removed at the end if it is still there.

        Raises:
            CacheError: the cache directory cannot be written.
        """
        from op_builder.cache.staging import make_directory, sign_of_life, sweep  # 0.3 ms that only a build needs

        parent = self.writable_dir("staging")
        sweep(parent)
        with self.errors_explained():
            directory = make_directory(parent, op)
        try:
            with sign_of_life(directory):
                yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def publish(self, staged: Path, manifest: Manifest) -> Entry:
        """Make ``staged``, which holds the binary, the entry of its key; where another process was
        first, its entry is returned and ``staged`` is left to be removed.

        Raises:
            CacheError: the disk is full or the directory cannot be written.
        """
        key = manifest.key
        final = self._op_dir(manifest.op) / key.plan.digest / key.digest
        with self.errors_explained():
            (staged / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
            _flush(staged / MANIFEST)
            _flush(staged / manifest.artifact)
            for _ in range(_ATTEMPTS):
                final.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.rename(staged, final)
                    return Entry(final, manifest)
                except OSError as error:
                    # The target exists; or another process has just removed the parent directory, or the
                    # rename was done and a network file system lost the answer.
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, errno.ESTALE):
                        raise
                    failure = error
                if (winner := _intact_entry(final, key.digest)) is not None:
                    return winner
                self.set_aside(final, "its binary does not match its manifest")
            raise failure

    def obstacle(self, op: str = "") -> str:
        """Why a binary (of ``op``) cannot be written to this cache and opened there; empty if it can. Creates nothing.

        Every existing directory that a build writes to is tried, because another user may own one of them.
        """
        places = [self.root, *(self.root / name for name in _WRITTEN), *([self._op_dir(op)] if op else [])]
        return next(filter(None, (_obstacle(place) for place in dict.fromkeys(map(_existing, places)))), "")

    def writable_dir(self, name: str) -> Path:
        """The subdirectory ``name``, created if it is missing.

        Raises:
            CacheError: it cannot be created or written.
        """
        directory = self.root / name
        with self.errors_explained():
            directory.mkdir(parents=True, exist_ok=True)
            tag = self.root / "CACHEDIR.TAG"
            if not tag.exists() or tag.stat().st_size == 0:
                tag.write_text(
                    "Signature: 8a477f597d28d172789f06886806bc55\n# Built ops of accel-ops.\n", encoding="utf-8"
                )
            # Try it: permissions, read-only mounts and quotas can refuse in many ways.
            with tempfile.TemporaryFile(dir=directory):
                pass
        return directory

    @contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Turn an OSError of the body into a CacheError with a remedy."""
        try:
            yield
        except CacheError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full(self.root) from error
            place = str(error.filename or self.root)
            is_related = self.root in (Path(place), *Path(place).parents) or Path(place) in self.root.parents
            if os.path.isabs(place) and not is_related:
                raise CacheError(
                    f"{place} cannot be used: {error.strerror}.",
                    "Correct the permissions and the location of this file, then load the op again.",
                ) from error
            there = str(_existing(Path(place)))
            raise CacheError(
                f"The cache directory {self.root} cannot be written: {error.strerror} ({there}{_owned_by(there)}).",
                "Set ACCEL_CACHE_DIR to a directory that you can write, or use prebuilt ops.",
            ) from error

    def _is_intact(self, entry: Entry) -> bool:
        if entry.manifest.size_bytes < _LARGE_BYTES:
            return entry.is_intact()
        path = str(entry.artifact)
        try:
            fact = self.memo.get(f"sha256 {path}", lambda: ({"sha256": file_sha256(path)}, [path]))
        except OSError:
            return False
        return bool(fact["sha256"] == entry.manifest.sha256)

    def _op_dir(self, op: str) -> Path:
        return self.root / "ops" / op

    def _entries_in(self, plan_directory: Path) -> list[Entry]:
        found = []
        for directory in subdirectories(plan_directory):
            try:
                found.append(_read_entry(directory, directory.name if self._is_ours else None))
            except OSError:
                # Removed just now, or a network file system does not show all of it yet. If it is damaged,
                # publishing the same build again finds out.
                self._ignore(directory, "its manifest cannot be read")
            except OtherFormatError:  # which that version may still use
                self._ignore(directory, "its manifest is of another version of accel-ops")
            except (ValueError, KeyError, TypeError):
                self.set_aside(directory, "its manifest cannot be read")
        return found

    def _ignore(self, directory: Path, reason: str) -> None:
        """Leave an entry where it is; in a package, to which no other process writes, it counts as damaged."""
        if not self._is_ours:
            self.damaged[directory] = reason

    def set_aside(self, directory: Path, reason: str) -> None:
        """Move a damaged entry's directory out of the way, so that it is built again.

        It is checked again after the move, and put back if it is intact: another host may have replaced the entry
        already, and a network file system shows that late.
        """
        if not self._is_ours:
            if directory not in self.damaged:
                logger.warning("%s is not used: %s.", directory, reason)
            self.damaged[directory] = reason
            return
        with contextlib.suppress(OSError):
            target = self.root / "rejected"
            target.mkdir(parents=True, exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=target))
            moved = place / "entry"
            is_intact = False
            with contextlib.suppress(OSError):
                os.rename(directory, moved)
                is_intact = _intact_entry(moved, directory.name) is not None
                if is_intact:
                    os.rename(moved, directory)  # fails if there is a new entry by now
            if not moved.exists():
                place.rmdir()
                return
            if is_intact:  # kept, because processes may have its binary open
                reason = "intact, but another entry replaced it during the check"
            else:
                logger.warning("%s is not used: %s.", directory, reason)
            (place / "reason.txt").write_text(f"{directory}: {reason}\n", encoding="utf-8", errors="surrogateescape")


def _read_entry(directory: Path, digest: str | None) -> Entry:
    """The entry in a directory.

    Args:
        digest: of the key that the directory is named by; None to skip that check.

    Raises:
        ValueError: its manifest cannot be read, or differs from ``digest``. Such an entry would be found
            under its plan, never match, and block the place of a new build.
    """
    manifest = Manifest.from_json((directory / MANIFEST).read_text(encoding="utf-8"))
    if digest is not None and manifest.key.digest != digest:
        raise ValueError("the manifest was changed")
    return Entry(directory, manifest)


def _intact_entry(directory: Path, digest: str) -> Entry | None:
    try:
        entry = _read_entry(directory, digest)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry if entry.is_intact() else None


def _existing(path: Path) -> Path:
    """``path`` or the closest of its parents that exists."""
    while not os.path.lexists(path) and path.parent != path:
        path = path.parent
    return path


def _obstacle(directory: Path) -> str:
    """Why no binary can be written to ``directory`` and opened there; empty if it can."""
    if not os.path.isdir(directory):
        return f"{directory} is not a directory"
    try:
        # By doing it: permissions, read-only mounts and quotas have many ways to refuse.
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(1)
            refusal = mapping_obstacle(file.fileno())
    except OSError as error:
        refusal = f"{error.strerror}{_owned_by(str(directory))}"
    return f"{directory}: {refusal}" if refusal else ""


def _owned_by(path: str) -> str:
    """A note with the owner of ``path`` if that is another user."""
    try:
        owner = os.stat(path).st_uid
    except (OSError, ValueError):
        return ""
    return f", owned by user {owner}" if owner != os.geteuid() else ""


def disk_full(root: Path) -> CacheError:
    """The error for a cache directory on a full disk."""
    with contextlib.suppress(OSError):
        system = os.statvfs(_existing(root))
        if system.f_files and not system.f_favail and system.f_bavail:
            return CacheError(
                f"The file system of the cache directory {root} cannot hold more files (no inodes are left).",
                "Delete files there, or set ACCEL_CACHE_DIR to a directory on another file system.",
            )
    return CacheError(
        f"No space left on the disk of the cache directory {root}.",
        "Free some space, or set ACCEL_CACHE_DIR to a directory on another disk.",
    )


def _flush(path: Path) -> None:
    # The rename must not reach the disk before the content does.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
