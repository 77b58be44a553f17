"""The compiler check: it says yes to what a build can do, and names the cause where it says no."""

from __future__ import annotations

import shutil

import pytest

from op_builder import env
from op_builder.builder.recipe import make_plan
from op_builder.system.outcomes import Failed, Passed
from op_builder.toolchains.checks import cxx_check
from op_builder.toolchains.flags import grouped_flags
from tests.support.small_ops import SmallBuilder

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on PATH")


@pytest.mark.parametrize(
    "flags",
    [["-D", "VALUE=5"], ["-DVALUE=5"], ["-isystem", "/usr/include", "-D", "VALUE=5", "-O2"], ["-x", "c++", "-UVALUE"]],
    ids=" ".join,
)
def test_flags_of_two_words_stay_whole(small: SmallBuilder, flags: list[str]) -> None:
    small.flags = flags
    assert isinstance(cxx_check(make_plan(small), small.cache.memo), Passed)


def test_what_the_linker_says_is_the_reason_and_not_that_it_failed(small: SmallBuilder) -> None:
    with env.scope(CXX="g++ -lacme_nowhere"):
        outcome = cxx_check(make_plan(small), small.cache.memo)
    assert isinstance(outcome, Failed)
    assert "cannot find -lacme_nowhere" in outcome.reason
    assert "collect2" not in outcome.reason
    assert "libacme_nowhere" in outcome.remedy


def test_an_answer_is_remembered_for_the_compilers_flags_it_was_given_with(small: SmallBuilder) -> None:
    with env.scope(CXX="g++"):
        assert isinstance(cxx_check(make_plan(small), small.cache.memo), Passed)
    with env.scope(CXX="g++ -lacme_nowhere"):
        assert isinstance(cxx_check(make_plan(small), small.cache.memo), Failed)


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (["-D", "X=1", "-O3"], [("-D", "X=1"), ("-O3", "")]),
        (["-DX=1", "-isystem/opt", "-Ia"], [("-D", "X=1"), ("-isystem", "/opt"), ("-I", "a")]),
        (["-Xclang", "-DX", "-g"], [("-Xclang", "-DX"), ("-g", "")]),
        (["--param", "max-inline-insns-auto=1"], [("--param", "max-inline-insns-auto=1")]),
        (["-O2", "-D"], [("-O2", ""), ("-D", "")]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_flags_are_cut_from_their_values(words: list[str], groups: list[tuple[str, str]]) -> None:
    found = list(grouped_flags(words))
    assert [(flag, value) for flag, value, _ in found] == groups
    assert [word for *_, written in found for word in written if word] == words
