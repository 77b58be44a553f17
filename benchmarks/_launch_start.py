"""A rank that tells when it began: the time of its first statement, in seconds since the epoch."""

import time

BEGAN_S = time.time()

import os  # noqa: E402
from pathlib import Path  # noqa: E402

Path(os.environ["BENCHMARK_DIRECTORY"], f"began{os.environ['RANK']}").write_text(repr(BEGAN_S))
