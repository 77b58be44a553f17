"""What a store and a checkpoint hold after the writer was killed; a store that several processes use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from op_builder import env
from op_builder.ops import TensorStore
from tests import support
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def start_writer(mode: str, directory: Path, engine: str | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, Path(support.__file__).with_name("killed_writer.py"), mode, directory]
    environment = env.child_environment(PYTHONPATH=os.pathsep.join(sys.path), ACCEL_AIO_ENGINE=engine)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    ("mode", "most_files", "files"), [("store", 2, 1), ("checkpoint", 5, 2)], ids=["store", "checkpoint"]
)
def test_a_writer_killed_at_any_step_leaves_the_old_value_or_the_new(
    mode: str, most_files: int, files: int, tmp_path: Path
) -> None:
    with start_writer(mode, tmp_path, "threads") as writer:  # each start of a store must find all files closed
        output, _ = writer.communicate(timeout=600)
    assert writer.returncode == 0
    values, files_before, files_after = zip(*(map(int, line.split()) for line in output.splitlines()), strict=True)
    assert len(values) > 10
    assert set(values) == {0, 1}
    assert list(values) == sorted(values), "once it is the new one, it stays so"
    assert max(files_before) == most_files, "some have left files"
    assert set(files_after) == {files}, "which the next save removes"


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
    value = TensorStore(tmp_path).load("x")
    assert (value == value[0]).all()
    # The kernel closes the files of a killed process's io_uring a moment after the process.
    wait_until(lambda: TensorStore(tmp_path).names() == ["x"] and os.listdir(tmp_path) == ["x.safetensors"])
