"""A program whose thread pickles its class after the last line, and that Ctrl-C ends."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
from dataclasses import dataclass


@dataclass
class Settings:
    steps: int


def copy_later() -> None:
    threading.main_thread().join()
    copy = pickle.loads(pickle.dumps(Settings(3)))
    print(copy, "dev", sys.flags.dev_mode)


atexit.register(lambda: print("atexit:", pickle.loads(pickle.dumps(Settings)).__name__))
threading.Thread(target=copy_later).start()
os.kill(os.getpid(), signal.SIGINT)
