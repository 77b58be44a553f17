"""Bad input of the fused optimizers: a clear error, the tensors untouched, the op usable afterwards."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from op_builder.errors import OpArgumentError
from tests.support.fused_cases import CHUNK, FUSED_KINDS, lists_of, numbers_of
from tests.support.optimizer_reference import ADAM, LAMB, LION, Kind, load_fused, make_tensors


def refused(text: str, kind: Kind = ADAM, form: str = "", **changes: Any) -> None:
    """Raise unless an update with ``changes`` is refused with a remedy, changes no tensor, and works without them."""
    cases = [make_tensors(kind, 24, seed=i) for i in range(3)]
    before = [case.clone() for case in cases]
    good = {"chunk_size": CHUNK, "noop_flag": None, "tensor_lists": lists_of(cases), **numbers_of(kind)}
    update = getattr(load_fused(kind), f"multi_tensor_{kind.name}{form}")
    with pytest.raises(OpArgumentError, match=text) as caught:
        update(**{**good, **changes})
    assert caught.value.remedy
    for case, old in zip(cases, before, strict=True):
        assert all(map(torch.equal, case, old))
    update(**good)


SHRUNK = torch.ones(1)
SHRUNK.untyped_storage().resize_(3)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        # mode: of Adam, whose plain form reads lr as a number and takes no counter; its capturable form takes one
        *(
            ({"mode": 1, name: value}, text)
            for name, value, text in (
                ("lr", torch.tensor(math.nan), "lr is nan"),
                ("lr", torch.tensor(-1.0), "lr is -1.0"),
                ("step", torch.tensor(1.0), "not an int"),
                ("step", [torch.tensor(1.0)] * 3, "not an int"),
            )
        ),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"lr": "fast"}, "not a number"),
        ({"lr": torch.ones(2)}, "lr is not a tensor of one float32"),
        ({"beta1": 1.0}, "beta1 is 1.0"),
        ({"mode": 2}, "mode is 2"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_size": "big"}, "chunk_size is 'big'"),
        ({"step": 0}, "step is 0"),
        ({"step": 1.5}, "step is 1.5"),
        ({"step": []}, "step is an empty list"),
        ({"step": [torch.zeros(())] * 2}, "3 parameters came with 2 step tensors"),
        ({"step": torch.zeros(2)}, "step of tensor 0"),
        ({"step": torch.tensor(-1.0)}, "steps are whole numbers of at least 0"),
        ({"step": torch.tensor(math.nan)}, "steps are whole numbers of at least 0"),
        ({"grad_scale": torch.ones(3)}, "grad_scale is not a tensor of one float32"),
        ({"grad_scale": SHRUNK}, "grad_scale reaches to byte 4 of its storage, which has 3"),
        ({"found_inf": torch.ones(1, dtype=torch.int32)}, "found_inf is not a tensor of one float32"),
        ({"noop_flag": torch.zeros(1)}, "noop_flag is not a tensor of one int32"),
        ({"noop_flag": torch.zeros(1, dtype=torch.int32, device="meta")}, "noop_flag is on device meta"),
        ({"noop_flag": 0}, "noop_flag is of type int"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_numbers_and_what_is_read_from_tensors(changes, text):
    refused(text, ADAM if "mode" in changes else LAMB, **changes)  # Adam's function takes no tensors as numbers


@pytest.mark.parametrize(("kind", "form"), [*((kind, "") for kind in FUSED_KINDS), (ADAM, "_capturable")], ids=str)
def test_lists_of_unequal_length_or_number(kind, form):
    lists = lists_of([make_tensors(kind, 24) for _ in range(3)])
    for tensor_lists, text in (
        ([lists[0][:2], *lists[1:]], "3 parameters came with 2 grad tensors"),
        ([*lists[:-1], lists[-1][:2]], f"3 parameters came with 2 {kind.states[-1]} tensors"),
        (lists[:-1], f"tensor_lists has {len(lists) - 1} lists"),
        ([*lists, lists[0]], f"tensor_lists has {len(lists) + 1} lists"),
    ):
        refused(text, kind, form, tensor_lists=tensor_lists)
    if kind is not LION:
        refused("step is 0", kind, form, step=0)
