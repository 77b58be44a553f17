"""A writer of a TensorStore that is killed; run as a program by test_tensor_store_killed.py.

killed_writer.py steps DIR     in one child after the other, save over an old value and die by SIGKILL at the first,
                               second, ... call to the system; print what each has left
killed_writer.py loop DIR      save 1, 2, 3, ... forever, and print each number once it is saved
"""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from op_builder.ops import TensorStore
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


def steps(directory: Path) -> None:
    """Print for each point: the value found, files before the store is opened again, files after."""
    TensorStore(directory).save("x", value(0))  # and the op is loaded
    for point in itertools.count():
        TensorStore(directory).save("x", value(0))
        child = os.fork()
        if child == 0:
            store = TensorStore(directory)
            store.save("warm", value(9))
            die_at(point)
            store.save("x", value(1))
            os._exit(0)
        has_survived = os.waitpid(child, 0)[1] == 0
        files = len(os.listdir(directory))
        (found,) = TensorStore(directory).load("x").unique().tolist()
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
    {"steps": steps, "loop": loop}[sys.argv[1]](Path(sys.argv[2]))
