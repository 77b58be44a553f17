"""Scripts in place of compilers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.waiting import has_ended

# For tests that run g++ themselves, or whose sources need more than ziglang's clang offers.
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")


def require_program(name: str) -> str:
    """The path of a program, or the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def program(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def shared_library(path: Path, text: str, *options: str) -> Path:
    """Compile a C++ text into a library with g++."""
    command = [require_program("g++"), "-shared", "-fPIC", "-x", "c++", "-", "-x", "none", "-o", path, *options]
    subprocess.run(command, input=text, text=True, check=True)
    return path


class EndlessCompiler:
    """A compiler that logs its own start and that of a child process, and then never ends."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "started"
        compiling = f'sleep 1000 & echo "$PPID $$ $!" >>{self.log}; wait'
        body = f'case "$*" in *.o.d*) {compiling};; *) exec {require_program("g++")} "$@";; esac'
        self.path = program(directory / "slow-g++", body)

    def processes(self) -> list[int]:
        """The process ids that were logged; empty before the start."""
        return [int(word) for word in self.log.read_text().split()] if self.log.exists() else []

    def ended(self) -> bool:
        # One that starts while its parent is killed is a child of process 1, or of a subreaper above this one.
        adopters = {1, os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        return all(has_ended(process) for process in self.processes() if process not in adopters)
