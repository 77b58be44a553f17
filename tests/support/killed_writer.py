"""A writer of a TensorStore or a checkpoint that is killed; run as a program by test_tensor_store_killed.py.

killed_writer.py store DIR         in one child after the other, save over an old value and die by SIGKILL at the first,
                                   second, ... call to the system; print what each has left
killed_writer.py checkpoint DIR    the same with a checkpoint
killed_writer.py loop DIR          save 1, 2, 3, ... to a store forever, and print each number once it is saved
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from op_builder.ops import CheckpointReader, CheckpointWriter, TensorStore
from op_builder.ops.io import file_pieces
from op_builder.ops.io.aio_handle import Handle

SIZE = 100_000
PIECE_BYTES = 150_000  # three pieces
# What saving calls: a point to die at, before each call and (by the next) after it.
CALLS = (
    (os, "open"),
    (fcntl, "flock"),
    (Handle, "async_pwrite"),
    (Handle, "wait"),
    (os, "pwrite"),
    (os, "fsync"),
    (os, "replace"),
    (os, "close"),
)


def value(number: int) -> torch.Tensor:
    return torch.full((SIZE,), number, dtype=torch.float32)


def die_at(point: int) -> None:
    """Let the process end at the call of that number, counted from 0."""
    left = point

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*arguments, **keywords)

        return count

    for owner, name in CALLS:
        setattr(owner, name, deadly(getattr(owner, name)))


def save_in_store(directory: Path, number: int) -> None:
    TensorStore(directory).save("x", value(number))


def load_from_store(directory: Path) -> torch.Tensor:
    return TensorStore(directory).load("x")


def save_checkpoint(directory: Path, number: int) -> None:
    dcp.save({"x": value(number)}, storage_writer=CheckpointWriter(directory), no_dist=True)


def load_checkpoint(directory: Path) -> torch.Tensor:
    state = {"x": value(9)}
    dcp.load(state, storage_reader=CheckpointReader(directory), no_dist=True)
    return state["x"]


def steps(directory: Path, save: Callable[[Path, int], None], load: Callable[[Path], torch.Tensor]) -> None:
    """Print for each point: the value found, files before the next save, files after it."""
    save(directory, 0)  # and the op is loaded
    for point in itertools.count():
        child = os.fork()
        if child == 0:
            die_at(point)
            save(directory, 1)
            os._exit(0)
        has_survived = os.waitpid(child, 0)[1] == 0
        files = len(os.listdir(directory))
        (found,) = load(directory).unique().tolist()
        save(directory, 0)
        print(int(found), files, len(os.listdir(directory)))
        if has_survived:
            return


def loop(directory: Path) -> None:
    store = TensorStore(directory)
    for number in itertools.count(1):
        store.save("x", value(number))
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    torch.set_num_threads(1)  # forks
    file_pieces.PIECE_BYTES = PIECE_BYTES
    warnings.simplefilter("ignore")  # torch has no group of ranks
    mode, directory = sys.argv[1], Path(sys.argv[2])
    if mode == "loop":
        loop(directory)
    elif mode == "store":
        steps(directory, save_in_store, load_from_store)
    else:
        steps(directory, save_checkpoint, load_checkpoint)
