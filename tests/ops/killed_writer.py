"""A writer that is killed: run as a program, by test_tensor_store_crashes.py.

killed_writer.py steps DIR     in one child after the other, save over an old value and die by SIGKILL at the first,
                               second, ... thing that the store asks of the system; tells what each has left
killed_writer.py loop DIR      save 1, 2, 3, ... for ever, and tell of each when it is saved
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from op_builder.ops import TensorStore
from op_builder.ops.io import tensor_store_transfer
from op_builder.ops.io.aio_handle import Handle

SIZE = 100_000
KILLS = 50
PIECE_BYTES = 150_000  # three pieces
# What saving asks of the system, in Python's hands. Each is a point to die at, before it and (by the next) after it.
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
    point = 0
    survived = False
    while not survived:
        TensorStore(directory).save("x", value(0))
        child = os.fork()
        if child == 0:
            store = TensorStore(directory)
            store.save("warm", value(9))
            die_at(point)
            store.save("x", value(1))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        survived = status == 0
        files = len(os.listdir(directory))
        found = TensorStore(directory).load("x").unique().tolist()
        print(point, "survived" if survived else os.WTERMSIG(status), found, files, swept(directory))
        point += 1


def swept(directory: Path) -> int:
    """How many files there are once a store was opened."""
    # The kernel ends a ring, and what it had open, a moment after its process.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        TensorStore(directory)
        if not any(file.endswith(".partial") for file in os.listdir(directory)):
            break
        time.sleep(0.01)
    return len(os.listdir(directory))


def times(directory: Path) -> None:
    """Print for each: the last number told, the values found, files after the store is opened again."""
    chance = random.Random(0)
    for _ in range(KILLS):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(tell, 1)
            loop(directory)
        os.close(tell)
        os.read(told, 2)  # "1\n": from now on there is an old value
        time.sleep(chance.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(told) as file:
            last = int(("1 " + file.read()).split()[-1])
        found = TensorStore(directory).load("x").unique().tolist()
        print(last, found, swept(directory))


def loop(directory: Path) -> None:
    store = TensorStore(directory)
    number = 0
    while True:
        number += 1
        store.save("x", value(number))
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    torch.set_num_threads(1)  # forks
    tensor_store_transfer._PIECE_BYTES = PIECE_BYTES
    {"steps": steps, "times": times, "loop": loop}[sys.argv[1]](Path(sys.argv[2]))
