"""Builds and calls each example: ``python -m examples.embedding [NAME ...] [--cache DIR]``."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

# Each with the packages that it needs.
EXAMPLES = {"c_library": "", "nanobind_module": "nanobind", "tvm_ffi_op": "apache-tvm-ffi numpy"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.embedding")
    parser.add_argument("names", nargs="*", default=[*EXAMPLES], metavar="NAME", help=", ".join(EXAMPLES))
    parser.add_argument("--cache", type=Path, help="the cache's directory")
    options = parser.parse_args()
    if unknown := set(options.names) - EXAMPLES.keys():
        parser.error(f"unknown names: {', '.join(unknown)}")
    for name in options.names:
        try:
            example = importlib.import_module(f"{__package__}.{name}")
        except ModuleNotFoundError as error:
            print(f"{name}: skipped, because {error.name} is not installed: pip install {EXAMPLES[name]}")
            continue
        library = example.built(options.cache)
        state = "cached" if library.is_cached else f"built, because {'; '.join(library.reasons)}"
        print(f"{name}: {example.result(library)} ({state})")


if __name__ == "__main__":
    main()
