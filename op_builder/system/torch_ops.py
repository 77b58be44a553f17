"""Which ops and namespaces are registered with torch in this process."""

from __future__ import annotations


def known_operators() -> set[str]:
    """The full names of all ops known to torch; some may have an implementation and no definition."""
    import torch

    return set(torch._C._dispatch_get_all_op_names())


def is_operator_defined(name: str) -> bool:
    """Whether an op, by its full name, has a schema, so that a second one would end the process."""
    import torch

    operator, _, overload = name.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(operator, overload)
    except RuntimeError:
        return False
    return True


def is_namespace_defined(name: str) -> bool:
    """Whether a library of this process owns a namespace (``TORCH_LIBRARY``), which only one can.

    torch has no query for it: the definition is refused, or undone immediately. Another thread that defines the same
    namespace in between ends the process. It would do so anyway: in a process with threads only the loader asks, for
    a library that it opens next and that defines this namespace, too.
    """
    import torch

    try:
        torch._C._dispatch_library("DEF", name, "", __file__, 0).reset()
    except RuntimeError:
        return True
    return False
