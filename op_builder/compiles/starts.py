"""Who asks for a compiler: what this Python process notes in the ledger when it starts a program."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from op_builder import env
from op_builder.errors import CompilerRefused
from op_builder.system import ledger

RECORDER = "recorder.so"  # next to the ledger: the library that LD_PRELOAD loads into children
NO_CACHE = "no cache"  # the program itself starts the compiler

# The cache whose module's frame is nearest to the start.
_CACHES = {
    "torch._inductor": "Inductor",
    "torch.utils.cpp_extension": "cpp_extension",
    "triton": "Triton",
    "tvm_ffi": "tvm-ffi",
    "op_builder": "accel-ops",
    "flashinfer": "FlashInfer",
    "sglang": "SGLang",
    "deep_gemm": "DeepGEMM",
    "tilelang": "TileLang",
    "numba": "Numba",
    "cupy": "CuPy",
    "pyximport": "pyximport",
    "setuptools": "setuptools",
}
_STANDARD_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PROGRAM_TEXTS = ("<string>", "<stdin>", "<ipython", "<python")
_MOST_FRAMES = 100
_MOST_CHARACTERS = 300


class Asker(NamedTuple):
    """Who asked: the cache, the nearest frame of its library, the nearest frame of the program, and all frames."""

    cache: str
    library: str
    program: str
    stack: str


class _Frame(NamedTuple):
    module: str
    file: str
    is_program: bool
    text: str

    def is_in(self, package: str) -> bool:
        return self.module == package or self.module.startswith(f"{package}.")


def preload() -> None:
    """Let children load the recorder, if there is a ledger."""
    kept = ledger.mode_and_file()
    if kept is not None:
        env.set_for_libraries(preloading(kept[1]))


def preloading(file: str) -> dict[str, str | None]:
    """The variables by which the system loads the recorder of a ledger into children, if it was built."""
    path = os.path.realpath(os.path.join(os.path.dirname(file), RECORDER))
    preloaded = [name for name in (env.LD_PRELOAD.raw() or "").split(":") if name and name != path]
    return {env.LD_PRELOAD.name: ":".join([*preloaded, path])} if os.path.exists(path) else {}


def note_start(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
    """Note a program's start, which Python audits in ``frame``, if there is a ledger.

    Raises:
        CompilerRefused: the ledger's mode is ``raise``, and a compiler is about to start.
    """
    kept = ledger.mode_and_file()
    if kept is None:
        return
    if event == "os.posix_spawn" and frame.f_globals.get("__name__") == "subprocess":
        return  # it was noted as subprocess.Popen
    try:
        file, words = _COMMANDS[event](arguments)
    except (TypeError, ValueError):  # the call itself will fail, or starts an open file
        return
    if not os.access(file, os.X_OK) or os.path.isdir(file):  # os.execvp() tries each directory of PATH
        return
    from op_builder.compiles.compilers import compiles, is_compiler

    verdict = ""
    file = os.path.realpath(file)
    if is_compiler(file):
        verdict = "refused" if kept[0] == "raise" and compiles(words) else "compiler"
    asker = _asker(frame)
    ledger.append("ask", *asker, verdict, file, *(words if verdict else ledger.shortened(words)))
    if verdict == "refused":
        who = "the program" if asker.cache == NO_CACHE else asker.cache
        raise CompilerRefused(
            f"No compiler may start here, and {who} starts one: {' '.join(words)[:_MOST_CHARACTERS]}\n"
            f"  Started by {asker.program or asker.library}.",
            ledger.REFUSED_REMEDY,
        )


def _popen(arguments: tuple[Any, ...]) -> tuple[str, list[str]]:
    executable, words, cwd, environment = arguments
    if cwd is not None and not os.path.isdir(cwd):
        raise ValueError(cwd)
    return _resolved(executable, cwd, environment), _texts(words)


def _spawned(arguments: tuple[Any, ...]) -> tuple[str, list[str]]:
    path, words, environment = arguments
    return _resolved(path, None, environment), _texts(words)


def _system(arguments: tuple[Any, ...]) -> tuple[str, list[str]]:
    return "/bin/sh", ["sh", "-c", *_texts(arguments)]


_COMMANDS: dict[str, Callable[[tuple[Any, ...]], tuple[str, list[str]]]] = {
    "subprocess.Popen": _popen,
    "os.posix_spawn": _spawned,
    "os.exec": _spawned,
    "os.system": _system,
}


def _texts(words: Any) -> list[str]:
    words = [words] if isinstance(words, str | bytes | os.PathLike) else words
    return [os.fsdecode(word) for word in words]


def _resolved(program: Any, cwd: Any, environment: Any) -> str:
    """The file of a program as the system will find it."""
    name = os.fsdecode(program)
    if os.sep in name:
        return os.path.join(os.fsdecode(cwd), name) if cwd is not None else name
    for directory in os.get_exec_path(environment or None):
        path = os.path.join(directory, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return name


def _asker(frame: FrameType | None) -> Asker:
    frames = list(_frames(frame))
    program = next((each.text for each in frames if each.is_program), "")
    called = list(itertools.takewhile(lambda each: not each.is_program, frames))  # by the program
    found = next(((name, known) for each in called for name, known in _CACHES.items() if each.is_in(name)), None)
    if found is not None:
        name, cache = found
        inside = [each for each in called if each.is_in(name)]
        # The file that runs commands for all of the cache says less than the one that calls it.
        library = next((each for each in inside if each.file != inside[0].file), inside[0]).text
    else:
        nearest = next((each for each in called if not each.file.startswith(_STANDARD_LIBRARY)), None)
        cache, library = (nearest.module.partition(".")[0], nearest.text) if nearest is not None else (NO_CACHE, "")
    threading = sys.modules.get("threading")
    if not program and threading is not None:  # a thread of the library, say: what the main thread runs meanwhile
        main = sys._current_frames().get(threading.main_thread().ident)
        program = next((each.text for each in _frames(main) if each.is_program), "")
    return Asker(cache, library, program, "\n".join(each.text for each in reversed(frames)))


def _frames(frame: FrameType | None) -> Iterator[_Frame]:
    """Those from ``frame`` on outwards."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        installed = max(file.rfind(part) + len(part) if part in file else 0 for part in _INSTALLED)
        is_generated = file.startswith("<") and not file.startswith(_PROGRAM_TEXTS)
        is_library = bool(installed) or file.startswith(_STANDARD_LIBRARY) or is_generated
        is_program = not is_library and module.partition(".")[0] not in ("torch", "triton", "op_builder")
        yield _Frame(module, file, is_program, f"{file[installed:]}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back


def listen(knobs: ModuleType) -> None:
    """Set Triton's listener, which it calls after each compilation; one that is there already is called, too."""
    before = knobs.compilation.listener

    def listener(*, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        if before is not None:
            before(src=src, metadata=metadata, metadata_group=metadata_group, times=times, cache_hit=cache_hit)
        kept = ledger.mode_and_file()
        if cache_hit or kept is None:
            return
        name = str(metadata.get("name", "") if isinstance(metadata, dict) else getattr(metadata, "name", ""))
        asker = _asker(sys._getframe(1))
        verdict = "refused" if kept[0] == "raise" else "compiler"
        ledger.append("kernel", *asker, verdict, "", name or str(src), int(times.total))
        if verdict == "refused":
            raise CompilerRefused(
                f"Nothing may compile here, and Triton has compiled {name}.\n  Started by {asker.program}.",
                ledger.REFUSED_REMEDY,
            )

    knobs.compilation.listener = listener
