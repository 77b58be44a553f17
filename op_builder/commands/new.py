"""``accel-ops new``: create a package with a native op, ready to be installed and tested.

The template is ``examples/my_ops``. Its names are replaced, and parts for a device that was not requested are left
out: files with the device's name in theirs, and each line that ends with the comment ``cuda`` or ``sycl``, with the
more indented lines below it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import keyword
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from op_builder.command_line import reports_errors, run_main
from op_builder.errors import AccelError
from op_builder.paths import native_root
from op_builder.system.interpreter import python

_DEVICES = ("cuda", "sycl")
_MARK = re.compile(rf"\s*(?:#|<!--) ({'|'.join(_DEVICES)})(?: -->)?$")
_BACKEND = "accel-ops-build @ file:///path/to/accel-ops/build_tools"
_IGNORED = {"__pycache__", "build", "_prebuilt"}


class NewPackageError(AccelError):
    """A package cannot be created."""


@reports_errors
def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.commands.new") -> int:
    """The command line; returns the exit status: 0, or 2 if nothing was created."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Create a package with a native op of your own.",
        epilog=f"Example: '{prog} my_ops --cuda'.",
    )
    parser.add_argument("name", metavar="NAME", help="the package's name as Python imports it, such as my_ops")
    parser.add_argument("--cuda", action="store_true", help="add the op for CUDA tensors")
    parser.add_argument("--sycl", action="store_true", help="add the op for XPU tensors, which also runs on the CPU")
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where to create it (default: ./NAME); it must not exist"
    )
    options = parser.parse_args(arguments)
    directory = options.directory or Path(options.name)
    create(options.name, directory, [device for device in _DEVICES if getattr(options, device)])
    pip = f"{python()} -m pip install" if PathFinder.find_spec("pip") else f"uv pip install --python {python()}"
    print(
        f"Created {directory}. Next:\n  cd {shlex.quote(str(directory))}\n  {pip} -e . pytest\n  {python()} -m pytest"
    )
    return 0


def create(name: str, directory: Path, devices: Collection[str] = ()) -> None:
    """Write the package ``name`` into ``directory``.

    Args:
        name: an identifier that no installed module has.
        directory: must not exist.
        devices: further devices of the op: ``cuda``, ``sycl``.

    Raises:
        NewPackageError: the name cannot be used, or the directory exists or cannot be written; nothing was created.
    """
    _check_name(name)
    if os.path.lexists(directory):  # Path.exists() raises for a name that is too long
        raise NewPackageError(f"{directory} exists.", "Choose another --directory.")
    names = {
        "my_ops": name,
        "my-ops": name.replace("_", "-"),
        "MyOps": "".join(part.capitalize() for part in name.split("_")),
        "MY_OPS": name.upper(),
    }
    template = native_root() / "examples" / "my_ops"
    try:
        for file in sorted(filter(Path.is_file, template.rglob("*"))):
            path = file.relative_to(template)
            is_ignored = not _IGNORED.isdisjoint(path.parts) or any(part.endswith(".egg-info") for part in path.parts)
            if is_ignored or any(device in path.name for device in _DEVICES if device not in devices):
                continue
            lines = _lines(file.read_text(encoding="utf-8").splitlines(), devices)
            text = "".join(f"{line}\n" for line in lines)
            text = re.sub("|".join(names), lambda match: names[match[0]], text)
            if path.name == "pyproject.toml":
                text = text.replace(_BACKEND, _backend_requirement())
            target = directory / str(path).replace("my_ops", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise NewPackageError(
            f"{directory} cannot be written: {error.strerror}.", "Choose another --directory."
        ) from error


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name) or keyword.iskeyword(name):
        raise NewPackageError(
            f"{name!r} cannot be the name of a package.",
            "Use lower-case letters, digits and '_' (not at the ends), and begin with a letter.",
        )
    if name in sys.builtin_module_names or importlib.util.find_spec(name) is not None:
        raise NewPackageError(f"A module named {name!r} is installed.", "Choose another name.")


def _lines(lines: Sequence[str], devices: Collection[str]) -> Iterator[str]:
    """The lines that the devices need, without the marks."""
    marked_indent: int | None = None  # of the last omitted line; None after a kept line
    blank = 0
    for line in lines:
        if not line:
            blank += 1
            continue
        indent = len(line) - len(line.lstrip())
        mark = _MARK.search(line)
        is_below = marked_indent is not None and indent > marked_indent
        if is_below or (mark and mark[1] not in devices):
            marked_indent = marked_indent if is_below else indent
            # Keep the blank lines of one side.
            blank = 0 if is_below else blank
            continue
        marked_indent = None
        yield from [""] * blank
        blank = 0
        yield _MARK.sub("", line)


def _backend_requirement() -> str:
    """Where accel-ops-build can be installed from: the repository of accel-ops, or its directory here."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        origin = json.loads(metadata.distribution("accel-ops").read_text("direct_url.json") or "{}")
        if source := origin.get("vcs_info"):
            return f"accel-ops-build @ {source['vcs']}+{origin['url']}@{source['commit_id']}#subdirectory=build_tools"
    return f"accel-ops-build @ {(native_root() / 'build_tools').as_uri()}"


if __name__ == "__main__":
    run_main(main)
