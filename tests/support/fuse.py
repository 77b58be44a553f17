"""Mounts that a FUSE program serves, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 60


class CannotMount(Exception):
    """FUSE does not mount here; the message says why."""


@contextlib.contextmanager
def served(module: str, *arguments: object, mount: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the FUSE program ``module`` until ``mount`` is there; unmount at the end.

    Raises:
        CannotMount: this machine has no FUSE, or does not allow it.
        RuntimeError: the program failed; the message is its output.
    """
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise CannotMount("mounting needs root and /dev/fuse")
    try:
        import mfusepy  # noqa: F401
    except (ImportError, OSError) as error:
        raise CannotMount(f"no FUSE for Python: {error}") from None
    mount.mkdir()
    output = mount.with_name(f"{mount.name}.output")
    with output.open("wb") as file:
        command = [sys.executable, "-m", module, *map(str, arguments)]
        server = subprocess.Popen(command, cwd=_ROOT, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not os.path.ismount(mount):
            if server.poll() is not None or time.monotonic() > deadline:
                text = output.read_text()
                if "fuse: " in text:
                    raise CannotMount(f"FUSE does not mount here: {text.strip().splitlines()[0]}")
                raise RuntimeError(text or f"no mount within {_LIMIT_S} s")
            time.sleep(0.01)
        yield server
    finally:
        # Lazily: an open file must not keep the mount.
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
