"""The order in which a trial loads the libraries of a wheel."""

from __future__ import annotations

import pytest

from op_builder.report.extension_file import needed_first
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
    elves = {name: Elf("x86_64", tuple(needed), (), none, none, none, none, "") for name, needed in needs.items()}
    assert "".join(name for name in needed_first(elves["x"].needed, elves) if name != "x") == order
