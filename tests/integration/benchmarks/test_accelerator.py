"""The benchmark of the device layer: what its figures say, and those on lines, which no noise moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import accelerator

MOST_LINES_OF_THE_LAYER = 2520


def test_a_delegated_call_shows_torchs_own_time_and_both_together() -> None:
    row = accelerator.Figure("added to x()", 50, "ns", 300, torch_ns=1200).row
    assert row == ["added to x()", "ok", "50 ns", "<= 300 ns", "1,200 ns", "1,250 ns"]


@pytest.mark.parametrize(
    ("one", "other", "run"),
    [
        ("a b c", "x a b c y", "a b c"),
        ("a b c", "b c a b", "b c"),
        ("a b", "c d", ""),
        ("", "a", ""),
        ("a a a", "a a", "a a"),
    ],
)
def test_the_longest_run_is_found_wherever_it_stands(one: str, other: str, run: str) -> None:
    assert accelerator.longest_equal_run(one.split(), other.split()) == run.split()


def test_code_lines_are_those_without_blanks_comments_and_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        '"""Two\nlines."""\n\n# why\nx = (\n    1,  # one\n)\n\n\ndef f():\n    """Said."""\n    return x\n'
    )
    assert accelerator.count_lines([file]) == 12
    assert accelerator.count_code_lines([file]) == 5


def test_a_backend_with_a_function_does_more_than_declare(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def help(): ...\nclass A_Accelerator:\n    name = 'a'\n")
    assert accelerator.only_declares(file), "a function beside the class does not free it from the limit"
    file.write_text("class A_Accelerator:\n    name = 'a'\n    def f(self): ...\n")
    assert not accelerator.only_declares(file)


def test_every_backend_is_looked_at() -> None:
    # xpu.external is the class of another package and has no module here.
    assert sorted(accelerator.backends()) == ["cpu", "cuda", "hpu", "mlu", "mps", "npu", "sdaa", "xpu"]


def test_no_two_backends_share_a_run_and_a_declaration_is_short() -> None:
    figures = accelerator.measure_lines()
    runs = [figure for figure in figures if figure.name.startswith("longest run")]
    declared = [figure for figure in figures if "only declares" in figure.name]
    assert [figure.name.split()[2] for figure in declared] == [f"{n}_accelerator.py," for n in ("mlu", "sdaa")]
    assert [figure.verdict for figure in (*runs, *declared)] == ["ok"] * 3


def test_the_layer_does_not_grow() -> None:
    """Raise this bound only with a reason: what is added has to be worth its lines."""
    lines = next(figure for figure in accelerator.measure_lines() if figure.name == accelerator.LAYER)
    assert lines.value <= MOST_LINES_OF_THE_LAYER


def test_the_calls_compared_do_the_same() -> None:
    from accelerator.cpu_accelerator import CPU_Accelerator

    for name, ours, torchs in [*accelerator.delegated_calls(CPU_Accelerator()), *accelerator.cuda_calls()]:
        mine, theirs = ours(), torchs()
        same = (mine == theirs).all() if name.startswith("get_rng_state") else mine == theirs
        assert bool(same), name
