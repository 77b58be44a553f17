"""The compiler check: it says yes to what a build can do, and names the cause where it says no."""

from __future__ import annotations

from op_builder import env
from op_builder.builder.recipe import make_plan
from op_builder.system.outcomes import Failed, Passed
from op_builder.toolchains.checks import cxx_check
from tests.support.compilers import needs_gxx
from tests.support.small_ops import SmallBuilder


def test_flags_of_two_words_stay_whole(small: SmallBuilder) -> None:
    small.flags = ["-isystem", "/usr/include", "-D", "VALUE=5", "-x", "c++", "-UVALUE", "-O2"]
    assert isinstance(cxx_check(make_plan(small), small.cache.memo), Passed)


@needs_gxx
def test_a_linker_that_fails_is_quoted_and_an_answer_counts_for_its_flags_alone(small: SmallBuilder) -> None:
    with env.scope(CXX="g++"):
        assert isinstance(cxx_check(make_plan(small), small.cache.memo), Passed)
    with env.scope(CXX="g++ -lacme_nowhere"):
        outcome = cxx_check(make_plan(small), small.cache.memo)
    assert isinstance(outcome, Failed)
    assert "cannot find -lacme_nowhere" in outcome.reason
    assert "collect2" not in outcome.reason
    assert "libacme_nowhere" in outcome.remedy
