"""What a store holds after its writer was killed, and when several processes use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import env
from op_builder.ops import TensorStore
from tests import support

pytestmark = pytest.mark.slow


def start_writer(mode: str, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, Path(support.__file__).with_name("killed_writer.py"), mode, directory]
    # The kernel closes the files of a killed process's io_uring a moment after the process.
    environment = env.child_environment(PYTHONPATH=os.pathsep.join(sys.path), ACCEL_AIO_ENGINE="threads")
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_writer_killed_at_any_step_leaves_the_old_value_or_the_new(tmp_path: Path) -> None:
    with start_writer("steps", tmp_path) as writer:
        output, _ = writer.communicate(timeout=600)
    assert writer.returncode == 0
    values, files_before, files_after = zip(*(map(int, line.split()) for line in output.splitlines()), strict=True)
    assert len(values) > 10
    assert set(values) == {0, 1}
    assert list(values) == sorted(values), "once it is the new one, it stays so"
    assert max(files_before) == 3, "some have left a file"
    assert set(files_after) == {2}, "which the next store removes"


def test_processes_share_a_directory(tmp_path: Path) -> None:
    writers = [start_writer("loop", tmp_path) for _ in range(2)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        store = TensorStore(tmp_path)
        for _ in range(50):
            value = store.load("x")
            assert (value == value[0]).all()
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert TensorStore(tmp_path).names() == ["x"]
    assert os.listdir(tmp_path) == ["x.safetensors"]
