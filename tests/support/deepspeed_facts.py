"""A program that prints how DeepSpeed behaves in its environment, one JSON object; see test_deepspeed.py.

Args: a device, such as ``xpu``, that torch pretends to have. No module of this project is imported, because one of
the environments lacks it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from typing import Any

import torch


def pretend(device: str) -> None:
    """Answer for a device that this machine lacks, as far as DeepSpeed looks at it while it is imported."""
    module = getattr(torch, device)
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.current_allocated_memory = lambda: 0
    module.set_device = lambda _: None


def facts() -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        import deepspeed
        from deepspeed.accelerator import get_accelerator
        from deepspeed.ops import op_builder
    except BaseException as error:
        return {"import": f"{type(error).__name__}: {error}"}
    accelerator = get_accelerator()
    found["accelerator"] = f"{type(accelerator).__module__}.{type(accelerator).__name__} {accelerator.op_builder_dir()}"
    builders = {name: getattr(op_builder, name) for name in dir(op_builder) if name.endswith("Builder")}
    found["builders"] = {name: f"{getattr(each, '__module__', None)}" for name, each in builders.items()}
    found["compatible"] = dict(deepspeed.ops.__compatible_ops__)
    with contextlib.redirect_stdout(io.StringIO()) as report:
        __import__("deepspeed.env_report").env_report.main(False, False)
    found["report"] = report.getvalue().splitlines()
    found["distributed"] = distributed(deepspeed, accelerator)
    return found


def distributed(deepspeed: Any, accelerator: Any) -> dict[str, Any]:
    """What ``init_distributed`` does with one rank; its shared-memory op is not compiled."""
    names: list[str] = []
    make = type(accelerator).create_op_builder

    def record(self: Any, name: str) -> Any:
        names.append(name)
        builder = make(self, name)
        if builder is not None:
            builder.load = lambda *_, **__: None
        return builder

    type(accelerator).create_op_builder = record
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        outcome = "initialized"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    return {"outcome": outcome, "builders": names}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for device in sys.argv[1:]:
        pretend(device)
    real, sys.stdout = sys.stdout, sys.stderr
    result = facts()
    print(json.dumps(result), file=real, flush=True)
    os._exit(0)
