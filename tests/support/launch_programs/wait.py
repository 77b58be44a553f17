"""Starts a child in a session of its own, reports that it runs, and waits; some ranks end differently."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

how, rank = sys.argv[1], os.environ["RANK"]


def clean_up(number: int, _frame: object) -> None:
    time.sleep(0.1)  # takes a while; Open MPI kills after a second
    with open(f"got{rank}", "a") as file:
        file.write(signal.Signals(number).name)
    sys.exit(0)


for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    if how == "stubborn" or (how == "one_fails" and rank == "0"):
        signal.signal(signal_number, signal.SIG_IGN)
    elif how == "polite" and signal_number != signal.SIGHUP:
        signal.signal(signal_number, clean_up)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
Path(f"up{rank}").touch()
while len(list(Path().glob("up*"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
if rank == "1" and how in ("killed", "one_fails"):
    print("last words of the rank", file=sys.stderr, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(7)
time.sleep(600)
