"""The fused CUDA kernels on the host, through a stand-in for CUDA's headers."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch

from op_builder.ops.optim.fused_op import FusedOp
from tests.support.compilers import require_program
from tests.support.optimizer_reference import FLOATS, Kind, load_fused

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    *("-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-shared"),
    *("-fPIC", "-mfma", "-fsanitize=undefined", "-fno-sanitize-recover=all"),
    *("-Icsrc", "-Itests/support/native/cuda_on_host"),
)
MOST_STATES = 3


class DeviceTensor(ctypes.Structure):
    """As in csrc/kernels/multi_tensor/table.h."""

    _fields_ = (
        *(("param", ctypes.c_void_p), ("grad", ctypes.c_void_p), ("states", ctypes.c_void_p * MOST_STATES)),
        *(("step", ctypes.c_void_p), ("numel", ctypes.c_int64), ("types", ctypes.c_uint8 * 3)),
    )


class Controls(ctypes.Structure):
    """As in csrc/kernels/cuda/multi_tensor.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("noop_flag", "found_inf", "grad_scale", "lr")),
        ("maximize", ctypes.c_bool),
    )


@cache
def kernels() -> ctypes.CDLL:
    sources = ["tests/support/native/fused_on_host.cpp", *sorted(map(str, ROOT.glob("csrc/kernels/cuda/*.cu")))]
    with tempfile.TemporaryDirectory() as directory:
        library = f"{directory}/fused_on_host.so"
        subprocess.run([require_program("g++"), *FLAGS, "-x", "c++", *sources, "-o", library], check=True, cwd=ROOT)
        return ctypes.CDLL(library)


def load_on_host(kind: Kind) -> FusedOp:
    """The op with these kernels, for updates of lists."""

    def update(
        params: Sequence[torch.Tensor],
        grads: Sequence[torch.Tensor],
        states: Sequence[torch.Tensor],
        steps: Sequence[torch.Tensor],
        lr: torch.Tensor | None,
        noop_flag: torch.Tensor | None,
        grad_scale: torch.Tensor | None,
        found_inf: torch.Tensor | None,
        options: Sequence[float],
        step: int,
        maximize: bool,
        chunk_size: int,
        _isa: str,
    ) -> None:
        given = (DeviceTensor * len(params))()
        for place, (one, param, grad) in enumerate(zip(given, params, grads, strict=True)):
            own = states[place :: len(params)]
            one.param, one.grad, one.numel = param.data_ptr(), grad.data_ptr(), param.numel()
            one.states[: len(own)] = [state.data_ptr() for state in own]
            one.step = steps[place % len(steps)].data_ptr() if steps else None
            one.types[:] = [FLOATS.index(param.dtype), FLOATS.index(grad.dtype), own[0].itemsize == 2]
        controls = (None if tensor is None else tensor.data_ptr() for tensor in (noop_flag, found_inf, grad_scale, lr))
        control = ctypes.byref(Controls(*controls, maximize))
        addresses = (ctypes.c_void_p * len(steps))(*(counter.data_ptr() for counter in steps))
        assert kernels().advance(addresses, len(steps), control) == 0
        numbers = (ctypes.c_double * len(options))(*options)
        rest = (numbers, ctypes.c_double(step), control, ctypes.c_int64(chunk_size))
        assert getattr(kernels(), kind.name)(given, ctypes.c_size_t(len(params)), *rest) == 0

    ops = load_fused(kind).ops
    about = {name: getattr(ops, name) for name in ("declaration", "supported_isas", "devices")}
    return FusedOp(SimpleNamespace(update=SimpleNamespace(default=update), **about))
