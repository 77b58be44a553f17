"""No copy per device: a backend is a short declaration, and two of them share no code."""

from __future__ import annotations

import ast
import itertools
from difflib import SequenceMatcher
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "accelerator"
DEVICES = ("cpu", "cuda", "hpu", "mlu", "mps", "npu", "sdaa", "supa", "xpu")
MOST_EQUAL_LINES = 5
MOST_LINES_OF_A_DECLARATION = 25


def lines_of(device: str) -> list[str]:
    text = (PACKAGE / f"{device}_accelerator.py").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(DEVICES, 2)))
def test_two_backends_share_no_code(one: str, other: str) -> None:
    match = SequenceMatcher(None, lines_of(one), lines_of(other), autojunk=False).find_longest_match()
    assert match.size <= MOST_EQUAL_LINES, lines_of(one)[match.a : match.a + match.size]


@pytest.mark.parametrize("device", ["mlu", "sdaa", "supa"])
def test_a_backend_without_peculiarities_is_a_short_declaration(device: str) -> None:
    text = (PACKAGE / f"{device}_accelerator.py").read_text(encoding="utf-8")
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert not any(isinstance(node, ast.FunctionDef) for each in classes for node in ast.walk(each))
    assert len(text.splitlines()) <= MOST_LINES_OF_A_DECLARATION
