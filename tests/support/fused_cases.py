"""What the tests of the fused optimizers share: their tensors, and calls of their functions of many tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from op_builder.ops.optim.fused_op import FusedOp
from tests.support.optimizer_reference import ADAM, LAMB, LION, Kind
from tests.support.training_tensors import Tensors, guarded

CHUNK = 4096  # small, so that tensors of some thousand elements have several chunks
FUSED_KINDS = (ADAM, LION, LAMB)


def lists_of(cases: Sequence[Tensors]) -> list[list[torch.Tensor]]:
    """``[grads, params, *states]``."""
    states = zip(*(case.states for case in cases), strict=True)
    return [[case.grad for case in cases], [case.param for case in cases], *map(list, states)]


def numbers_of(kind: Kind, **changes: Any) -> dict[str, Any]:
    """The arguments of ``multi_tensor_*`` that are numbers, of the third step."""
    given = {**kind.options, "step": 3, **changes}
    if "adamw_mode" in given:
        given["mode"] = int(given.pop("adamw_mode"))
    return given


def apply(
    module: FusedOp, kind: Kind, cases: Sequence[Tensors], flag: torch.Tensor | None = None, **changes: Any
) -> None:
    """Update ``cases`` with the function of many tensors."""
    given = numbers_of(kind, **changes)
    in_tensors = kind is ADAM and not isinstance(given["step"], int)  # only this kind has a form of its own for them
    update = getattr(module, f"multi_tensor_{kind.name}{'_capturable' if in_tensors else ''}")
    update(CHUNK, flag, lists_of(cases), **given)


def moved(tensors: Tensors, offsets: Sequence[int] = (0,) * 5, device: str = "cpu") -> Tensors:
    """Copies on a device, that many elements after an aligned address, between guards."""
    places = iter(offsets)
    return tensors.map(lambda tensor: guarded(tensor, next(places), device))
