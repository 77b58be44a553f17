"""Which ops and namespaces are registered with torch in this process."""

from __future__ import annotations


def known_operators() -> set[str]:
    """The whole names of all ops that torch has heard of; some may have an implementation and no definition."""
    import torch

    return set(torch._C._dispatch_get_all_op_names())


def is_operator_defined(name: str) -> bool:
    """Whether an op, by its whole name, has a schema, so that a second one would end the process."""
    import torch

    operator, _, overload = name.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(operator, overload)
    except RuntimeError:
        return False
    return True


def is_namespace_defined(name: str) -> bool:
    """Whether a library of this process owns a namespace (``TORCH_LIBRARY``), as a second one cannot."""
    import torch

    try:
        # Try it, because torch has no query for it: torch refuses it, or it is undone immediately.
        torch._C._dispatch_library("DEF", name, "", __file__, 0).reset()
    except RuntimeError:
        return True
    return False
