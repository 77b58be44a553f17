"""Which compilers a program and its children start: who asked, for what, and how long they took.

::

    from op_builder import compiles

    with compiles.watched() as ledger:      # "report"; "warn" logs each compiler, "raise" forbids them
        model(batch)
    print(ledger.table())

    compiles.watch("raise")                 # from here on, a server starts no compiler

``accel-ops run --compiles report -- train.py`` does so for a whole program. docs/what_compiles.md lists what is not
seen.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from op_builder.compiles.ledger_rows import Start as Start
    from op_builder.compiles.watching import Ledger as Ledger
    from op_builder.compiles.watching import watch as watch
    from op_builder.compiles.watching import watched as watched

__all__ = ["Ledger", "Start", "watch", "watched"]


def __getattr__(name: str) -> Any:  # each Python that has a ledger imports this package when it starts
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from op_builder.compiles import ledger_rows, watching

    return getattr(ledger_rows if name == "Start" else watching, name)
