"""Declarations of optimizers, and the functions that are made from them."""

from __future__ import annotations

import pytest

from op_builder.ops.optim.native_op import REQUIRED, make_function


@pytest.mark.parametrize(
    ("arguments", "keywords"), [((1,), {}), ((1, 2, 3, 4), {}), ((1, 2), {"a": 1}), ((1, 2), {"d": 1})]
)
def test_a_made_function_refuses_other_arguments(arguments: tuple[int, ...], keywords: dict[str, int]) -> None:
    function = make_function("update", "", {"a": REQUIRED, "b": REQUIRED, "c": 3}, lambda _: None)
    with pytest.raises(TypeError, match=r"update\(\) takes \(a, b, c\)"):
        function(*arguments, **keywords)
