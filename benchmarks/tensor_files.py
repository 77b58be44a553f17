"""TensorStore and load_safetensors against the package safetensors: many small tensors and few large ones.

All values are used once, by sums, because the package maps files and so leaves the reading to the first use. "Not
cached" drops the files from the page cache before each turn; "cached" reads them before. Before each load as much
memory is touched and freed: the host of a virtual machine takes back what is free, and returns it slowly. Saving ends
when everything is on the disk. A figure is the median of a contender's turns.

fastsafetensors takes part if it is installed. The prefetch() of safetensors 0.9.0rc1 is not measured: it loads to CUDA
devices only, and refuses the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks import _measure
from benchmarks._measure import Table, at_least, duration, interleave, requirement_table
from op_builder.ops import TensorStore, load_safetensors
from op_builder.ops.io.tensor_store_memory import new_memory

MIB = 1 << 20
CASES = {"1 GiB in 16 tensors": (16, 64 * MIB), "5,000 tensors of 16 KiB": (5000, 16 << 10)}
QUICK_CASES = {"128 MiB in 16 tensors": (16, 8 * MIB), "500 tensors of 16 KiB": (500, 16 << 10)}

OURS = ("TensorStore", "load_safetensors")

Load = Callable[[], Iterable[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Result:
    """One case; ``seconds`` are the turns of each contender, by name."""

    case: str
    action: str
    size_bytes: int
    seconds: Mapping[str, list[float]]

    def median(self, contender: str) -> float:
        return statistics.median(self.seconds[contender])

    @property
    def rows(self) -> list[list[str]]:
        return [
            [
                self.case,
                f"{self.action}: {contender}",
                duration(self.median(contender)),
                duration(min(seconds)),
                f"{self.size_bytes / self.median(contender) / 1e9:.2f}",
            ]
            for contender, seconds in self.seconds.items()
        ]

    @property
    def ratio(self) -> float:
        """The time of the fastest other contender, in units of our fastest."""
        ours = [name for name in self.seconds if name.startswith(OURS)]
        return min(self.median(name) for name in self.seconds if name not in ours) / min(map(self.median, ours))


COLUMNS = ("case", "contender", "median", "best", "GB/s")


def drop_from_cache(files: Iterable[Path]) -> None:
    """Remove files, which are on the disk, from the page cache."""
    for path in files:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_into_cache(files: Iterable[Path]) -> None:
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.read(MIB):
                pass


def timed_load(load: Load, prepare: Callable[[Iterable[Path]], None], files: list[Path], size_bytes: int) -> float:
    """The seconds of one load, and of one use of the values."""
    prepare(files)
    torch.frombuffer(new_memory(size_bytes), dtype=torch.uint8).fill_(1)
    started = time.perf_counter()
    for tensor in load():
        tensor.sum()
    return time.perf_counter() - started


def timed_save(save: Callable[[], None]) -> float:
    """The seconds until everything is on the disk."""
    os.sync()
    started = time.perf_counter()
    save()
    os.sync()
    return time.perf_counter() - started


def save_in_store(store: TensorStore, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        store.save_async(name, tensor)
    store.wait()


def load_from_store(store: TensorStore, names: Iterable[str]) -> Iterable[torch.Tensor]:
    return [loading.result() for loading in [store.load_async(name) for name in names]]


def load_files(files: Iterable[Path]) -> Iterable[torch.Tensor]:
    return [tensor for path in files for tensor in load_file(path).values()]


def fast_load(file: Path) -> Iterable[torch.Tensor]:
    """All tensors by fastsafetensors, in host memory."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True)
    loader.add_filenames({0: [str(file)]})
    buffer = loader.copy_files_to_device()
    return [buffer.get_tensor(name) for name in loader.get_keys()]


def measure(case: str, count: int, size_bytes: int, directory: Path, rounds: int) -> list[Result]:
    """Save and load ``count`` tensors."""
    tensors = {f"tensor-{number}": torch.rand(size_bytes // 4) for number in range(count)}
    names, all_bytes = list(tensors), count * size_bytes
    file = directory / "all.safetensors"
    store = TensorStore(directory / "store", is_durable=False)
    saves = {
        "TensorStore": partial(timed_save, partial(save_in_store, store, tensors)),
        "save_file": partial(timed_save, partial(save_file, tensors, file)),
    }
    results = [Result(case, "save", all_bytes, interleave(saves, rounds, f"{case}, save"))]
    stored = [store.directory / f"{name}.safetensors" for name in names]
    one_file: dict[str, Load] = {
        "load_safetensors": lambda: load_safetensors(file).values(),
        "load_safetensors, mapped": lambda: load_safetensors(file, is_mapped=True).values(),
        "load_file": lambda: load_file(file).values(),
        "load_file, pread": lambda: load_file(file, backend="pread").values(),
    }
    if importlib.util.find_spec("fastsafetensors") is not None:
        one_file["fastsafetensors"] = lambda: fast_load(file)
    many_files: dict[str, Load] = {
        "TensorStore": lambda: load_from_store(store, names),
        "load_file": lambda: load_files(stored),
    }
    for what, loads, files in (("one file", one_file, [file]), ("a file each", many_files, stored)):
        for state, prepare in (("not cached", drop_from_cache), ("cached", read_into_cache)):
            runs = {name: partial(timed_load, load, prepare, files, all_bytes) for name, load in loads.items()}
            action = f"load, {what}, {state}"
            results.append(Result(case, action, all_bytes, interleave(runs, rounds, f"{case}, {action}")))
    return results


def main() -> None:
    parser = _measure.make_parser("tensor_files", __doc__, "an eighth of the bytes, three turns")
    parser.add_argument(
        "--directory", type=Path, help="where the files go, on the disk to test (default: the temporary directory)"
    )
    arguments: argparse.Namespace = parser.parse_args()
    machine = _measure.describe_machine()
    results = []
    for case, (count, size_bytes) in (QUICK_CASES if arguments.quick else CASES).items():
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            results += measure(case, count, size_bytes, Path(directory), 3 if arguments.quick else 7)
    limits = [at_least(f"{one.case}, {one.action}: safetensors' time", one.ratio, 1.0, "x") for one in results]
    tables = [
        Table("Tensors in safetensors files", COLUMNS, [row for one in results for row in one.rows]),
        requirement_table(limits),
    ]
    _measure.report("tensor_files", arguments, machine, tables, results)


if __name__ == "__main__":
    main()
