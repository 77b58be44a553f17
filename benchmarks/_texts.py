"""Small texts compiled and loaded: ours, torch's ``load_inline`` and apache-tvm-ffi's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import _measure
from benchmarks._figures import Counts, Figure
from benchmarks._processes import PROGRAMS, ROOT, Contender, make_read_only


def contender(name: str, python: Path | None = None) -> Contender:
    """Loads a text with ``name``; see ``programs/load_text.py``."""
    variable = {"torch": "TORCH_EXTENSIONS_DIR", "tvm-ffi": "TVM_FFI_CACHE_DIR"}.get(name, "ACCEL_CACHE_DIR")
    return Contender(name, python or Path(sys.executable), PROGRAMS / "load_text.py", variable)


def measure_texts(peers: dict[str, Contender], counts: Counts, directory: Path) -> list[Figure]:
    """Cold and warm loads of texts.

    Args:
        peers: of ``torch`` and ``tvm-ffi``, those that take part.
    """
    extension = contender("extension")
    contenders = {"stable": contender("stable"), "extension": extension, **peers}
    caches = {name: directory / f"text-{name}" for name in contenders}
    cold: dict[str, list[float]] = {name: [] for name in contenders}
    first: dict[str, float] = {}
    with _measure.make_progress() as progress:
        task = progress.add_task("first text", total=len(contenders))
        for name, one in contenders.items():
            progress.update(task, description=f"first text, {name}")
            first[name] = one.load(caches[name], name, "first")["load_s"]
            progress.advance(task)
        task = progress.add_task("precompiling the header", total=None)
        header_s = precompile(caches["extension"])
        progress.remove_task(task)
        task = progress.add_task("other texts", total=counts.cold * len(contenders))
        for turn in range(counts.cold):
            for name, one in contenders.items():
                progress.update(task, description=f"another text, {name}")
                cold[name].append(one.load(caches[name], name, f"text{turn}")["load_s"])
                progress.advance(task)
        warm: dict[str, list[float]] = {name: [] for name in contenders}
        bare: list[float] = []
        read_only = make_read_only_without_header(caches["extension"], directory / "text-read-only")
        task = progress.add_task("warm text", total=counts.warm)
        for turn in range(counts.warm):
            for name, one in contenders.items():
                if name in ("stable", "extension") or turn < counts.warm_peer:
                    warm[name].append(one.load(caches[name], name, "text0")["load_s"])
            bare.append(extension.load(read_only, "extension", "text0", PATH="/nonexistent")["load_s"])
            progress.advance(task)
    torch_peer = ["torch"] if "torch" in peers else []
    tvm_peer = ["tvm-ffi"] if "tvm-ffi" in peers else []

    def of(table: dict[str, list[float]], names: list[str]) -> dict[str, list[float]]:
        return {name: table[name] for name in names}

    return [
        Figure(
            "torch/extension.h, the first text",
            [first["extension"]],
            peers={name: [first[name]] for name in torch_peer},
        ),
        Figure("... its header precompiled (--precompile)", [header_s]),
        Figure(
            "torch/extension.h, further texts, header precompiled",
            cold["extension"],
            peers=of(cold, torch_peer),
            least_ratio=2.0,
        ),
        Figure("torch/extension.h, warm", warm["extension"], limit_s=0.040, peers=of(warm, torch_peer)),
        Figure("the same, cache read-only, no tool on PATH", bare, limit_s=0.040),
        Figure("Stable ABI (ours) and tvm-ffi's own, cold", cold["stable"], peers=of(cold, tvm_peer)),
        Figure("Stable ABI (ours) and tvm-ffi's own, warm", warm["stable"], peers=of(warm, tvm_peer)),
    ]


def precompile(cache: Path) -> float:
    """Seconds that precompiling ``torch/extension.h`` into a cache takes."""
    environment = {**os.environ, "ACCEL_CACHE_DIR": str(cache)}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "op_builder.build", "--precompile"], cwd=ROOT, env=environment, check=True)
    return time.perf_counter() - started


def make_read_only_without_header(source: Path, target: Path) -> Path:
    """A read-only copy of a cache; the header, of no use there, is left out."""
    (target / "ops").mkdir(parents=True)
    for op in (source / "ops").iterdir():
        if op.name != "torch_extension":
            make_read_only(op, target / "ops" / op.name)
    target.chmod(0o555)
    return target
