"""Programs for test_deepspeed.py that switch DeepSpeed to accel-ops; each prints one JSON object."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import deepspeed

NO_OPS = ("FlashAttentionBuilder", "NotImplementedBuilder", "OpBuilder")


def lists() -> dict[str, Any]:
    """The accelerators, and of each builder its package and whether it is compatible."""
    compatible, unexplained = [dict(deepspeed.ops.__compatible_ops__)], list[str]()
    from deepspeed.accelerator import get_accelerator
    from deepspeed.accelerator.real_accelerator import SUPPORTED_ACCELERATOR_LIST
    from deepspeed.ops import op_builder as theirs

    import op_builder.integrations.deepspeed as integration
    from op_builder.errors import AccelError

    def facts(name: str) -> list[Any]:
        builder = get_accelerator().create_op_builder(name)
        assert type(builder) is getattr(theirs, name), name
        facts = [type(builder).__module__.partition(".")[0], builder.is_compatible()]
        try:
            facts[1] or builder.load()
        except AccelError as error:
            unexplained.extend([] if error.message and error.remedy else [name])
        return facts

    names = [name for name in dir(theirs) if name.endswith("Builder") and name not in NO_OPS]
    builders = {name: facts(name) for name in names}
    compatible.append(dict(deepspeed.ops.__compatible_ops__))
    integration.off()
    compatible.append(dict(deepspeed.ops.__compatible_ops__))
    assert not unexplained, "no message or no remedy"
    left = {name for name in compatible[0].keys() | compatible[2] if compatible[0].get(name) != compatible[2].get(name)}
    assert not left, "off() did not restore them"
    assert compatible[1] != compatible[0], "the switch changed none"
    return {"accelerators": SUPPORTED_ACCELERATOR_LIST, "builders": builders}


def reports() -> dict[str, Any]:
    """What the reports of both sides say of each op."""
    from deepspeed import env_report

    import op_builder.integrations.deepspeed  # noqa: F401 - the switch
    from op_builder.report.__main__ import main

    def printed(call: Callable[[], object]) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            call()
        return output.getvalue()

    theirs = re.sub(r"\x1b\[\d+m", "", printed(lambda: env_report.main(False, False)))
    rows = re.findall(r"^(\w+) \.+ \[\w+\] \.+ \[(\w+)\]", theirs, re.MULTILINE)
    ours = {op["name"]: op["compatible"] for op in json.loads(printed(lambda: main(["--json"])))["ops"]}
    return {"theirs": {name: word == "OKAY" for name, word in rows}, "ours": ours}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
