"""How long it takes to import, build and load, against limits and peers, in one run.

Each measurement is a fresh process with torch imported before the clock starts; a figure is the
median of its processes. Contenders take turns. What an import adds to Python's start is the median
difference of processor time between neighbouring processes with it and without.

    python -m benchmarks.jit [--quick] [--peers deepspeed,torch,tvm-ffi] [--json] [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _builds, _loads, _measure, _texts
from benchmarks._figures import Counts, Section

PEERS = ("deepspeed", "torch", "tvm-ffi")
FULL = Counts(cold=3, warm=25, warm_peer=5, start=40)
QUICK = Counts(cold=1, warm=7, warm_peer=2, start=15)


def measure(arguments: argparse.Namespace, directory: Path) -> list[Section]:
    """All tables; ``directory`` takes the caches."""
    counts = QUICK if arguments.quick else FULL
    builder_peers = []
    if "deepspeed" in arguments.peers:
        python = _measure.peer_python(*_measure.DEEPSPEED, arguments.deepspeed_python)
        builder_peers.append(_loads.deepspeed(python))
    text_peers = {}
    if "torch" in arguments.peers:
        text_peers["torch"] = _texts.contender("torch")
    if "tvm-ffi" in arguments.peers:
        text_peers["tvm-ffi"] = _texts.contender("tvm-ffi", _measure.peer_python(*_measure.TVM_FFI))
    loads = _loads.measure_loads(builder_peers, counts, directory)
    loads += [*_loads.measure_starts(counts, directory / "starts"), *_loads.measure_imports(counts)]
    builds = _builds.measure_builds(counts, directory)
    texts = _texts.measure_texts(text_peers, counts, directory)
    return [
        Section("Importing and loading CPU Adam", [peer.name for peer in builder_peers], loads),
        Section("Cold loads and the compilers' own time", ["bare commands", "one process"], builds),
        Section("Small texts: load_inline and its like", list(text_peers), texts),
    ]


def as_json(machine: _measure.Machine, sections: list[Section]) -> str:
    """All figures, for programs."""
    entries: list[dict[str, Any]] = [
        {
            "section": section.title,
            **dataclasses.asdict(figure),
            "median_s": figure.median_s,
            "ratios": figure.ratios,
            "verdict": figure.verdict,
        }
        for section in sections
        for figure in section.figures
    ]
    return json.dumps({"machine": dataclasses.asdict(machine), "figures": entries}, indent=2)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jit", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer processes per figure")
    parser.add_argument("--deepspeed-python", help="interpreter that has deepspeed (default: this one, or a made one)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/internals")
    return _measure.parse_with_peers(parser, PEERS)


def main() -> None:
    arguments = parse_arguments()
    machine = _measure.describe_machine()
    with tempfile.TemporaryDirectory(prefix="accel-ops-benchmark-", ignore_cleanup_errors=True) as directory:
        sections = measure(arguments, Path(directory))
    if arguments.json:
        print(as_json(machine, sections))
    else:
        for section in sections:
            _measure.console.print(_measure.table(section.title, section.columns, section.rows))
        _measure.console.print(str(machine))
    if arguments.write:
        tables = [f"### {part.title}\n\n{_measure.markdown(part.columns, part.rows)}" for part in sections]
        _measure.write_results("jit", "\n".join([f"{machine}\n", *tables]))


if __name__ == "__main__":
    main()
