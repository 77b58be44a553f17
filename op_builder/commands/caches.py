"""``accel-ops caches``: the caches of JIT compilers on this machine, and the variables that move them. Reads only."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from op_builder import env
from op_builder.cache.eviction import is_on_network
from op_builder.command_line import run_main
from op_builder.errors import AccelError
from op_builder.messages import size_text


class JitCache(NamedTuple):
    """A cache of a JIT compiler.

    Attributes:
        name: whose it is.
        variable: names its directory, or the directory that contains it.
        default: without the variable. ``{cache}`` is ``$XDG_CACHE_HOME`` or ``~/.cache``,
            ``{triton}`` is ``$TRITON_HOME`` or ``~``.
        copied: what becomes of a copy in another directory, or after a move.
        is_tested: whether it was tried with ``accel-ops run --compiles``; else its documentation says so.
        below: the cache, below the directory that the variable names.
        must_exist: it is not used unless the directory exists.
    """

    name: str
    variable: str
    default: str
    copied: str = "not known"
    is_tested: bool = False
    below: str = ""
    must_exist: bool = False


# Tried: torch 2.13, apache-tvm-ffi 0.1.15, FlashInfer 0.7.4, SGLang 0.5.23, Triton 3.9, Numba 0.68, SYCL 2026.2 (CPU),
# ccache 4.7; the first two also by test_compiles.py.
CACHES = (
    JitCache("accel-ops", "ACCEL_CACHE_DIR", "{cache}/accel-ops", "hits", True),
    JitCache("Inductor", "TORCHINDUCTOR_CACHE_DIR", "{tmp}/torchinductor_{user}", "hits, but see below", True),
    JitCache("cpp_extension", "TORCH_EXTENSIONS_DIR", "{cache}/torch_extensions", "hits if file times are kept", True),
    JitCache("tvm-ffi", "TVM_FFI_CACHE_DIR", "{home}/.cache/tvm-ffi", "compiles again", True),
    JitCache(
        "Triton", "TRITON_CACHE_DIR", "{triton}/.triton/cache", "hits in the old place; moved: compiles again", True
    ),
    JitCache("Numba", "NUMBA_CACHE_DIR", "{cache}/numba", "hits for the same sources at the same path", True),
    JitCache(
        "FlashInfer",
        "FLASHINFER_WORKSPACE_BASE",
        "{home}/.cache/flashinfer",
        "compiles again",
        True,
        below=".cache/flashinfer",
    ),
    JitCache("SGLang", "SGLANG_JIT_CACHE_DIR", "{home}/.cache/sglang/jit", "hits", True),
    JitCache("CuTe DSL", "CUTE_DSL_CACHE_DIR", "{tmp}/{user}/cutlass_python_cache"),
    JitCache("DeepGEMM", "DG_JIT_CACHE_DIR", "{home}/.deep_gemm"),
    JitCache("TileLang", "TILELANG_CACHE_DIR", "{home}/.tilelang/cache"),
    JitCache("vLLM", "VLLM_CACHE_ROOT", "{cache}/vllm", "hits"),
    JitCache("CuPy", "CUPY_CACHE_DIR", "{home}/.cupy/kernel_cache"),
    JitCache("torch's NVRTC", "PYTORCH_KERNEL_CACHE_PATH", "{cache}/torch/kernels", must_exist=True),
    JitCache("CUDA driver", "CUDA_CACHE_PATH", "{home}/.nv/ComputeCache", "hits until the driver is upgraded"),
    JitCache("ROCm comgr", "AMD_COMGR_CACHE_DIR", "{cache}/comgr"),
    JitCache("SYCL", "SYCL_CACHE_DIR", "{cache}/libsycl_cache", "hits for equal devices and drivers", True),
    JitCache("Intel GPU driver", "NEO_CACHE_DIR", "{cache}/neo_compiler_cache", must_exist=True),
    JitCache("ccache", "CCACHE_DIR", "{cache}/ccache", "hits; across checkouts with CCACHE_BASEDIR", True),
)
_NOTE = (
    "Inductor keeps precompiled headers in its default directory, whatever the variable says, and compiles them again "
    "if they are not there: set TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0, or TMPDIR. "
    "Without TRITON_CACHE_DIR, Inductor keeps Triton's kernels in its own directory. "
    "Numba's default is __pycache__ next to each source; this directory is for sources in a read-only one. "
    "'*': tried by accel-ops. 'not known': neither tried nor documented. The others: what their documentation says."
)


class Found(NamedTuple):
    """A cache here: where it is or would be, whether it exists, and what is in it."""

    cache: JitCache
    directory: Path | None
    is_set: bool
    size_bytes: int
    files: int
    on_network: bool | None


def find_caches() -> list[Found]:
    """All rows of CACHES, for this user and environment."""
    return [_found(cache) for cache in CACHES]


def variables(root: Path) -> dict[str, str]:
    """The variables that put all caches below one directory."""
    moved = {cache.variable: str(_below(root, cache)) for cache in CACHES}
    # Inductor's precompiled headers would stay in torchinductor_USER of TMPDIR.
    return {**moved, "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}


def _below(root: Path, cache: JitCache) -> Path:
    return root / cache.name.lower().replace(" ", "_").replace("'", "")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.commands.caches") -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="List the caches of JIT compilers that exist for this user and environment, with the variables "
        "that move them, or print the variables that put all of them below one directory. Changes nothing.",
        usage=f"{prog} [-h] [--json] [env ROOT]",
        epilog='Examples: accel-ops caches --json, and in a shell: eval "$(accel-ops caches env /data/jit)".',
    )
    parser.add_argument("--json", action="store_true", help="print JSON, of all known caches")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog=prog)
    printed = commands.add_parser(
        "env",
        help="print the variables that put all caches below ROOT",
        epilog=f"Example: '{prog} env /data/jit'.",
    )
    printed.add_argument("root", metavar="ROOT", type=_root, help="a directory; the printed lines create it")
    printed.add_argument("--json", action="store_true", help="print them as JSON")
    options = parser.parse_args(arguments)
    if options.command == "env":
        values = variables(options.root)
        needed = [shlex.quote(str(_below(options.root, cache))) for cache in CACHES if cache.must_exist]
        lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
        lines.insert(-1, "# So that a copy of Inductor's cache needs no header of its default directory:")
        lines += ["# These are used only if they exist:", f"mkdir -p {' '.join(needed)}"]
        print(json.dumps(values, indent=1) if options.json else "\n".join(lines))
        return 0
    found = find_caches()
    if options.json:
        print(json.dumps([_row(each) for each in found], indent=1))
    else:
        _print(found)
    return 0


def _root(text: str) -> Path:
    path = Path(os.path.abspath(text))
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; name a directory")
    if os.path.lexists(path) and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a directory; name one, or a path that does not exist")
    return path


def _found(cache: JitCache) -> Found:
    value = env.of_another_program(cache.variable)
    try:
        directory = Path(os.path.abspath(value), cache.below) if value else _default(cache.default)
    except (AccelError, KeyError, OSError, RuntimeError, ImportError):  # this user has no name or no home directory
        directory = None
    if directory is None or not directory.is_dir():
        return Found(cache, directory, bool(value), 0, 0, None)
    sizes = list(_file_sizes(directory))
    return Found(cache, directory, bool(value), sum(sizes), len(sizes), is_on_network(directory))


def _default(template: str) -> Path:
    values: dict[str, Callable[[], object]] = {
        "home": Path.home,
        "triton": lambda: env.of_another_program("TRITON_HOME") or Path.home(),
        "cache": lambda: env.XDG_CACHE_HOME.get() or Path.home() / ".cache",
        "tmp": tempfile.gettempdir,
        "user": getpass.getuser,
    }
    needed = {name: value() for name, value in values.items() if f"{{{name}}}" in template}
    return Path(template.format(**needed))


def _file_sizes(directory: Path) -> Iterator[int]:
    for parent, _, names in os.walk(directory):  # skips what cannot be read
        for name in names:
            try:
                yield os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # removed meanwhile
                continue


def _row(found: Found) -> dict[str, Any]:
    return {
        "name": found.cache.name,
        "directory": None if found.directory is None else str(found.directory),
        "exists": found.on_network is not None,
        "size_bytes": found.size_bytes,
        "files": found.files,
        "on_network": found.on_network,
        "variable": found.cache.variable,
        "is_set": found.is_set,
        "copied": found.cache.copied,
        "is_tested": found.cache.is_tested,
    }


def _print(found: Sequence[Found]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("cache", "directory", "size", "files", "moved by", "copied or moved"):
        table.add_column(title, justify="right" if title in ("size", "files") else "left", overflow="fold")
    for each in found:
        if each.on_network is None:
            continue
        place = f"{each.directory}{' (network)' if each.on_network else ''}"
        copied = f"{each.cache.copied}{'*' if each.cache.is_tested else ''}"
        variable = f"{each.cache.variable}{' (set)' if each.is_set else ''}"
        row = [each.cache.name, place, size_text(each.size_bytes), f"{each.files:,}", variable, copied]
        table.add_row(*map(Text, row))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    absent = ", ".join(each.cache.name for each in found if each.on_network is None)
    console.print(Text(f"{f'Not found: {absent}. ' if absent else ''}{_NOTE}"))


if __name__ == "__main__":
    run_main(main)
