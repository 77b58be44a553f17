"""``op_builder.cpp_extension`` in place of ``torch.utils.cpp_extension``'s functions, for unchanged programs.

::

    accel-ops run train.py --epochs 3           # for one program and its children
    ACCEL_CPP_EXTENSION=1 python train.py       # the same, where accel-ops is installed by pip

    from op_builder.integrations.torch_extensions import in_place_of_torch
    with in_place_of_torch():
        import fast_transformers                # compiles its ops when it is imported
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from op_builder import env
from op_builder.errors import AccelError
from op_builder.system.after_import import AfterImport

logger = logging.getLogger(__name__)

_MODULE = "torch.utils.cpp_extension"
_NAMES = ("load", "load_inline")
START_FILE = "accel_ops.pth"  # which every Python of an environment reads when it starts
_replaced: dict[str, Callable[..., Any]] = {}


def on() -> None:
    """Replace torch's ``load`` and ``load_inline`` in this process and in children that it starts later.

    Imports neither torch nor the engine. Names that a module imported from torch's before keep torch's functions.
    """
    env.set_for_libraries({env.ACCEL_CPP_EXTENSION.name: "1"})
    if not _is_on():
        sys.meta_path.insert(0, _finder)
    module = sys.modules.get(_MODULE)
    if module is not None:
        _replace(module)


def off() -> None:
    """Undo :func:`on`."""
    env.set_for_libraries({env.ACCEL_CPP_EXTENSION.name: None})
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
    module = sys.modules.get(_MODULE)
    if module is not None:
        vars(module).update(_replaced)
    _replaced.clear()


def on_if_requested() -> None:
    """:func:`on` if ``ACCEL_CPP_EXTENSION`` requests it, at the start of Python; a wrong value is a warning."""
    try:
        if env.ACCEL_CPP_EXTENSION.get():
            on()
    except AccelError as error:  # each Python would show a traceback
        logger.warning("%s keeps its own functions: %s", _MODULE, error)


@contextmanager
def in_place_of_torch() -> Iterator[None]:
    """:func:`on` for the body of a ``with`` statement; no effect where it is on already."""
    was_on, inherited = _is_on(), env.ACCEL_CPP_EXTENSION.raw()
    on()
    try:
        yield
    finally:
        if not was_on:
            off()
            env.set_for_libraries({env.ACCEL_CPP_EXTENSION.name: inherited})


def _is_on() -> bool:
    return _finder in sys.meta_path


def _replace(module: ModuleType) -> None:
    # Imported here, because this module may run at the start of every Python.
    from op_builder import cpp_extension

    ours = {name: getattr(cpp_extension, name) for name in _NAMES}
    if vars(module).items() >= ours.items():
        return
    _replaced.update({name: getattr(module, name) for name in _NAMES})
    vars(module).update(ours)
    logger.info("op_builder.cpp_extension replaces load and load_inline of %s.", _MODULE)


_finder = AfterImport(_MODULE, _replace)
