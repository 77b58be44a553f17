"""The only module that reads the environment.

Each variable is declared once, as a :class:`Variable` in :data:`VARIABLES`, with its type, its default and one line of
documentation. ``python -m op_builder.env`` generates ``docs/environment.md`` from that table. No other module of
``accelerator`` and ``op_builder`` uses ``os.environ``.

A value is read each time it is requested, so that a test or a notebook can change it. An empty or blank value counts as
unset. Parsers raise a ValueError with what they expect, as the end of a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from op_builder.errors import EnvironmentValueError
from op_builder.messages import did_you_mean

T = TypeVar("T")

_TRUE = ("1", "true", "on")
_FALSE = ("0", "false", "off")
_LARGEST = 2**31 - 1  # a C int, which the programs and libraries that get the value also take


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("1 or 0")


def _parse_integer(text: str) -> int:
    try:
        value = int(text) if text.isascii() and "_" not in text else None
    except ValueError:
        value = None
    if value is None:
        raise ValueError("a whole number")
    if abs(value) > _LARGEST:
        raise ValueError(f"at most {_LARGEST}")
    return value


def _parse_count(text: str) -> int:
    value = _parse_integer(text)
    if value < 1:
        raise ValueError("a whole number of at least 1")
    return value


def _parse_port(text: str) -> int:
    value = _parse_integer(text)
    if not 0 <= value <= 65535:
        raise ValueError("a port, 0 to 65535")
    return value


class _OneOf:
    """A parser for one of these words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __str__(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"

    def __call__(self, text: str) -> str:
        if text not in self.words:
            raise ValueError(str(self))
        return text


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # the home directory of this user or of another one is unknown
        raise ValueError(f"a path; ~ has no meaning here ({error})") from error


def _parse_users(text: str) -> frozenset[int]:
    """User ids."""
    import pwd

    users = [user.strip() for user in text.split(",")]
    try:
        return frozenset(int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid for user in users)
    except KeyError as error:
        raise ValueError(f"users of this system ({error.args[0]})") from error


def _parse_command(text: str) -> tuple[str, ...]:
    """The words of a command, as a shell splits it."""
    import shlex

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ValueError(f"a command ({error})") from error
    if not words or not words[0].strip():
        raise ValueError("a command")
    return words


_TYPE_NAMES: dict[Callable[[str], object], str] = {
    _parse_flag: "0 or 1",
    _parse_count: "count >= 1",
    _parse_path: "path",
    _parse_users: "user names or ids",
    _parse_command: "command",
    _parse_port: "port",
    _parse_integer: "integer",
}


class Variable(Generic[T]):
    """One environment variable.

    Args:
        name: its name.
        parse: converts its text; raises a ValueError if it cannot.
        default: the result of :meth:`get` if the variable is unset.
        doc: one line of documentation.
        default_text: replaces ``default`` in the documentation if another module determines the default.
    """

    def __init__(
        self, name: str, parse: Callable[[str], T], default: T, doc: str, default_text: str | None = None
    ) -> None:
        self.name = name
        self.parse = parse
        self.default = default
        self.doc = doc
        self.default_text = default_text

    def get(self) -> T:
        """The parsed value, or the default if the variable is unset or blank.

        Raises:
            EnvironmentValueError: the text cannot be parsed.
        """
        text = self.raw()
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise EnvironmentValueError(self.name, text, str(error)) from None

    def raw(self) -> str | None:
        """The text, or None if the variable is unset or blank."""
        text = os.environ.get(self.name, "")
        return text if text.strip() else None

    def is_set(self) -> bool:
        """Whether the variable is set, perhaps to an empty text."""
        return self.name in os.environ

    @property
    def type_name(self) -> str:
        return str(self.parse) if isinstance(self.parse, _OneOf) else _TYPE_NAMES.get(self.parse, "text")


VARIABLES: list[Variable[Any]] = []


def _declare(
    name: str, parse: Callable[[str], T], default: T, doc: str, default_text: str | None = None
) -> Variable[T]:
    variable = Variable(name, parse, default, doc, default_text)
    VARIABLES.append(variable)
    return variable


def _optional(name: str, parse: Callable[[str], T], doc: str, default_text: str | None = None) -> Variable[T | None]:
    return _declare(name, parse, None, doc, default_text)


def _text(name: str, doc: str, default_text: str | None = None) -> Variable[str | None]:
    return _optional(name, str, doc, default_text)


# The device ------------------------------------------------------------------------------
ACCEL_ACCELERATOR = _text("ACCEL_ACCELERATOR", "Accelerator to use, by name, instead of detecting one.", "detected")
DS_ACCELERATOR = _text(
    "DS_ACCELERATOR", "The same as ACCEL_ACCELERATOR; an error if both are set and differ.", "detected"
)
LOCAL_SIZE = _optional(
    "LOCAL_SIZE", _parse_integer, "Ranks on this host, set by a launcher; the CPU device count when > 0."
)
LOCAL_RANK = _declare(
    "LOCAL_RANK", _parse_integer, 0, "Rank on this host, set by a launcher; the CPU's current device."
)
ACCEL_LAUNCH_ID = _text("ACCEL_LAUNCH_ID", "Set by accel-launch in its workers: which launch they belong to.")
DS_PIN_MEMORY_BACKEND = _declare(
    "DS_PIN_MEMORY_BACKEND",
    _OneOf("torch", "native"),
    "torch",
    "What allocates pinned memory: torch, or, with native, the op async_io.",
)
CUDA_VISIBLE_DEVICES = _text("CUDA_VISIBLE_DEVICES", "CUDA devices that this process may use.", "all")
CUDA_DEVICE_ORDER = _text(
    "CUDA_DEVICE_ORDER",
    "PCI_BUS_ID: CUDA and NVML number devices alike, so that NVML can report their memory.",
    "FASTEST_FIRST",
)
ASCEND_HOME_PATH = _optional(
    "ASCEND_HOME_PATH", _parse_path, "Ascend CANN installation whose version the report shows."
)

# Set by launchers; shm_comm uses them to find the other ranks without torch.distributed ---------
MASTER_ADDR = _text("MASTER_ADDR", "Host of the store that ranks connect to.")
MASTER_PORT = _optional("MASTER_PORT", _parse_port, "Port of the store at MASTER_ADDR.")
RANK = _optional("RANK", _parse_integer, "Global rank; rank 0 runs the store at MASTER_ADDR.")
TORCHELASTIC_USE_AGENT_STORE = _declare(
    "TORCHELASTIC_USE_AGENT_STORE", _parse_flag, False, "1: torch's launcher runs the store at MASTER_ADDR, not rank 0."
)
TORCHELASTIC_RESTART_COUNT = _declare(
    "TORCHELASTIC_RESTART_COUNT", _parse_integer, 0, "How often torch's launcher has restarted the ranks."
)

# Building --------------------------------------------------------------------------------
ACCEL_CACHE_DIR = _optional(
    "ACCEL_CACHE_DIR", _parse_path, "Directory of built ops; may be read-only.", "$XDG_CACHE_HOME/accel-ops"
)
XDG_CACHE_HOME = _optional("XDG_CACHE_HOME", _parse_path, "Base of the default cache directory.", "~/.cache")
ACCEL_CACHE_TRUST: Variable[frozenset[int]] = _declare(
    "ACCEL_CACHE_TRUST",
    _parse_users,
    frozenset(),
    "Users, separated by commas, whose files in the cache are used as yours and root's are: they can run code as you.",
    "none",
)
ACCEL_CACHE_MAX_MIB = _declare(
    "ACCEL_CACHE_MAX_MIB",
    _parse_count,
    4096,
    "Size in MiB above which the cache removes logs, objects, damaged entries and the least recently used ops.",
)
ACCEL_CPP_EXTENSION = _declare(
    "ACCEL_CPP_EXTENSION",
    _parse_flag,
    False,
    "1 builds what programs pass to torch.utils.cpp_extension.load and load_inline with the engine of accel-ops.",
)
ACCEL_COMPILES = _text(
    "ACCEL_COMPILES",
    "Internal: set by `accel-ops run` and op_builder.compiles: their mode, and their ledger's file.",
)
LD_PRELOAD = _text(
    "LD_PRELOAD", "Libraries that the system loads into each process; extended where ACCEL_COMPILES is set."
)
ACCEL_JIT = _declare(
    "ACCEL_JIT", _parse_flag, True, "0 forbids compiling when an op is loaded; only prebuilt and cached ops load."
)
ACCEL_MAX_JOBS = _optional("ACCEL_MAX_JOBS", _parse_count, "Maximum number of compiler jobs.", "from cores and memory")
MAX_JOBS = _optional("MAX_JOBS", _parse_count, "The same, if ACCEL_MAX_JOBS is unset.")
ACCEL_COMPILE_TIMEOUT_S = _declare("ACCEL_COMPILE_TIMEOUT_S", _parse_count, 3600, "Seconds after which a build fails.")
ACCEL_CPU_ISA = _text(
    "ACCEL_CPU_ISA",
    "Highest instruction set that CPU kernels use: baseline, avx2, avx512 or neon.",
    "best of the CPU",
)
AIO_ENGINES = ("io_uring", "libaio", "threads")
ACCEL_AIO_ENGINE = _optional(
    "ACCEL_AIO_ENGINE",
    _OneOf(*AIO_ENGINES),
    "The engine that async_io uses; an error if the kernel rejects it.",
    "the first of these that works",
)
ACCEL_BUILD_OPS = _declare("ACCEL_BUILD_OPS", _parse_flag, False, "1 builds every compatible op into the wheel.")
ACCEL_BUILD_TORCH = _optional(
    "ACCEL_BUILD_TORCH",
    _parse_path,
    "Python, or directory of installed packages, whose torch a prebuild uses.",
    "the target environment",
)
ACCEL_BUILD_TARGET = _text(
    "ACCEL_BUILD_TARGET",
    "Platform to build the wheel's ops for with the package ziglang: linux_x86_64, linux_aarch64 or macosx_arm64.",
    "this machine",
)
SOURCE_DATE_EPOCH = _optional(
    "SOURCE_DATE_EPOCH", _parse_count, "Seconds since 1970: the time that a reproducible wheel or sdist names.", "now"
)
ACCEL_BUILD_OP = _optional(
    "ACCEL_BUILD_<OP>",
    _parse_flag,
    "1 builds the op into the wheel or fails; 0 omits it: `ACCEL_BUILD_CPU_ADAM=1`.",
    "ACCEL_BUILD_OPS",
)
ACCEL_COMM_TIMEOUT_S = _declare(
    "ACCEL_COMM_TIMEOUT_S",
    _parse_count,
    300,
    "Seconds that a collective in shared memory waits for a running rank; a dead rank is detected at once.",
)
CXX = _optional(
    "CXX",
    _parse_command,
    "C++ compiler, with launchers and flags.",
    "g++, c++ or clang++ on PATH, or the package ziglang",
)
CUDA_HOME = _optional(
    "CUDA_HOME",
    _parse_path,
    "CUDA toolkit to compile with.",
    "the toolkit of nvcc on PATH, or of NVIDIA's wheels",
)
CUDA_PATH = _optional("CUDA_PATH", _parse_path, "The same, if CUDA_HOME is unset.")
TORCH_CUDA_ARCH_LIST = _text(
    "TORCH_CUDA_ARCH_LIST",
    "CUDA architectures to compile for, in torch's syntax: '8.0;9.0a+PTX', 'Ampere Hopper'.",
    "the visible devices, else a list the toolkit supports",
)
ACCEL_SYCL_TOOLCHAIN = _optional(
    "ACCEL_SYCL_TOOLCHAIN", _OneOf("sycl-rtc", "icpx", "ipex"), "Toolchain of SYCL ops.", "the first that works"
)
TORCH_XPU_ARCH_LIST = _text(
    "TORCH_XPU_ARCH_LIST",
    "Intel GPUs that icpx compiles SYCL ops for, in torch's syntax: 'pvc,bmg'; empty: none ahead of time.",
    "those that torch was built for",
)

# Other programs --------------------------------------------------------------------------
ACCEL_DEEPSPEED = _declare(
    "ACCEL_DEEPSPEED",
    _parse_flag,
    False,
    "1 lets DeepSpeed use this library, as `import op_builder.integrations.deepspeed` does.",
)

# Communication ---------------------------------------------------------------------------
ACCEL_HOST_ID = _text(
    "ACCEL_HOST_ID",
    "Name of this host for the distributed backend; ranks with the same name share memory.",
    "derived from boot, PID and network namespaces and user",
)
CCL_ROOT = _optional("CCL_ROOT", _parse_path, "oneCCL installation to use.", "Intel's wheels, else the system's")

# Read by oneCCL; set in this process when its op is opened, unless the user has set them -------------------
LD_LIBRARY_PATH = _text(
    "LD_LIBRARY_PATH", "Directories with libraries; extended for the child process that tests an op of oneCCL."
)
CCL_ATL_TRANSPORT = _text("CCL_ATL_TRANSPORT", "Transport of oneCCL: ofi or mpi.", "ofi")
CCL_OFI_LIBRARY_PATH = _text(
    "CCL_OFI_LIBRARY_PATH", "The libfabric that oneCCL opens.", "that of impi-rt, if installed"
)
CCL_LOG_LEVEL = _text("CCL_LOG_LEVEL", "Log level of oneCCL: error, warn, info, debug or trace.", "error")
FI_PROVIDER_PATH = _text("FI_PROVIDER_PATH", "Directory of libfabric's providers.", "next to libfabric")

# Read by the SYCL runtime; set in this process when an op opens it, unless the user has set them -----------
OCL_ICD_FILENAMES = _text(
    "OCL_ICD_FILENAMES", "OpenCL drivers for the SYCL runtime.", "that of intel-opencl-rt, if installed"
)
SYCL_CACHE_PERSISTENT = _text("SYCL_CACHE_PERSISTENT", "0 disables the cache of compiled SYCL kernels.", "1")
SYCL_CACHE_DIR = _text("SYCL_CACHE_DIR", "Directory of compiled SYCL kernels.", "v1/sycl_kernels in ACCEL_CACHE_DIR")
ACCEL_SET_FOR_SYCL = _text(
    "ACCEL_SET_FOR_SYCL",
    "Internal: the variables of the three above that this process or its parent has set, as JSON.",
)


_OF_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_PROGRAM_PLACES = ("COMPILER_PATH", "GCC_EXEC_PREFIX")
# Starts of the names of variables that change the output of compilers, or of wrappers that are no scripts. They are
# part of the key. Not all of OMPI_: mpirun gives each rank its own values.
_READ_BY_COMPILERS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "OBJCPLUS_INCLUDE_PATH"),
    *("LIBRARY_PATH", "LD_RUN_PATH", *_PROGRAM_PLACES),
    *("LDEMULATION", "GNUTARGET"),
    *("SOURCE_DATE_EPOCH", "CCC_OVERRIDE_OPTIONS", *_OF_NVCC),
    *("SDKROOT", "MACOSX_DEPLOYMENT_TARGET", "DEVELOPER_DIR", "TOOLCHAINS"),
    *("NIX_CFLAGS", "NIX_CXX", "NIX_LDFLAGS", "NIX_HARDENING", "NIX_ENFORCE", "SPACK_", "CRAYPE_"),
    *("OMPI_CC", "OMPI_CXX", "OMPI_CFLAGS", "OMPI_CPPFLAGS", "OMPI_LDFLAGS", "OMPI_LIBS", "OPAL_PREFIX"),
    *("MPICH_C", "I_MPI_C", "ICXCFG", "ICPXCFG", "CLANG_NO_DEFAULT_CONFIG"),
    *("CCACHE_BASEDIR", "CCACHE_CC", "CCACHE_COMPILER", "CCACHE_CONFIGPATH", "CCACHE_IGNORE", "CCACHE_P"),
    "CCACHE_SLOPPINESS",
)
# Those of them that hold for another platform, too.
FOR_ANY_TARGET = {SOURCE_DATE_EPOCH.name}
# With these, compilers write the names of the headers elsewhere, or not all of them.
_DEPENDENCY_VARIABLES = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES")


def read_by_compilers(named: Container[str] = (), starts: Iterable[str] = ()) -> dict[str, str]:
    """The variables that are set and change the compilers' output: the known ones, and those that scripts name.

    Args:
        named: their names.
        starts: of names that the scripts complete.
    """
    starts = (*_READ_BY_COMPILERS, *starts)
    found = {name for name in os.environ if name.startswith(starts) or name in named}
    found.update({os.environ[name] for name in found} & os.environ.keys())  # ${!NAME}
    return {name: os.environ[name] for name in sorted(found) if os.environ[name]}


def compiler_environment(*, is_for_target: bool, **changes: str | None) -> dict[str, str]:
    """The environment of a compiler: :func:`child_environment`, where diagnostics are in English.

    Args:
        is_for_target: omit the variables that compilers read; their values are for this machine.
    """
    omitted = (*_DEPENDENCY_VARIABLES, *(read_by_compilers().keys() - FOR_ANY_TARGET if is_for_target else ()))
    return child_environment(**dict.fromkeys(omitted), LC_ALL="C", **changes)


def program_places() -> list[str]:
    """The directories in which compilers look for their programs first."""
    return [place for name in _PROGRAM_PLACES for place in os.environ.get(name, "").split(":") if place]


def nvcc_words() -> list[str]:
    """The flags that nvcc takes from variables."""
    return [word for name in _OF_NVCC for word in os.environ.get(name, "").split()]


def of_another_program(name: str) -> str | None:
    """The value of a variable that only another program reads, or None if it is unset or empty."""
    return os.environ.get(name) or None


def misspelled() -> dict[str, str]:
    """The variables ``ACCEL_...`` that are set and that nothing reads, but similar to one; with the suggestion."""
    known = [variable.name for variable in VARIABLES if variable.name.startswith("ACCEL_")]
    prefix = ACCEL_BUILD_OP.name.partition("<")[0]  # other packages' ops have such variables, too
    others = [name for name in sorted(os.environ) if name.startswith("ACCEL_") and not name.startswith(prefix)]
    near = {name: did_you_mean(name, known, common="ACCEL_") for name in others if name not in known}
    return {name: suggestion for name, suggestion in near.items() if suggestion}


def build_switches() -> dict[str, bool]:
    """The values of the variables ``ACCEL_BUILD_<OP>`` that are set, by name.

    Raises:
        EnvironmentValueError: a value is neither 0 nor 1.
    """
    prefix = ACCEL_BUILD_OP.name.partition("<")[0]
    general = {variable.name for variable in (ACCEL_BUILD_OPS, ACCEL_BUILD_TORCH, ACCEL_BUILD_TARGET)}
    names = sorted(name for name in os.environ if name.startswith(prefix) and name not in general)
    values = {name: Variable(name, _parse_flag, None, "").get() for name in names}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def scope(**values: str | None) -> Iterator[None]:
    """Set environment variables (None unsets) inside a ``with`` block, then restore them. For tests and tools."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _apply(os.environ, values)
        yield
    finally:
        _apply(os.environ, before)


def _apply(environment: MutableMapping[str, str], values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            environment.pop(name, None)
        elif environment.get(name) != value:
            environment[name] = value


def set_for_libraries(values: Mapping[str, str | None]) -> None:
    """Set variables (None unsets) for a library that this process opens next, or for child processes.

    Native code in another thread that reads a variable at the same moment may crash with glibc before 2.41: C has no
    lock for the environment. oneCCL and the SYCL runtime read their settings only from there, so it is written just
    once, before they are opened, and only where it differs. ``compiles.watched()`` writes at both ends of its block:
    call it, or ``compiles.watch()``, before threads of native code start.
    """
    _apply(os.environ, values)


def child_environment(**changes: str | None) -> dict[str, str]:
    """A copy of the environment for a child process, with ``changes`` (None unsets)."""
    environment = dict(os.environ)
    _apply(environment, changes)
    return environment


def write_visible_devices(environment: MutableMapping[str, str], names: Sequence[str], ids: Sequence[int]) -> None:
    """Set each variable of ``names`` in ``environment`` to the comma-separated ``ids``."""
    for name in names:
        environment[name] = ",".join(str(index) for index in ids)


def markdown_table() -> str:
    """The table of all variables for the documentation."""
    lines = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for variable in VARIABLES:
        default = variable.default_text
        if default is None:
            default = {True: "1", False: "0", None: "unset"}.get(variable.default, str(variable.default))
        lines.append(f"| `{variable.name}` | {variable.type_name} | {default} | {variable.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
