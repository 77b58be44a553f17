"""What the device layer costs: time on top of torch's own calls, and lines.

A delegated call is timed beside the call of torch that it stands for, in one process, taking turns;
the figure is the difference. A figure in nanoseconds is the median of many rounds. Lines are those of the
files as they are, comments and docstrings counted, as a reader meets them.

    python -m benchmarks.accelerator [--quick] [--json] [--write]
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import io
import itertools
import json
import statistics
import time
import tokenize
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _measure

PACKAGE = Path(__file__).resolve().parents[1] / "accelerator"
SECOND_CALL_LIMIT_NS = 1000.0
DELEGATION_LIMIT_NS = 300.0
HALF_OF_NINE_FILES = 9 * 350 // 2
MOST_LINES_OF_A_DECLARATION = 25
MOST_EQUAL_LINES = 5
CALLS = 2000
WHOLE = "lines of accelerator/ as a whole, kit and launcher included, against half of nine files of 350"
LAYER = "lines of accelerator/ but for the conformance kit and the launcher, against half of nine files of 350"
CONTRACT = "abstract_accelerator.py"
COLUMNS = ["figure", "verdict", "accel-ops", "limit", "torch", "through accel-ops"]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure beside what it may be at most.

    Attributes:
        value: nanoseconds of a call, or a number of lines.
        limit: what it may be at most; None where nothing is required.
        torch_ns: for a delegated call, what torch's own takes; ``value`` is what comes on top.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    torch_ns: float | None = None

    @property
    def verdict(self) -> str:
        """``ok`` or ``miss``; empty where nothing is required."""
        return "" if self.limit is None else "ok" if self.value <= self.limit else "miss"

    @property
    def row(self) -> list[str]:
        both = ["", ""]
        if self.torch_ns is not None:
            both = [f"{self.torch_ns:,.0f} ns", f"{self.torch_ns + self.value:,.0f} ns"]
        limit = "" if self.limit is None else f"<= {self.limit:,.0f} {self.unit}"
        return [self.name, self.verdict, f"{self.value:,.0f} {self.unit}", limit, *both]


# Time --------------------------------------------------------------------------------------------


def call_ns(function: Callable[[], object]) -> float:
    """Nanoseconds of one call, the loop around it included."""
    repeated = itertools.repeat(None, CALLS)
    begun = time.perf_counter_ns()
    for _ in repeated:
        function()
    return (time.perf_counter_ns() - begun) / CALLS


def delegated_calls(accelerator: Any) -> list[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Calls that stand for one of torch: name, ours, torch's; each as a program writes it."""
    import torch

    tensor = torch.zeros(4)
    calls: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("get_rng_state()", lambda: accelerator.get_rng_state(), lambda: torch.get_rng_state()),
        ("initial_seed()", lambda: accelerator.initial_seed(), lambda: torch.initial_seed()),
        ("default_generator(0)", lambda: accelerator.default_generator(0), lambda: torch.default_generator),
        ("FloatTensor([1.0])", lambda: accelerator.FloatTensor([1.0]), _float_tensor),
        (
            "on_accelerator(tensor)",
            lambda: accelerator.on_accelerator(tensor),
            lambda: tensor.device.type == "cpu",
        ),
        ("device()", lambda: accelerator.device(), lambda: torch.device("cpu")),
        ("synchronize()", lambda: accelerator.synchronize(), lambda: torch.cpu.synchronize()),
    ]
    return calls


def _float_tensor() -> object:
    import torch

    return torch.tensor([1.0], dtype=torch.float32, device="cpu")


def cuda_calls() -> list[tuple[str, Callable[[], object], Callable[[], object]]]:
    """The same for the CUDA accelerator's class; without a device, those that answer without one."""
    import torch

    from accelerator.cuda_accelerator import CUDA_Accelerator

    cuda = CUDA_Accelerator()
    calls: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("cuda: memory_allocated()", lambda: cuda.memory_allocated(), lambda: torch.cuda.memory_allocated()),
        ("cuda: max_memory_allocated()", lambda: cuda.max_memory_allocated(), torch.cuda.max_memory_allocated),
        ("cuda: device_count()", lambda: cuda.device_count(), lambda: torch.cuda.device_count()),
    ]
    if torch.cuda.is_available():
        calls += [
            ("cuda: current_device()", lambda: cuda.current_device(), lambda: torch.cuda.current_device()),
            ("cuda: current_stream()", lambda: cuda.current_stream(), lambda: torch.cuda.current_stream()),
            ("cuda: set_device(0)", lambda: cuda.set_device(0), lambda: torch.cuda.set_device(0)),
            ("cuda: synchronize()", lambda: cuda.synchronize(), lambda: torch.cuda.synchronize()),
        ]
    return calls


def measure_time(rounds: int) -> list[Figure]:
    """The second ``get_accelerator()``, and each delegated call against torch's own."""
    from accelerator import get_accelerator, set_accelerator
    from accelerator.cpu_accelerator import CPU_Accelerator

    set_accelerator(CPU_Accelerator())  # the same on every machine, and no word of detection
    figures = [
        Figure(
            "get_accelerator() the second time",
            statistics.median(call_ns(get_accelerator) for _ in range(rounds)),
            "ns",
            SECOND_CALL_LIMIT_NS,
        )
    ]
    for name, ours, torchs in [*delegated_calls(get_accelerator()), *cuda_calls()]:
        pairs = [(call_ns(ours), call_ns(torchs)) for _ in range(rounds)]
        added = statistics.median(mine - theirs for mine, theirs in pairs)
        figures.append(
            Figure(f"added to {name}", added, "ns", DELEGATION_LIMIT_NS, statistics.median(pair[1] for pair in pairs))
        )
    return figures


# Lines -------------------------------------------------------------------------------------------


def count_lines(paths: Iterable[Path]) -> int:
    """Lines of files, all of them."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def backends() -> dict[str, Path]:
    """The modules of the built-in accelerators, by device."""
    found = {path.name.removesuffix("_accelerator.py"): path for path in sorted(PACKAGE.glob("*_accelerator.py"))}
    return {name: path for name, path in found.items() if name not in ("abstract", "real", "torch")}


def inherited() -> list[Path]:
    """The modules of this package that the backends' classes inherit from, as their order of resolution says."""
    classes = [
        getattr(importlib.import_module(f"accelerator.{name}_accelerator"), f"{name.upper()}_Accelerator")
        for name in backends()
    ]
    files = {Path(inspect.getfile(base)).resolve() for each in classes for base in each.__mro__[:-1]}
    return sorted(path for path in files - set(backends().values()) if path.parent == PACKAGE)


def count_code_lines(paths: Iterable[Path]) -> int:
    """Lines with code on them: no blank line, no comment, no docstring."""
    return sum(len(_code_lines(path.read_text(encoding="utf-8"))) for path in paths)


def _code_lines(text: str) -> set[int]:
    spoken = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {
        line for token in tokens if token.type not in silent for line in range(token.start[0], token.end[0] + 1)
    } - spoken


def only_declares(path: Path) -> bool:
    """Whether the accelerator's class, ``..._Accelerator``, is class attributes alone, without a method."""
    classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    declared = [node for node in classes if node.name.endswith("_Accelerator")]
    return not any(isinstance(node, ast.FunctionDef) for each in declared for node in ast.walk(each))


def longest_equal_run(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The longest run of lines that stands in both; blank lines are none, and indentation does not tell them apart."""
    first, second = ([line.strip() for line in lines if line.strip()] for lines in (one, other))
    best = (0, 0)
    before = [0] * (len(second) + 1)
    for index, line in enumerate(first):
        row = [0] * (len(second) + 1)
        for column, other_line in enumerate(second):
            if line == other_line:
                row[column + 1] = before[column] + 1
                best = max(best, (row[column + 1], index + 1))
        before = row
    length, end = best
    return first[end - length : end]


def measure_lines() -> list[Figure]:
    """The package as a whole, each backend, and the longest run that two backends share."""
    everything = sorted(PACKAGE.rglob("*.py"))
    kit = [path for path in everything if path.relative_to(PACKAGE).parts[0].startswith(("conformance", "testing"))]
    launcher = [path for path in everything if path.relative_to(PACKAGE).parts[0] == "launch"]
    layer = [path for path in everything if path not in {*kit, *launcher}]
    files, bases = backends(), inherited()
    together = count_lines([*files.values(), *bases])
    texts = {name: path.read_text(encoding="utf-8").splitlines() for name, path in files.items()}
    shared = {
        (one, other): longest_equal_run(texts[one], texts[other]) for one, other in itertools.combinations(texts, 2)
    }
    pair = max(shared, key=lambda names: len(shared[names]))
    figures = [
        Figure(WHOLE, count_lines(everything), "lines", HALF_OF_NINE_FILES),
        Figure(LAYER, count_lines(layer), "lines", HALF_OF_NINE_FILES),
        Figure("... of these with code on them", count_code_lines(layer), "lines"),
        Figure("lines of the conformance kit beside it", count_lines(kit), "lines"),
        Figure("lines of the launcher beside it", count_lines(launcher), "lines"),
        Figure("lines of all backends and of what they inherit, the contract included", together, "lines"),
        Figure("... without the contract", together - count_lines([PACKAGE / CONTRACT]), "lines"),
    ]
    figures += [Figure(f"lines of {path.name}, which backends inherit", count_lines([path]), "lines") for path in bases]
    figures += [
        Figure(
            f"lines of {path.name}, {'which only declares' if only_declares(path) else 'with what truly differs'}",
            len(texts[name]),
            "lines",
            MOST_LINES_OF_A_DECLARATION if only_declares(path) else None,
        )
        for name, path in files.items()
    ]
    title = f"longest run of equal lines in two backends ({' and '.join(pair)})"
    figures.append(Figure(title, len(shared[pair]), "lines", MOST_EQUAL_LINES))
    return figures


# Command line ------------------------------------------------------------------------------------


def as_json(machine: _measure.Machine, figures: Sequence[Figure]) -> str:
    """All figures, for programs."""
    entries = [{**dataclasses.asdict(figure), "verdict": figure.verdict} for figure in figures]
    return json.dumps({"machine": dataclasses.asdict(machine), "figures": entries}, indent=2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the table into docs/internals")
    arguments = parser.parse_args()
    machine = _measure.describe_machine()
    figures = [*measure_time(11 if arguments.quick else 101), *measure_lines()]
    if arguments.json:
        print(as_json(machine, figures))
    else:
        _measure.console.print(_measure.table("The device layer", COLUMNS, [figure.row for figure in figures]))
        _measure.console.print(str(machine))
    if arguments.write:
        table = _measure.markdown(COLUMNS, [figure.row for figure in figures])
        _measure.write_results("accelerator", f"{machine}\n\n{table}")


if __name__ == "__main__":
    main()
