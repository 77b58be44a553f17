"""What all command lines share."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TextIO

from op_builder.errors import AccelError

P = ParamSpec("P")

# Packages that commands import; a checkout may be run without its requirements.
REQUIRED = ("torch", "ninja", "packaging", "psutil", "pybind11", "rich", "setuptools", "xxhash")
_OUTPUT = "<stdout>"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def run_main(main: Callable[[], int], interrupted: str = "") -> NoReturn:
    """Exit with the status of ``main()``; without a traceback after Ctrl-C, or if its output's reader has exited.

    Args:
        interrupted: what became of the work, for the message after Ctrl-C.
    """
    _open_closed_streams()
    sys.stdout = _output_with_name(sys.stdout)
    try:
        os.getcwd()
    except FileNotFoundError:  # torch's libraries end the process
        sys.exit("The current directory was removed. Remedy: change to a directory that exists (cd ~).")
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()
    except ModuleNotFoundError as error:
        if error.name not in REQUIRED:
            raise
        # For CPUs alone torch has 200 MB instead of 2 GB.
        index = ", for CPUs with --index-url https://download.pytorch.org/whl/cpu" if error.name == "torch" else ""
        sys.exit(
            f"{error.name} is not installed in {sys.prefix}, and accel-ops needs it. "
            f"Remedy: `pip install {error.name}`{index}."
        )
    except KeyboardInterrupt:
        print(f"Interrupted. {interrupted}".rstrip(), file=sys.stderr)
        status = 128 + signal.SIGINT
    except OSError as error:
        if error.filename != _OUTPUT:
            raise
        # Python flushes stdout when it exits, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            status = 128 + signal.SIGPIPE  # as shells report it
        else:
            print(f"The output cannot be written: {error.strerror}.", file=sys.stderr)
            status = 1
    sys.exit(status)


class _Output(io.FileIO):
    """Standard output, whose errors have its name as that of their file."""

    replaced: TextIO

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = _OUTPUT
            raise


def _output_with_name(stream: TextIO) -> TextIO:
    if type(stream) is not io.TextIOWrapper:  # a test replaces it
        return stream
    stream.flush()
    output = _Output(stream.fileno(), "w", closefd=False)
    output.name = _OUTPUT
    output.replaced = stream  # which closes the descriptor when nothing refers to it
    is_by_line = stream.line_buffering or stream.write_through
    return io.TextIOWrapper(io.BufferedWriter(output), stream.encoding, stream.errors, line_buffering=is_by_line)


def reports_errors(main: Callable[P, int]) -> Callable[P, int]:
    """Let a command's ``main()`` print an AccelError and return 2."""

    @functools.wraps(main)
    def reporting(*arguments: P.args, **keywords: P.kwargs) -> int:
        try:
            return main(*arguments, **keywords)
        except AccelError as error:
            print(printable(str(error)), file=sys.stderr)
            return 2

    return reporting


def number(expected: str, least: float, most: float, kind: type = int) -> Callable[[str], Any]:
    """A converter for the value of a numeric option."""
    import argparse

    def convert(text: str) -> Any:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value <= most:
                return value
        raise argparse.ArgumentTypeError(f"expected {expected}, not {text!r}")

    return convert


def parse_size(text: str) -> int:
    """The bytes of an argument like ``500M`` or ``2G``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        import argparse

        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 500M or 2G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def printable(text: str) -> str:
    """``text`` for a terminal: control characters and bytes that are not UTF-8 become Python escape sequences."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def _open_closed_streams() -> None:
    """Connect closed standard streams (``>&-``) to the null device. Otherwise, another file would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115 - Python closes them
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115
