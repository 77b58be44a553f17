"""The ops of a loaded library, and the Python class of their errors.

torch raises the errors of ops as a ``RuntimeError``. The text of one begins with the name of the class that it should
have (csrc/torch_c/errors.h), and that class is raised here.
"""

from __future__ import annotations

from typing import Any

_CLASSES = {each.__name__: each for each in (ValueError, MemoryError, IndexError, OverflowError)}


def named_error(error: Exception) -> Exception:
    """The error of an op in the class that its text names; ``error`` unchanged if it names none."""
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
