"""The hooks of a watched Python process.

Every Python whose environment names a ledger imports this module first (``accel_ops.pth``), so it imports little: the
rest follows when a program starts.
"""

from __future__ import annotations

import sys

from op_builder.system.after_import import AfterImport

TYPE_CHECKING = False  # importing typing would take longer than this module
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

# Python audits thousands of other events in ``import torch``.
_STARTS = frozenset(("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"))

_is_hooked = False


def note(is_preloaded: bool = False) -> None:
    """Note the starts of programs by this process, and what Triton compiles in it, as long as there is a ledger.

    Args:
        is_preloaded: ``LD_PRELOAD`` names the recorder already, so that children load it.
    """
    global _is_hooked
    if not is_preloaded:  # a launcher may have replaced the variable
        from op_builder.compiles import starts

        starts.preload()
    if _is_hooked:
        return
    _is_hooked = True  # an audit hook cannot be removed
    sys.addaudithook(_on_event)
    triton = sys.modules.get("triton.knobs")
    if triton is not None:
        _listen(triton)
    else:
        sys.meta_path.insert(0, AfterImport("triton.knobs", _listen))


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS and not sys.is_finalizing():  # then nothing can be imported; the recorder notes the start
        from op_builder.compiles import starts

        starts.note_start(event, arguments, sys._getframe(1))


def _listen(knobs: ModuleType) -> None:
    from op_builder.compiles import starts

    starts.listen(knobs)
