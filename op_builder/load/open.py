"""From a binary on disk to a Python object with the op's functions.

torch ends the process when two libraries define one namespace or one op. Each of this project's binaries therefore has
a namespace that ends in its key's hash, and only the object that ``load()`` returns knows it. A foreign library that
defines an existing name is refused before it is opened. Libraries may share a namespace that each of them extends
(``TORCH_LIBRARY_FRAGMENT``).
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from op_builder.cache.store import Entry
from op_builder.errors import LoadError
from op_builder.plan import ENTRY_POINT, SYCL_LIBRARY
from op_builder.system.file_contents import mapping_error
from op_builder.system.torch_install import torch_install

if TYPE_CHECKING:
    import ctypes

    from op_builder.cache.store import Cache
    from op_builder.spec import OpSpec

NOEXEC_REMEDY = "Set ACCEL_CACHE_DIR to a directory on a file system that is not mounted noexec."

# While it is held, nothing is imported and no code of other packages runs, which could wait for another thread.
_lock = threading.Lock()
_registering = threading.Lock()  # held while a library registers with torch: two of one name end the process
_registering_thread: int | None = None
_opened: dict[str, tuple[Entry, Any]] = {}
_bound: dict[tuple[str, Callable[..., Any]], Any] = {}
_opening: dict[str, tuple[int, threading.Event]] = {}  # the thread that opens it, and the end
_half_registered: dict[str, str] = {}
_registered_files: set[Path] = set()
_module_names: set[str] = set()
# The thread that opens an op may wait for an import that the waiting thread is in. Nothing distinguishes this from a
# module that takes longer to initialize, so the waiting thread then initializes such a module a second time.
_LONGEST_WAIT_S = 10.0


def _replace_locks() -> None:
    # A fork while another thread loads would leave the child a lock that no thread releases.
    global _lock, _registering, _registering_thread
    _lock, _registering, _registering_thread = threading.Lock(), threading.Lock(), None
    _opening.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks)


def open_entry(entry: Entry, spec: OpSpec, cache: Cache) -> Any:
    """Open the binary of ``entry`` in this process; returns the same object each time.

    Returns:
        what ``spec.front_end`` makes of the opened library: ``torch.ops.<namespace>`` for a library of torch ops (an
        object with one attribute per namespace if the library registers several), the module for a Python extension
        module, a ``tvm_ffi.Module`` for functions of TVM FFI, or a ``ctypes.CDLL`` for another library.

    Raises:
        LoadError: the binary cannot be opened, or a name that it defines exists already.
    """
    identity = f"{entry.manifest.op} {entry.digest}"
    key = identity, spec.owner or spec.front_end
    if key not in _bound:
        if identity not in _opened:
            opener = _OPENERS.get(entry.manifest.kind)
            if opener is None:
                raise LoadError(
                    f"{entry.artifact} is a precompiled header.", "Empty the cache: `accel-ops cache clear`."
                )
            with _one_thread(identity):
                if identity not in _opened:
                    _open_needed(entry, spec, cache)
                    _opened[identity] = entry, opener(entry)
        made = spec.front_end(_opened[identity][1])
        with _lock:  # another thread may have been faster
            _bound.setdefault(key, made)
    return _bound[key]


def opened_entries(op: str) -> list[Entry]:
    """The entries of an op that are open in this process; their files may have been removed."""
    return [entry for entry, _ in list(_opened.values()) if entry.manifest.op == op]


@contextmanager
def _one_thread(identity: str) -> Iterator[None]:
    """Wait for another thread that opens the same binary, but not for ever."""
    own, end = (threading.get_ident(), threading.Event()), time.monotonic() + _LONGEST_WAIT_S
    while True:
        with _lock:
            first = _opening.setdefault(identity, own)
        thread, ended = first
        if first is own or thread == own[0] or not ended.wait(max(0.0, end - time.monotonic())):
            break
    try:
        yield
    finally:
        if first is own:
            with _lock:
                _opening.pop(identity, None)
            own[1].set()


def _open_needed(entry: Entry, spec: OpSpec, cache: Cache) -> None:
    """Open the libraries that the binary names without a path and that torch does not load."""
    if entry.manifest.torch:
        import torch  # noqa: F401  (loads the libraries that the binary links against)

        if sys.platform == "darwin":
            open_torch_globally()
    if SYCL_LIBRARY in entry.manifest.needs:
        from op_builder.toolchains.sycl_runtime import import_ipex, open_runtime

        if entry.manifest.key_parts.get("sycl", "").startswith("ipex"):
            import_ipex()
        open_runtime(cache.kernel_directory(), f"{SYCL_LIBRARY}.{entry.manifest.needs[SYCL_LIBRARY]}")
    if spec.open_libraries is not None:
        spec.open_libraries(cache)


def open_torch_globally() -> None:
    """On macOS binaries name no library of torch: they find its functions in globally opened ones."""
    import ctypes

    from op_builder.system.target import library_file

    for name in ("torch_cpu", "torch_python"):
        ctypes.CDLL(str(torch_install().library_dir / library_file(name, "darwin")), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def _only_registration(entry: Entry) -> Iterator[None]:
    """Let one thread after the other open a library that registers with torch.

    Raises:
        LoadError: this thread is already in one: a static initializer of the library loads an op.
    """
    global _registering_thread
    if _registering_thread == threading.get_ident():
        raise LoadError(
            f"{entry.artifact} cannot be opened while this thread opens another library of torch ops.",
            "Load no op in a static initializer of a library, in a signal handler or in a finalizer.",
        )
    with _registering:
        _registering_thread = threading.get_ident()
        try:
            yield
        finally:
            _registering_thread = None


def _open_accel(entry: Entry) -> Any:
    import ctypes

    import torch

    namespace = f"accel_{entry.manifest.op}_{entry.digest}"
    with _only_registration(entry):
        # Registering a namespace twice ends the process. torch.ops remembers the namespaces that were used, also after
        # this module was reloaded.
        if namespace in vars(torch.ops):
            return getattr(torch.ops, namespace)
        if namespace in _half_registered:
            raise LoadError(_half_registered[namespace], "Restart Python to try again.")
        library, error = _dlopen(entry.artifact), ctypes.create_string_buffer(4096)
        if getattr(library, ENTRY_POINT)(namespace.encode(), error, len(error)):
            reason = error.value.decode(errors="replace")
            failure = f"{entry.artifact} cannot register its ops with torch {torch.__version__}: {reason}"
            _half_registered[namespace] = failure
            raise LoadError(failure)
        setattr(torch.ops, namespace, LoadedOps(getattr(torch.ops, namespace)))
        return getattr(torch.ops, namespace)


def _open_python(entry: Entry) -> Any:
    _refuse_existing_names(entry)
    name = Path(entry.manifest.artifact).stem
    # A module enters sys.modules under its name, and must not replace another one there, such as json. pybind11
    # identifies modules by name, too, and would return the first build for the second.
    if name in _module_names or name in sys.modules or name in sys.stdlib_module_names:
        name = f"accel_{entry.digest}.{name}"
    finder = importlib.machinery.ExtensionFileLoader(name, str(entry.artifact))
    spec = importlib.util.spec_from_file_location(name, entry.artifact, loader=finder)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        finder.exec_module(module)
    except Exception as error:  # the module's initialization may raise anything
        remedy = _noexec_remedy(entry.artifact)
        if "already registered" in str(error):
            remedy = "Another version of this module is loaded; restart Python, or use py::module_local() classes."
        raise LoadError(f"{entry.artifact} cannot be imported: {type(error).__name__}: {error}", remedy) from error
    _module_names.add(name)
    return module


def _open_library(entry: Entry) -> Any:
    return _dlopen(entry.artifact)


def _open_tvm_ffi(entry: Entry) -> Any:
    from op_builder.toolchains.tvm_ffi import tvm_ffi

    try:
        return tvm_ffi().load_module(str(entry.artifact))
    except (RuntimeError, OSError) as error:
        raise LoadError(f"{entry.artifact} cannot be opened: {error}", _noexec_remedy(entry.artifact)) from error


def _open_torch_library(entry: Entry) -> Any:
    import torch

    with _only_registration(entry):
        if entry.artifact not in _registered_files:  # another thread may have been faster
            _refuse_existing_names(entry)
            _dlopen(entry.artifact)
            _registered_files.add(entry.artifact)
    names = sorted(entry.manifest.namespaces)
    if len(names) == 1:
        return getattr(torch.ops, names[0])
    return SimpleNamespace(**{name: getattr(torch.ops, name) for name in names})


def _refuse_existing_names(entry: Entry) -> None:
    manifest = entry.manifest
    if not manifest.operators and not manifest.defined_namespaces:
        return
    from op_builder.system.torch_ops import is_namespace_defined, is_operator_defined, known_operators

    known = known_operators()
    namespaces = [name for name in manifest.defined_namespaces if is_namespace_defined(name)]
    operators = [name for name in manifest.operators if name in known and is_operator_defined(name)]
    if namespaces:
        what, other = f"the torch namespace {', '.join(namespaces)}", "give the library a namespace of its own"
    elif operators:
        what, other = f"{', '.join(operators)} for torch", "give its ops other names"
    else:
        return
    raise LoadError(
        f"Op '{manifest.op}' defines {what}, which already exists in this process; opening the op would end the "
        "process.",
        f"Restart Python to load a changed build, or {other}.",
    )


def _dlopen(path: Path) -> ctypes.CDLL:
    import ctypes

    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        remedy = "If the message names a missing library, install it. Otherwise remove the file, and load again."
        raise LoadError(f"{path} cannot be opened: {error}", _noexec_remedy(path) or remedy) from None


def _noexec_remedy(artifact: Path) -> str:
    """What to do if the system refuses to execute the file; empty for any other reason."""
    try:
        with artifact.open("rb") as file:
            return NOEXEC_REMEDY if mapping_error(file.fileno()) else ""
    except OSError:
        return ""


_OPENERS = {
    "accel": _open_accel,
    "python": _open_python,
    "torch_library": _open_torch_library,
    "library": _open_library,
    "tvm_ffi": _open_tvm_ffi,
}


# torch raises the errors of ops as a RuntimeError. The text of one begins with the name of the class that it should
# have (csrc/torch_c/errors.h), and that class is raised here.
_CLASSES = {each.__name__: each for each in (ValueError, MemoryError, IndexError, OverflowError)}


def named_error(error: Exception) -> Exception:
    """An op's error, in the class that its text names; ``error`` unchanged if it names none."""
    name, _, message = str(error).partition(": ")
    return _CLASSES[name](message) if name in _CLASSES else error


class LoadedOp:
    """An op of torch. Its overloads (``op.default``) are torch's own, as ``torch.library.opcheck`` takes them."""

    def __init__(self, op: Any) -> None:
        self._op = op

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the op.

        Raises:
            ValueError, MemoryError, IndexError, OverflowError: the op threw the C++ exception of that meaning.
            RuntimeError: the op threw another one.
        """
        try:
            return self._op(*arguments, **keywords)
        except Exception as error:
            named = named_error(error)
            if named is error:
                raise
            raise named from None

    def __getattr__(self, name: str) -> Any:
        if name == "_op":  # copy reads it before it is set
            raise AttributeError(name)
        return getattr(self._op, name)

    def __repr__(self) -> str:
        return repr(self._op)


class LoadedOps:
    """A namespace of torch ops, ``torch.ops.<namespace>``."""

    def __init__(self, namespace: Any) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> LoadedOp:
        if name == "_namespace":  # copy reads it before it is set
            raise AttributeError(name)
        op = LoadedOp(getattr(self._namespace, name))
        setattr(self, name, op)
        return op
