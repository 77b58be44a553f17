"""The arguments of the LAMB of one tensor; its numbers are tested beside the fused kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.optim.lamb_of_one import lamb


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("p", torch.ones(3, dtype=torch.int32), "p is of type torch.int32"),
        ("m", torch.ones(3, dtype=torch.int64), "m is of type torch.int64"),
        ("g", torch.ones(2), "g has 2 elements, p has 3"),
        ("step", 0, "step is 0"),
        ("mode", 2, "mode is 2"),
        ("grad_scale", float("nan"), "grad_scale is nan"),
        ("max_coeff", 0.001, "limits are 0.01 and 0.001"),
    ],
)
def test_a_wrong_argument_is_refused_before_a_tensor_is_changed(name: str, value: Any, message: str) -> None:
    tensors = {name: torch.ones(3) for name in ("p", "m", "v", "g")} | {"p_copy": torch.empty(0)}
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "max_coeff": 10.0, "min_coeff": 0.01, "eps": 1e-6}
    switches = {"grad_scale": 1.0, "step": 1, "mode": 0, "bias_correction": True, "decay": 0.0}
    given: dict[str, Any] = {**tensors, **numbers, **switches, name: value}
    with pytest.raises(OpArgumentError, match=message):
        lamb(**given)
    assert all(torch.equal(tensors[each], torch.ones(3)) for each in "pmvg")
