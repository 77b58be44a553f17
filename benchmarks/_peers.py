"""Peers: interpreters that have them, and programs that work for a benchmark in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _measure

PROGRAMS = _measure.ROOT / "benchmarks" / "programs"
DEEPSPEED = ("deepspeed==0.19.8", "deepspeed")
TVM_FFI = ("apache-tvm-ffi==0.1.15.post2", "tvm_ffi")


class PeerProcess:
    """A program in another process that answers each JSON line with a JSON line (``programs/answering.py``)."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        self._command = [str(word) for word in command]
        # A full pipe would block a program that writes much. close() closes the file.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            RuntimeError: the peer died; the message ends with the last lines of its standard error.
        """
        self.send(**request)
        return self.receive()

    def send(self, **request: Any) -> None:
        """Send a request without waiting for its answer; :meth:`receive` returns it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() reports it, with the reason

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest request; raises as :meth:`ask`."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            raise failure(self._command, status, self._errors.read())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self, timeout_s: float = 30.0) -> None:
        """End the peer by closing its input; kill it if it does not end in time."""
        try:
            self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()


def failure(command: Sequence[str], status: int | None, output: str) -> RuntimeError:
    """The error for a program that failed, with the last lines that it wrote."""
    lines = "\n".join(output.splitlines()[-20:])
    return RuntimeError(f"{' '.join(command)} failed with status {status}:\n{lines}")


def peer_python(requirement: str, module: str) -> Path:
    """An interpreter that has a peer: this one, else one in a virtual environment that is made once.

    That environment is in the user's cache directory. It sees this environment's packages (torch) and has the peer
    from the package index.

    Args:
        requirement: what pip installs, ``name==version``.
        module: the name that it is imported by.
    """
    if importlib.util.find_spec(module) is not None:
        return Path(sys.executable)
    return peer_environment(requirement, requirement)


def peer_environment(name: str, requirements: str) -> Path:
    """The interpreter of a virtual environment that sees this one's packages; it is made once.

    Args:
        name: its directory's name, in the user's cache directory.
        requirements: arguments of ``pip install``.
    """
    directory = peer_directory(name)
    ready = directory / "ready"
    if not ready.exists() or ready.read_text() != requirements:
        _measure.progress_console.print(f"Installing {requirements} into {directory}")
        make_environment(directory)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements.split()], check=True)
        ready.write_text(requirements)
    see_packages(directory)  # another checkout may have made it
    return directory / "bin" / "python"


def peer_directory(requirement: str) -> Path:
    """Where the virtual environment of a peer is, or would be; it has a file ``ready`` once it is complete."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "accel-ops-benchmarks" / f"{requirement.replace('==', '-')}-py{version}"


def make_environment(directory: Path) -> Path:
    """Make a virtual environment that sees this one's packages but none of its editable installs.

    Returns:
        Its interpreter.
    """
    # With this one's pip and setuptools: those that come with Python are years older.
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(directory)], check=True)
    see_packages(directory)
    return directory / "bin" / "python"


def see_packages(directory: Path) -> None:
    """Let a virtual environment see this one's packages."""
    packages = next(directory.glob("lib/python*/site-packages"))
    # Python does not read the .pth files of a directory that a .pth file names: they hold the editable installs.
    file = packages / "outer.pth"
    outer = sysconfig.get_path("purelib") + "\n"
    if not file.exists() or file.read_text() != outer:
        file.write_text(outer)


def deepspeed_python() -> Path:
    """An interpreter that has DeepSpeed."""
    return peer_python(*DEEPSPEED)
