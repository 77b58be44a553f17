"""The order in which a trial loads the libraries of a wheel."""

from __future__ import annotations

import pytest

from op_builder.report.trial import needed_first
from op_builder.report.verdicts import Binary
from op_builder.system.elf import Elf


@pytest.mark.parametrize(
    ("needs", "order"),
    [
        ({"x": ["a", "b"], "a": ["b"], "b": ["libc"]}, "ba"),
        ({"x": ["b", "a"], "a": ["b"], "b": []}, "ba"),
        ({"x": ["a"], "a": ["b"], "b": ["a", "x"]}, "ab"),  # each needs the other
        ({"x": ["a"], "a": ["a"]}, "a"),
    ],
)
def test_a_library_is_loaded_after_those_that_it_needs(needs: dict[str, list[str]], order: str) -> None:
    none = frozenset[str]()
    by_name = {
        name: Binary(name, Elf("x86_64", tuple(needed), (), none, none, none, none, ""))
        for name, needed in needs.items()
    }
    assert "".join(binary.name for binary in needed_first(by_name["x"], by_name)) == order
