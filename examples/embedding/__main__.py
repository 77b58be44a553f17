"""Builds and calls each example: ``python -m examples.embedding [CACHE_ROOT]``; ``--only NAME`` for one."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

EXAMPLES = ("c_library", "nanobind_module", "tvm_ffi_op")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.embedding")
    parser.add_argument("names", nargs="*", default=list(EXAMPLES), metavar="NAME", help=", ".join(EXAMPLES))
    parser.add_argument("--cache", type=Path, help="the cache's directory")
    options = parser.parse_args()
    for name in options.names:
        example = importlib.import_module(f"{__package__}.{name}")
        library = example.built(options.cache)
        state = "cached" if library.is_cached else f"built, because {'; '.join(library.reasons)}"
        print(f"{name}: {example.result(library)} ({state})")


if __name__ == "__main__":
    main()
