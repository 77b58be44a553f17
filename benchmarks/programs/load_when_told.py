"""One process of several: imports, waits for a line on standard input, loads CPU Adam.

Prints one JSON line: when it had loaded, by the clock that all processes of a machine share, and
how often it compiled.
"""

import json
import logging
import sys
import time

import torch  # noqa: F401

from op_builder import CPUAdamBuilder

compiles = 0


class _Builds(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        global compiles
        compiles += record.getMessage().startswith("Built ")


logging.getLogger("op_builder.engine.build").addHandler(_Builds())
logging.getLogger("op_builder.engine.build").setLevel(logging.INFO)
print("ready", flush=True)
sys.stdin.readline()
CPUAdamBuilder().load()
print(json.dumps({"loaded_at": time.perf_counter(), "compiles": compiles}))
