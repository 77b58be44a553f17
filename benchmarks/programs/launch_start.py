"""A rank that records when it started: the time of its first statement, in seconds since the epoch."""

import time

STARTED_S = time.time()

import os  # noqa: E402
from pathlib import Path  # noqa: E402

Path(os.environ["BENCHMARK_DIRECTORY"], f"started{os.environ['RANK']}").write_text(repr(STARTED_S))
