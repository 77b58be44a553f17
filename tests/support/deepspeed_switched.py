"""A program for test_deepspeed.py that switches DeepSpeed to accel-ops and prints one JSON object."""

from __future__ import annotations

import json
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


if __name__ == "__main__":
    print(json.dumps(lists()))
