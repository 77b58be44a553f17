"""Records: small texts that may be damaged, or written by another version, when they are read.

A record is a JSON object in ASCII. Its last member is a checksum of everything before it. A reader has a table with a
check of each member, so that it gets values of the expected types and bounds, or a :class:`RecordError`.

A :class:`Memo` keeps records of facts that cost a subprocess or much hashing to find. A fact is valid as long as the
files that it depends on keep size and modification time, and small ones their content. A memo only saves time: if it
is missing, damaged or not writable, the fact is computed again. Of processes that lack the same fact, one computes it
while the others wait.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import stat
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from op_builder import env
from op_builder.system.file_contents import replace_text
from op_builder.system.file_lock import lock_within, owner_written, try_lock

Check = Callable[[Any], bool]
Compute = Callable[[], tuple[dict[str, Any], list[str]]]
"""Returns a fact and the files that it depends on."""
Schema = Mapping[str, Any]
"""For each member its check; for one that is an object with fixed members, their schema."""

_MOST_BYTES = 16 << 20
_SMALL_BYTES = 1 << 16
# Within the object, lines begin with blanks.
_CHECKSUM = ',\n"checksum": "'


class RecordError(ValueError):
    """A record is damaged, or a member is missing, unknown or invalid."""


class OtherFormatError(RecordError):
    """A record of another format: another version of this project wrote it."""


def encode(record: Mapping[str, Any], record_format: int) -> str:
    """The text of a record."""
    body = json.dumps({"format": record_format, **record}, indent=1)[:-1].rstrip("\n")
    return body + _seal(body)


def decode(text: str, schema: Schema, record_format: int) -> dict[str, Any]:
    """The members of a record.

    Raises:
        RecordError: the text is not a record that ``schema`` accepts.
        OtherFormatError: it has another format.
    """
    body = text.rpartition(_CHECKSUM)[0]
    if not text.isascii() or text != body + _seal(body):
        raise RecordError("its checksum does not match")
    try:
        record: dict[str, Any] = json.loads(body + "}")
    except (ValueError, RecursionError):
        raise RecordError("it is not a JSON object") from None
    found = record.pop("format", None)
    if type(found) is not int or found != record_format:
        raise OtherFormatError(f"its format is {ascii(found)[:100]}, not {record_format}")
    require(record, schema)
    return record


def _seal(body: str) -> str:
    return f'{_CHECKSUM}{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'


def open_file(path: Path) -> int:
    """A descriptor of a file to read."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a named pipe would wait


def read_text(path: Path, opener: Callable[[Path], int] = open_file) -> str:
    """The text of a record's file.

    Args:
        opener: opens it; may raise an OSError for a file that is not trusted.

    Raises:
        OSError: it cannot be read.
        RecordError: it is not a regular file, too large, or not ASCII.
    """
    descriptor = opener(path)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RecordError("it is not a file")
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise RecordError(f"it has more than {_MOST_BYTES} bytes")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise RecordError("it is not ASCII") from None


def require(record: Any, schema: Schema) -> None:
    """Raise a RecordError unless ``record`` is an object with exactly the members of ``schema``, each valid."""
    if type(record) is not dict:
        raise RecordError("it is not a JSON object")
    if record.keys() != schema.keys():
        names = sorted(map(ascii, record.keys() ^ schema.keys()))
        raise RecordError(f"members are missing or unknown: {', '.join(names)[:200]}")
    for name, check in schema.items():
        if isinstance(check, Mapping):
            require(record[name], check)
        elif not check(record[name]):
            raise RecordError(f"its member {name!r} is not valid")


# Checks of a member. A warm load has a manifest with hundreds of texts and numbers, so lists are checked as wholes.


def is_text(value: Any) -> bool:
    """Text that the system can take as a name or an argument; it may have bytes that are not UTF-8."""
    if type(value) is not str:
        return False
    if value.isascii():
        return "\0" not in value
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def is_string(value: Any) -> bool:
    """Any text, also one that no file can have as its name."""
    return type(value) is str


def is_name(value: Any) -> bool:
    """A plain, printable name of a file."""
    return (
        type(value) is str
        and value.isprintable()
        and "/" not in value
        and value not in ("", ".", "..")
        and len(value) < 200
    )


def _spelled(characters: str, least: int, most: int, not_first: str = "") -> Check:
    """Text of ``least`` to ``most`` of these characters, of which some may not be the first."""
    return lambda value: (
        type(value) is str and least <= len(value) <= most and not value.strip(characters) and value[0] not in not_first
    )


def _within(least: float, below: float, *types: type) -> Check:
    """A number of one of these types and in these bounds."""
    return lambda value: type(value) in types and least <= value < below


is_identifier = _spelled(f"{string.ascii_letters}{string.digits}_", 1, 199, not_first=string.digits)
is_sha256 = _spelled("0123456789abcdef", 64, 64)
is_version = _spelled("0123456789.", 1, 63, not_first=".")  # such as ``2.32``
is_flag = _within(0, 2, bool)
is_count = _within(0, 1 << 63, int)
is_int32 = _within(-(1 << 31), 1 << 31, int)
is_number = _within(0, 1e12, int, float)  # a duration or a time in seconds, or another that is not huge


def one_of(*values: str) -> Check:
    return lambda value: type(value) is str and value in values


def are_texts(value: Any) -> bool:
    if type(value) is not list:
        return False
    try:
        return is_text("".join(value))
    except TypeError:
        return False


def are_integers(value: Any) -> bool:
    """Numbers of 64 bits, with or without a sign."""
    if type(value) is not list or not {int}.issuperset(map(type, value)):
        return False
    return not value or (min(value) >= -(1 << 63) and max(value) < 1 << 64)


def list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def mapping_of(check: Check) -> Check:
    return lambda value: type(value) is dict and are_texts(list(value)) and all(map(check, value.values()))


def objects_of(schema: Schema) -> Check:
    """A list of objects with exactly these members."""
    return rows_of({name: list_of(check) for name, check in schema.items()})


def rows_of(columns: Schema) -> Check:
    """A list of objects with exactly these members, of which each check gets the list of all values."""

    def check(rows: Any) -> bool:
        if type(rows) is not list or not all(type(row) is dict and row.keys() == columns.keys() for row in rows):
            return False
        return all(check([row[name] for row in rows]) for name, check in columns.items())

    return check


SHA256_FACT: Schema = {"sha256": is_sha256}
"""The schema of a fact that is one digest."""

_MEMO_FORMAT = 1
# Of a process that computes the same fact. If it was stopped, or its host is down, the fact is computed here, too.
_LONGEST_WAIT_S = 30.0
_are_statuses = mapping_of(are_integers)


def _no_lock(directory: Path, name: str) -> IO[str]:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(directory / name))


class Memo:
    """Remembered facts in directories, and in this process.

    Args:
        directories: of the JSON files: all are read, and the first that is writable is written to.
        create: creates such a directory if it is missing; raises an OSError if it cannot be written.
        open_file: opens a memo; raises an OSError for one that is not trusted.
        open_lock: opens the file that is locked while a fact is computed, from such a directory and the file's name;
            raises an OSError if it cannot, and processes do not wait for each other.
    """

    def __init__(
        self,
        *directories: Path,
        create: Callable[[Path], object] | None = None,
        open_file: Callable[[Path], int] = open_file,
        open_lock: Callable[[Path, str], IO[str]] = _no_lock,
    ) -> None:
        self._directories = directories
        self._open_lock = open_lock
        self._open_file = open_file
        self._create = create or (lambda directory: directory.mkdir(parents=True, exist_ok=True))
        self._seen: dict[str, dict[str, Any]] = {}

    def get(self, subject: str, schema: Schema, compute: Compute, *, is_program: bool = False) -> dict[str, Any]:
        """The fact about ``subject``.

        Args:
            subject: names the fact and everything it depends on in addition to files.
            schema: of the fact; one of another version with other members is computed again.
            compute: returns the fact (JSON values) and the files that it depends on.
            is_program: the fact is about a program. If its member "variables" shows that it is a script, which may
                look for other files, there is a fact for each ``PATH`` and for the values of these variables.
        """
        fact = self._fact(subject, schema, None, is_program)
        if fact is None:
            # One lock for all facts of a program: whoever finds the first of them finds the others.
            with self._locked(subject):
                fact = self._fact(subject, schema, functools.cache(compute), is_program)
                assert fact is not None  # it was computed, here or by another process
        return fact

    def _fact(self, subject: str, schema: Schema, compute: Compute | None, is_program: bool) -> dict[str, Any] | None:
        """As :meth:`get`; without ``compute``, None for a fact that is unknown."""
        name = f"{hashlib.sha256(subject.encode(errors='surrogatepass')).hexdigest()[:32]}.json"
        entry = self._valid(subject, name, schema)
        if entry is None:
            if compute is None:
                return None
            fact, files = compute()
            entry = {"subject": subject, "fact": fact, "files": {file: _status(file) for file in files}}
            self._write(name, encode(entry, _MEMO_FORMAT))
        self._seen[subject] = entry
        found: dict[str, Any] | None = entry["fact"]
        named: list[str] = []
        while is_program and found is not None and found["variables"] != named:  # values lead to files that name others
            named = found["variables"]
            values = {name: env.of_another_program(name) for name in (*named, "PATH", "HOME")}
            found = self._fact(f"{subject} {[each for each in values.items() if each[1]]}", schema, compute, False)
        return found

    def _valid(self, subject: str, name: str, schema: Schema) -> dict[str, Any] | None:
        entry = self._seen.get(subject)
        if entry is not None and _is_current(entry):
            return entry
        table: Schema = {"subject": lambda value: value == subject, "fact": schema, "files": _are_statuses}
        for directory in self._directories:
            with contextlib.suppress(OSError, RecordError):
                kept = decode(read_text(directory / name, self._open_file), table, _MEMO_FORMAT)
                if _is_current(kept):
                    return kept
        return None

    @contextlib.contextmanager
    def _locked(self, subject: str) -> Iterator[None]:
        """Hold the lock of a fact, or wait until the process that has it ends its work, and go on without the lock.

        A fact that cannot be computed or kept is then computed by all processes at once, not by one after another.
        """
        name = f"memo-{hashlib.sha256(subject.encode(errors='surrogatepass')).hexdigest()[:32]}.lock"
        with contextlib.ExitStack() as stack:
            for directory in self._directories:
                with contextlib.suppress(OSError):
                    lock = stack.enter_context(self._open_lock(directory, name))
                    if try_lock(lock):
                        stack.enter_context(owner_written(lock))
                    else:
                        lock_within(lock, _LONGEST_WAIT_S, "examines the same compilers or headers")
                        stack.close()
                    break
            yield

    def _write(self, name: str, text: str) -> None:
        for directory in self._directories:
            with contextlib.suppress(OSError):
                self._create(directory)
                replace_text(directory / name, text, prefix=".staged-")
                return


def _status(path: str) -> list[int]:
    """``[size, mtime_ns]`` of a file, for a small one also a digest of its content; empty where it is missing.

    Some tools set all times alike, or keep the old one. What else a status has differs between hosts with equal files,
    which would take turns to replace a memo that they share.
    """
    try:
        status = os.stat(path)
        if status.st_size > _SMALL_BYTES or not stat.S_ISREG(status.st_mode):
            return [status.st_size, status.st_mtime_ns]
    except (OSError, ValueError):  # no file has a name that this locale cannot encode
        return []
    digest = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:  # another user's may be unreadable
        digest = hashlib.sha256(file.read()).digest()
    return [status.st_size, status.st_mtime_ns, int.from_bytes(digest[:7], "big")]


def _is_current(entry: dict[str, Any]) -> bool:
    return all(_status(name) == known for name, known in entry["files"].items())
