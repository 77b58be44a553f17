"""Write the lists of exported symbols that ``accel-ops doctor FILE`` compares a file with.

    python build_tools/torch_symbols.py 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0 --python ~/.pyenv/versions/3.1?.*

torch's names come from the x86-64 Linux wheels of pip's index, PyPI. These are CUDA builds: the C++ names of a CPU
build are among them, except for those of libc10_cuda and libtorch_cuda, which a file on them names as libraries. Wheels
of other architectures lack only a few kernels' names. Of each wheel only the five libraries are downloaded, about
250 MB. Python's names come from libpython. The same input gives the same file.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import lzma
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from array import array
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from op_builder.report.known_symbols import DATA, LIBRARIES  # noqa: E402
from op_builder.system.elf import read_elf  # noqa: E402

BLOCK_BYTES = 32 << 20


class RemoteFile(io.RawIOBase):
    """A file on a server that answers requests for ranges."""

    def __init__(self, url: str, size_bytes: int) -> None:
        self.url, self.size_bytes, self.position = url, size_bytes, 0
        self.start, self.block = 0, b""

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + (0, self.position, self.size_bytes)[whence]
        return self.position

    def tell(self) -> int:
        return self.position

    def read(self, size: int = -1) -> bytes:
        wanted = self.size_bytes - self.position if size < 0 else min(size, self.size_bytes - self.position)
        if not self.start <= self.position <= self.position + wanted <= self.start + len(self.block):
            last = min(self.position + max(wanted, BLOCK_BYTES), self.size_bytes) - 1
            request = urllib.request.Request(self.url, headers={"Range": f"bytes={self.position}-{last}"})
            with urllib.request.urlopen(request) as answer:
                self.start, self.block = self.position, answer.read()
        begin = self.position - self.start
        self.position += wanted
        return self.block[begin : begin + wanted]


def names_of_torch(release: str) -> tuple[dict[str, frozenset[str]], set[str]]:
    """The names that each of the wheel's libraries defines, and the libraries that they need."""
    # "===" does not match builds with a local version, such as 2.13.0+cpu.
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", "-"]
    platform = ["--python-version", "3.12", "--platform", "manylinux_2_28_x86_64", "--target", "unused"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, *platform, f"torch==={release}"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    url = report["install"][0]["download_info"]["url"]
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
        size_bytes = int(answer.headers["Content-Length"])
    defined = {}
    needed: set[str] = set()
    with zipfile.ZipFile(RemoteFile(url, size_bytes)) as archive, tempfile.TemporaryDirectory() as place:
        for library in LIBRARIES:
            with open(archive.extract(f"torch/lib/{library}", place), "rb") as file:
                elf = read_elf(file)
            defined[library] = elf.defined
            needed |= set(elf.needed)
    return defined, {name for name in needed if not name.startswith(("libtorch", "libc10", "libshm"))}


def names_of_python(prefix: Path) -> tuple[str, set[str]]:
    library = max((prefix / "lib").glob("libpython3.*.so.1.0"))
    with library.open("rb") as file:
        return library.name[9:].removesuffix(".so.1.0"), {
            name for name in read_elf(file).defined if name.lstrip("_").startswith("Py")
        }


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
