"""What ``shm_comm``'s native side gets of CPython itself: see csrc/bindings/python_call.h."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from op_builder.ops.comm.shared_memory_native import NativeGroups

_REQUIRES_GRAD = sys.intern("requires_grad")


def know_python(native: NativeGroups) -> None:
    """Tell the native side where Python's own functions are (csrc/bindings/python_call.h).

    With them a wait ends when the handler of a signal raises, as it does for Ctrl-C, and small all-reduces need not go
    through torch's dispatcher.
    """
    api = ctypes.pythonapi
    functions = (
        api.PyGILState_Ensure,
        api.PyGILState_Release,
        api.PyErr_CheckSignals,
        api.PyErr_Fetch,
        api.PyEval_SaveThread,
        api.PyEval_RestoreThread,
        api.PyObject_Type,
        api.Py_IncRef,
        api.Py_DecRef,
        api.PyObject_GetAttr,
        api.PyObject_CallObject,
        api.PyLong_AsLongLong,
        api.PyErr_Clear,
    )
    objects = (None, False, torch.Tensor, _REQUIRES_GRAD, torch._C._len_torch_dispatch_stack)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    native.know_python([*addresses, *map(id, objects), _tensor_exchange()])


def _tensor_exchange() -> int:
    """The address of DLPack's C exchange of torch's tensors, 0 where this torch has none."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, b"dlpack_exchange_api"))


def quick_all_reduce(native: NativeGroups, number: int) -> Callable[..., Any]:
    """A function of a group: ``(tensor, reduction)`` or ``(input, output, reduction)``.

    It returns the last tensor when it has done it, None where the torch op is to be called instead, False after a
    failure.
    """
    method = native.python_method()
    if not method:
        return _never
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return make(method, number, None)  # type: ignore[no-any-return]


def _never(*_: object) -> None:
    """What calls the torch op each time."""


def raise_interruption(native: NativeGroups) -> None:
    """Raise the exception of a signal's handler that ended a wait of this thread; without one do nothing."""
    if threading.current_thread() is not threading.main_thread():
        return  # handlers run in that one alone, and what one raised is for it
    taken = native.take_raised()
    if taken[0]:
        ctypes.pythonapi.PyErr_Restore(
            *(ctypes.c_void_p(part or None) for part in taken)
        )  # takes them over, and raises
