"""Write the lists of exported symbols that ``accel-ops doctor FILE`` compares a file with.

    python build_tools/torch_symbols.py 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0 --python ~/.pyenv/versions/3.1?.*

torch's names come from the x86-64 Linux wheels of pip's index, PyPI. These are CUDA builds: the C++ names of a CPU
build are among them, except for those of libc10_cuda and libtorch_cuda, which a file on them names as libraries. Wheels
of other architectures lack only a few kernels' names. A wheel has up to 900 MB. Python's names come from libpython. The
same input gives the same file.
"""

from __future__ import annotations

import argparse
import base64
import json
import lzma
import subprocess
import sys
import tempfile
import zipfile
import zlib
from array import array
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from op_builder.report.known_symbols import DATA, LIBRARIES  # noqa: E402
from op_builder.system.elf import read_library  # noqa: E402


def names_of_torch(release: str) -> tuple[dict[str, frozenset[str]], set[str]]:
    """The names that each of the wheel's libraries defines, and the libraries that they need."""
    # "===" does not match builds with a local version, such as 2.13.0+cpu.
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    platform = ["--python-version", "3.12", "--platform", "manylinux_2_28_x86_64"]
    defined = {}
    needed: set[str] = set()
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", *options, *platform, "--dest", place, f"torch==={release}"]
        subprocess.run(command, check=True)
        with zipfile.ZipFile(next(Path(place).iterdir())) as archive:
            for library in LIBRARIES:
                elf = read_library(Path(archive.extract(f"torch/lib/{library}", place)))
                defined[library] = elf.defined
                needed |= set(elf.needed)
    return defined, {name for name in needed if not name.startswith(("libtorch", "libc10", "libshm"))}


def names_of_python(prefix: Path) -> tuple[str, set[str]]:
    library = max((prefix / "lib").glob("libpython3.*.so.1.0"))
    names = {name for name in read_library(library).defined if name.lstrip("_").startswith("Py")}
    return library.name[9:].removesuffix(".so.1.0"), names


def packed(masks: dict[str, int]) -> str:
    """Sorted CRC-32 sums of the names with each mask, as differences in planes of bytes, which compress best."""
    groups: dict[int, set[int]] = defaultdict(set)
    for name, mask in masks.items():
        groups[mask].add(zlib.crc32(name.encode()))
    content = bytearray()
    for mask, sums in sorted(groups.items()):
        ordered = sorted(sums)
        steps = array("I", [here - before for before, here in zip([0, *ordered], ordered, strict=False)]).tobytes()
        content += array("I", [mask, len(ordered)]).tobytes() + b"".join(steps[plane::4] for plane in range(4))
    return base64.b85encode(lzma.compress(bytes(content), preset=9)).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("torch", nargs="+", help="releases of torch, in order")
    parser.add_argument(
        "--python", nargs="+", type=Path, default=[], help="prefixes of shared CPython builds, in order"
    )
    options = parser.parse_args()
    torch, needed = {}, {}
    in_library: dict[str, set[str]] = {library: set() for library in LIBRARIES}
    for release in options.torch:
        defined, needed[release] = names_of_torch(release)
        torch[release] = set().union(*defined.values())
        for library, names in defined.items():
            in_library[library] |= names
        print(release, len(torch[release]))
    python = dict(map(names_of_python, options.python))
    lists = [*torch.values(), *python.values(), *in_library.values()]
    masks: dict[str, int] = defaultdict(int)
    for at, names in enumerate(lists):
        for name in names:
            masks[name] |= 1 << at
    common = set.intersection(*needed.values())
    data = {
        "torch": options.torch,
        "python": list(python),
        "cuda_libraries": {release: sorted(names - common) for release, names in needed.items()},
        "symbols": packed(masks),
    }
    DATA.write_text(json.dumps(data, indent=0) + "\n")
    print(f"{DATA.name}: {len(masks)} names, {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()
