"""Declarations of optimizers, and the functions that are made from them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from op_builder.ops.optim.native_op import REQUIRED, Declaration, make_function


def test_a_declaration_is_read_from_its_text() -> None:
    text = "Some\nfirst,second\nlr=1e-2,eps=1e-8,decay:0.5,mode=true,other=false,each\nstep"
    assert Declaration.parse(text) == Declaration(
        name="Some",
        states=("first", "second"),
        options=("lr", "eps", "decay", "mode", "other", "each"),
        numbers={"lr": 1e-2, "eps": 1e-8},
        modes={"mode": True, "other": False},
        switches=("each",),
        constants={"decay": 0.5},
        has_step=True,
    )


def test_a_made_function_takes_arguments_as_a_written_one() -> None:
    calls: list[dict[str, Any]] = []
    function = make_function("update", "What it does.", {"a": REQUIRED, "b": REQUIRED, "c": 3}, calls.append)
    function(1, 2)
    function(1, c=4, b=2)
    assert calls == [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 4}]
    assert str(inspect.signature(function)) == "(a, b, c=3)"
    assert (function.__name__, function.__doc__) == ("update", "What it does.")


@pytest.mark.parametrize(
    ("arguments", "keywords"), [((1,), {}), ((1, 2, 3, 4), {}), ((1, 2), {"a": 1}), ((1, 2), {"d": 1})]
)
def test_a_made_function_refuses_other_arguments(arguments: tuple[int, ...], keywords: dict[str, int]) -> None:
    function = make_function("update", "", {"a": REQUIRED, "b": REQUIRED, "c": 3}, lambda _: None)
    with pytest.raises(TypeError, match=r"update\(\) takes \(a, b, c\)"):
        function(*arguments, **keywords)
