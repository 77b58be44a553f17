"""Whether torch's oneCCL backend is there."""

from __future__ import annotations

import importlib


def oneccl_imports() -> bool:
    """Whether ``oneccl_bindings_for_pytorch`` imports, which also registers the backend ``ccl``."""
    try:
        importlib.import_module("oneccl_bindings_for_pytorch")
    except Exception:  # a broken installation raises anything; the backend is then as good as absent
        return False
    return True
