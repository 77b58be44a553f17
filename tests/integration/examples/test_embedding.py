"""The examples of the engine in another project, in an environment that has torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.embedding.__main__ import EXAMPLES
from tests.support.foreign_package import python

ROOT = Path(__file__).resolve().parents[3]
LOWER = {
    *("cache", "engine", "recipe", "toolchains", "plan", "system"),
    *("command_line", "messages", "env", "paths", "errors"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_built_then_cached_and_imports_neither_torch_nor_a_higher_layer(
    name: str, tmp_path: Path
) -> None:
    command = ("-X", "importtime", "-m", "examples.embedding", name, "--cache", tmp_path)
    for state in ("built, because the cache contains no", "cached"):
        done = python(*command)
        assert f"{name}: [2.0, 4.0, 6.0] ({state}" in done.stdout, done.stderr
        imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
        own = {module.split(".")[1] for module in imported if module.startswith("op_builder.")}
        assert "engine" in own
        assert own <= {*LOWER, "_version"}
        assert not {"accelerator", "psutil", "rich", "xxhash", "packaging", "filelock"} & imported
        # tvm_ffi itself imports torch where it is installed.
        assert name == "tvm_ffi_op" or "torch" not in imported
