"""The one module that reads the environment.

Every variable is declared once, as a :class:`Variable` in :data:`VARIABLES`, with its type,
its default and one line of documentation; ``docs/environment.md`` is generated from that
table (``python -m op_builder.env``). Nothing else in ``accelerator`` or ``op_builder``
touches ``os.environ``.

Values are read when asked for, never cached, so a test or a notebook can change a variable
and see the effect. An empty value counts as unset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from op_builder.errors import EnvironmentValueError

T = TypeVar("T")

_TRUE = ("1", "true", "on")
_FALSE = ("0", "false", "off")


def _parse_flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError("expected 1 or 0")


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("expected a whole number of at least 1")
    return value


def _parse_path(text: str) -> Path:
    return Path(text).expanduser()


def _parse_text(text: str) -> str:
    return text


_TYPE_NAMES: dict[Callable[[str], object], str] = {
    _parse_flag: "0 or 1",
    _parse_count: "count >= 1",
    _parse_path: "path",
    _parse_text: "text",
    int: "integer",
}


class Variable(Generic[T]):
    """One environment variable: its name, how its text is parsed, its default, its meaning.

    ``default`` is what :meth:`get` returns when the variable is unset; ``default_text``
    replaces it in the documentation where the true default is worked out elsewhere.
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
        """The parsed value, or the default when unset or empty.

        Raises:
            EnvironmentValueError: the text cannot be parsed; names variable, value, remedy.
        """
        text = self.raw()
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise EnvironmentValueError(self.name, text, self.type_name) from error

    def raw(self) -> str | None:
        """The unparsed text, or None when unset or empty."""
        return os.environ.get(self.name) or None

    def is_set(self) -> bool:
        """Whether it is set at all: of a few variables, empty means something."""
        return self.name in os.environ

    @property
    def type_name(self) -> str:
        return _TYPE_NAMES.get(self.parse, "text")


VARIABLES: list[Variable[Any]] = []


def _declare(
    name: str, parse: Callable[[str], T], default: T, doc: str, default_text: str | None = None
) -> Variable[T]:
    variable = Variable(name, parse, default, doc, default_text)
    VARIABLES.append(variable)
    return variable


def _text(name: str, doc: str, default_text: str | None = None) -> Variable[str | None]:
    return _declare(name, _parse_text, None, doc, default_text)


# The device ------------------------------------------------------------------------------
ACCEL_ACCELERATOR = _text("ACCEL_ACCELERATOR", "Accelerator to use, by name, instead of detecting one.", "detected")
DS_ACCELERATOR = _text(
    "DS_ACCELERATOR", "The same as ACCEL_ACCELERATOR; an error if both are set and differ.", "detected"
)
LOCAL_SIZE: Variable[int | None] = _declare(
    "LOCAL_SIZE", int, None, "Ranks on this host, set by a launcher; the CPU device count when > 0."
)
LOCAL_RANK: Variable[int] = _declare(
    "LOCAL_RANK", int, 0, "Rank on this host, set by a launcher; the CPU's current device."
)
ACCEL_LAUNCH_ID = _text("ACCEL_LAUNCH_ID", "Set by accel-launch in its workers: which launch they belong to.")
CUDA_VISIBLE_DEVICES = _text(
    "CUDA_VISIBLE_DEVICES", "CUDA devices this process may use; mapped when NVML is asked for memory.", "all"
)
CUDA_DEVICE_ORDER = _text(
    "CUDA_DEVICE_ORDER",
    "PCI_BUS_ID: CUDA numbers devices as NVML does; else NVML is not asked where they differ.",
    "FASTEST_FIRST",
)
ASCEND_HOME_PATH: Variable[Path | None] = _declare(
    "ASCEND_HOME_PATH", _parse_path, None, "Ascend CANN installation whose version the report shows."
)

# Set by launchers of ranks; where shm_comm's ranks meet without torch.distributed ---------------
MASTER_ADDR = _text("MASTER_ADDR", "Host of the store at which ranks meet.")
MASTER_PORT: Variable[int | None] = _declare("MASTER_PORT", int, None, "Its port.")
RANK: Variable[int | None] = _declare("RANK", int, None, "Rank among all; 0 serves that store.")
TORCHELASTIC_USE_AGENT_STORE: Variable[bool] = _declare(
    "TORCHELASTIC_USE_AGENT_STORE", _parse_flag, False, "1: torch's launcher serves that store."
)
TORCHELASTIC_RESTART_COUNT: Variable[int] = _declare(
    "TORCHELASTIC_RESTART_COUNT", int, 0, "How often torch's launcher has started the ranks again."
)

# Building --------------------------------------------------------------------------------
ACCEL_CACHE_DIR: Variable[Path | None] = _declare(
    "ACCEL_CACHE_DIR",
    _parse_path,
    None,
    "Directory of built ops; may be read-only.",
    "$XDG_CACHE_HOME/accel-ops",
)
XDG_CACHE_HOME: Variable[Path | None] = _declare(
    "XDG_CACHE_HOME", _parse_path, None, "Base of the default cache directory.", "~/.cache"
)
ACCEL_CACHE_MAX_MIB: Variable[int] = _declare(
    "ACCEL_CACHE_MAX_MIB",
    _parse_count,
    4096,
    "MiB of the cache beyond which logs, entries set aside and the least lately used ops are removed.",
)
ACCEL_JIT: Variable[bool] = _declare(
    "ACCEL_JIT", _parse_flag, True, "0 forbids compiling at load time; only prebuilt and cached ops load."
)
ACCEL_MAX_JOBS: Variable[int | None] = _declare(
    "ACCEL_MAX_JOBS", _parse_count, None, "Compiler jobs at a time.", "from cores and memory"
)
MAX_JOBS: Variable[int | None] = _declare(
    "MAX_JOBS", _parse_count, None, "Compiler jobs at a time, where ACCEL_MAX_JOBS is unset."
)
ACCEL_COMPILE_TIMEOUT_S: Variable[int] = _declare(
    "ACCEL_COMPILE_TIMEOUT_S", _parse_count, 3600, "Seconds after which a build is stopped with an error."
)
ACCEL_CPU_ISA = _text(
    "ACCEL_CPU_ISA",
    "Highest instruction set that CPU kernels use: baseline, avx2, avx512 or neon.",
    "best of the CPU",
)
ACCEL_AIO_ENGINE = _text(
    "ACCEL_AIO_ENGINE",
    "The engine that async_io uses: io_uring, libaio or threads; an error where the kernel refuses it.",
    "the first of these that works",
)
ACCEL_BUILD_OPS: Variable[bool] = _declare(
    "ACCEL_BUILD_OPS", _parse_flag, False, "1 builds every compatible op into the wheel that `pip install` makes."
)
ACCEL_BUILD_TORCH: Variable[Path | None] = _declare(
    "ACCEL_BUILD_TORCH",
    _parse_path,
    None,
    "Python, or directory of installed packages, whose torch a prebuild is made against.",
    "the environment that is installed into",
)
ACCEL_BUILD_OP: Variable[bool | None] = _declare(
    "ACCEL_BUILD_<OP>",
    _parse_flag,
    None,
    "1 builds that op into the wheel or fails; 0 leaves it out: `ACCEL_BUILD_CPU_ADAM=1`.",
    "as ACCEL_BUILD_OPS says",
)
ACCEL_COMM_TIMEOUT_S: Variable[int] = _declare(
    "ACCEL_COMM_TIMEOUT_S",
    _parse_count,
    300,
    "Seconds that a collective in shared memory waits for a rank that lives; one that died is noticed at once.",
)
CXX = _text("CXX", "C++ compiler.", "g++, c++ or clang++ on PATH")
CUDA_HOME: Variable[Path | None] = _declare(
    "CUDA_HOME", _parse_path, None, "CUDA toolkit to compile with.", "asked of nvcc on PATH"
)
CUDA_PATH: Variable[Path | None] = _declare("CUDA_PATH", _parse_path, None, "The same, where CUDA_HOME is unset.")
TORCH_CUDA_ARCH_LIST = _text(
    "TORCH_CUDA_ARCH_LIST",
    "CUDA architectures to compile for, as torch takes them: '8.0;9.0a+PTX', 'Ampere Hopper'.",
    "the visible devices, else a list the toolkit supports",
)
ACCEL_SYCL_TOOLCHAIN = _text(
    "ACCEL_SYCL_TOOLCHAIN", "Toolchain of SYCL ops: sycl-rtc, icpx or ipex.", "the first that works here"
)
TORCH_XPU_ARCH_LIST = _text(
    "TORCH_XPU_ARCH_LIST",
    "Intel GPUs that icpx compiles SYCL ops for, as torch takes them: 'pvc,bmg'; empty: none ahead of time.",
    "those torch was built for",
)

# Communication ---------------------------------------------------------------------------
ACCEL_HOST_ID = _text(
    "ACCEL_HOST_ID",
    "Names this host for the distributed backend: ranks with one name share memory.",
    "from the system's boot, network namespace and user",
)
ACCEL_DISTRIBUTED_ACROSS = _text(
    "ACCEL_DISTRIBUTED_ACROSS", "What the distributed backend uses between hosts: gloo or ccl.", "gloo"
)
CCL_ROOT: Variable[Path | None] = _declare(
    "CCL_ROOT", _parse_path, None, "oneCCL installation to use.", "Intel's wheels, else the system's"
)

# Read by oneCCL; set in this process when its op is opened, each unless the user has ----------------------
LD_LIBRARY_PATH = _text(
    "LD_LIBRARY_PATH", "Where the system looks for libraries; extended for the child that tries an op of oneCCL."
)
CCL_ATL_TRANSPORT = _text("CCL_ATL_TRANSPORT", "What oneCCL sends through: ofi or mpi.", "ofi")
CCL_OFI_LIBRARY_PATH = _text(
    "CCL_OFI_LIBRARY_PATH", "The libfabric that oneCCL opens.", "that of impi-rt, if installed"
)
CCL_LOG_LEVEL = _text("CCL_LOG_LEVEL", "How much oneCCL prints: error, warn, info, debug or trace.", "error")
FI_PROVIDER_PATH = _text("FI_PROVIDER_PATH", "Where libfabric looks for its providers.", "next to that libfabric")

# Read by the SYCL runtime; set in this process when an op opens it, each unless the user has --------------
OCL_ICD_FILENAMES = _text(
    "OCL_ICD_FILENAMES", "OpenCL drivers that the SYCL runtime looks at.", "that of intel-opencl-rt, if installed"
)
SYCL_CACHE_PERSISTENT = _text("SYCL_CACHE_PERSISTENT", "0 keeps no compiled SYCL kernels.", "1")
SYCL_CACHE_DIR = _text("SYCL_CACHE_DIR", "Where compiled SYCL kernels are kept.", "sycl_kernels in ACCEL_CACHE_DIR")
ACCEL_SET_FOR_SYCL = _text(
    "ACCEL_SET_FOR_SYCL",
    "Written, not set by a user: which of the three above this process or its parent has set, as JSON.",
)


# Variables that the compilers themselves read, and that change what they make: they count in the key.
_READ_BY_CXX = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LD_RUN_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "CCC_OVERRIDE_OPTIONS",
)
_READ_BY_NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")


def read_by_compilers(*, cuda: bool) -> dict[str, str]:
    """The variables that change what the compilers make, of those that are set; ``cuda``: nvcc's too."""
    names = (*_READ_BY_CXX, *_READ_BY_NVCC) if cuda else _READ_BY_CXX
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def build_switches() -> dict[str, bool]:
    """The variables ``ACCEL_BUILD_<OP>`` that are set, by their names.

    Raises:
        EnvironmentValueError: one of them is neither 0 nor 1.
    """
    prefix = ACCEL_BUILD_OP.name.partition("<")[0]
    general = {variable.name for variable in (ACCEL_BUILD_OPS, ACCEL_BUILD_TORCH)}
    names = sorted(name for name in os.environ if name.startswith(prefix) and name not in general)
    values = {name: Variable(name, _parse_flag, None, "").get() for name in names}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def scope(**values: str | None) -> Iterator[None]:
    """Set environment variables (None unsets) inside a ``with`` block, then restore them.

    For tests and tools; the library itself writes only what :func:`set_for_libraries` is given.
    """
    before = {name: os.environ.get(name) for name in values}
    try:
        _apply(values)
        yield
    finally:
        _apply(before)


def _apply(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def set_for_libraries(values: Mapping[str, str]) -> None:
    """Set variables for a library that is about to be opened in this process, and reads them itself."""
    os.environ.update(values)


def child_environment(**changes: str | None) -> dict[str, str]:
    """A copy of the whole environment for a child process, with ``changes`` made (None removes)."""
    environment = dict(os.environ)
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def write_visible_devices(environment: MutableMapping[str, str], names: Sequence[str], ids: Sequence[int]) -> None:
    """Set each variable of ``names`` in ``environment`` to the comma-separated ``ids``."""
    for name in names:
        environment[name] = ",".join(str(index) for index in ids)


def markdown_table() -> str:
    """The documentation table of all declared variables, as Markdown."""
    lines = ["| variable | type | default | meaning |", "|---|---|---|---|"]
    for variable in VARIABLES:
        default = variable.default_text
        if default is None:
            default = {True: "1", False: "0", None: "unset"}.get(
                variable.default,
                str(variable.default),
            )
        lines.append(f"| `{variable.name}` | {variable.type_name} | {default} | {variable.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
