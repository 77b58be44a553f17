"""A program that loads an op by the whole sentence and prints, as JSON, what the sentence and its ``load()`` did.

``python -m tests.support.followed_load [BUILDER]``; by default it loads CPU Adam.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch  # noqa: F401  (a program has imported it before it loads ops)

OWN = tuple(str(Path(__file__).resolve().parents[2] / name) for name in ("accelerator", "op_builder"))
COUNTED = {"plan": "plan_of", "key": "plan_key", "look-up": "matching"}


class Follower:
    """Records the calls of this project's functions while it is installed as a profiler."""

    def __init__(self) -> None:
        self.frames: dict[int, FrameType] = {}  # kept, because a generator's is entered several times

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        # Comprehensions and the bodies of modules and classes are no functions.
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(OWN):
            self.frames[id(frame)] = frame

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """How often each function, by its file and name, was called."""
        codes = (frame.f_code for frame in self.frames.values())
        return Counter((code.co_filename.removeprefix(f"{Path(OWN[0]).parent}/"), code.co_name) for code in codes)

    @property
    def counts(self) -> dict[str, int]:
        """How often it made a plan, computed a key and looked into the cache."""
        return {what: sum(n for (_, name), n in self.calls.items() if name == one) for what, one in COUNTED.items()}

    def __enter__(self) -> Follower:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def main() -> None:
    from accelerator import get_accelerator

    with Follower() as creation:
        builder = get_accelerator().create_op_builder(*(sys.argv[1:] or ["CPUAdamBuilder"]))
    with Follower() as load:
        builder.load()
    sentence = creation.calls + load.calls
    modules = [name for name in sys.modules if name.partition(".")[0] in ("accelerator", "op_builder")]
    counts = {what: creation.counts[what] + load.counts[what] for what in COUNTED}
    followed: dict[str, Any] = {"counts": counts, "modules": sorted(modules)}
    for what, calls in (("load", load.calls), ("sentence", sentence)):
        followed[what] = {
            "files": sorted({file for file, _ in calls}),
            "functions": sorted({f"{file}:{name}" for file, name in calls}),
        }
    print(json.dumps(followed))


if __name__ == "__main__":
    main()
