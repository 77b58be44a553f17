"""``torch/extension.h``, and its core: what is left without torch's C++ frontend.

The modules, optimizers and data loaders of the frontend are the slowest part of that header to compile,
precompiled or not, and an op hardly ever uses them. torch itself knows a macro that leaves them out, with
whatever else ``torch/all.h`` includes; the core takes the rest of it in again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from op_builder.plan import Source
from op_builder.system.torch_install import torch_install

WHOLE = "#include <torch/extension.h>\n"

# Of the headers that torch/all.h includes. serialize and jit are cheap, but serialize.h brings nn.h.
_FRONTEND = ("data", "jit", "nn", "optim", "serialize")
_WITHOUT_ALL = "TORCH_INDUCTOR_CPP_WRAPPER"

_USES_FRONTEND = re.compile(
    rf"\b(?:{'|'.join(_FRONTEND)})\s*::|\btorch\s*::\s*(?:save|load)\b"
    rf"|\btorch/(?:torch|all|{'|'.join(_FRONTEND)})\b"
)
_MISSES = re.compile(rf"\berror:.*\b(?:torch|save|load|{'|'.join(_FRONTEND)})\b")


def text_for(sources: Iterable[Source], whole: bool) -> str:
    """The text that ``sources`` are to begin with: the core, unless one of them plainly uses more.

    Args:
        whole: never the core.
    """
    return WHOLE if whole or any(_USES_FRONTEND.search(_content(source)) for source in sources) else core()


def may_miss_frontend(text: str, log: str) -> bool:
    """Whether sources that began with ``text`` and failed with ``log`` may have wanted all of the header."""
    return text != WHOLE and _MISSES.search(log) is not None


@cache
def core() -> str:
    """The text of the core; :data:`WHOLE` where the installed torch is not made as expected."""
    include = torch_install().root / "include" / "torch"
    try:
        switchable = _WITHOUT_ALL in (include / "extension.h").read_text()
        everything = (include / "csrc" / "api" / "include" / "torch" / "all.h").read_text()
    except OSError:
        return WHOLE
    kept = [name for name in re.findall(r"#include <torch/(\w+)\.h>", everything) if name not in _FRONTEND]
    if not switchable or not kept:
        return WHOLE
    lines = [f"#define {_WITHOUT_ALL}", WHOLE.rstrip(), f"#undef {_WITHOUT_ALL}"]
    return "\n".join([*lines, *(f"#include <torch/{name}.h>" for name in kept), ""])


def _content(source: Source) -> str:
    return source.text if source.text is not None else source.path.read_text(encoding="utf-8", errors="replace")
