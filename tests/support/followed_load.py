"""A program that loads an op by the whole sentence and prints, as JSON, what ``load()`` did.

``python -m tests.support.followed_load [BUILDER]``; by default it loads CPU Adam.
"""

from __future__ import annotations

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
        if event == "call" and code.co_filename.startswith(OWN) and not code.co_name.startswith("<"):
            self.frames[id(frame)] = frame

    @property
    def calls(self) -> Counter[tuple[str, str]]:
        """How often each function, by its file and name, was called."""
        codes = (frame.f_code for frame in self.frames.values())
        return Counter((code.co_filename.removeprefix(f"{Path(OWN[0]).parent}/"), code.co_name) for code in codes)

    def __enter__(self) -> Follower:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


def main() -> None:
    from accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(*(sys.argv[1:] or ["CPUAdamBuilder"]))
    with Follower() as followed:
        builder.load()
    counts = {
        what: sum(n for (_, name), n in followed.calls.items() if name == function)
        for what, function in COUNTED.items()
    }
    print(
        json.dumps(
            {
                "counts": counts,
                "files": sorted({file for file, _ in followed.calls}),
                "functions": sorted({f"{file}:{name}" for file, name in followed.calls}),
                "modules": sorted(
                    name for name in sys.modules if name.partition(".")[0] in ("accelerator", "op_builder")
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
