"""Relays two streams of long lines to two pipes, as a rank's process does: ``two_relays.py NAME DESCRIPTOR...``."""

from __future__ import annotations

import os
import sys
import threading

from accelerator.launch.output import Relay


def write(writer: int, name: str) -> None:
    with open(writer, "w") as file:
        file.writelines(f"{name}{number} {'x' * 9000}\n" for number in range(300))


if __name__ == "__main__":
    relays, threads = [], []
    for target in map(int, sys.argv[2:]):
        reader, writer = os.pipe()
        relays.append(Relay(reader, target))
        threads.append(threading.Thread(target=write, args=(writer, sys.argv[1])))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for relay in relays:
        relay.finish()
