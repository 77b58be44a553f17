"""The examples of the engine in another project, in an environment that has torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.embedding.__main__ import EXAMPLES

ROOT = Path(__file__).resolve().parents[3]
LOWER = {
    *("cache", "engine", "recipe", "toolchains", "plan", "system"),
    *("command_line", "messages", "env", "paths", "errors"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_built_then_cached_and_imports_neither_torch_nor_a_higher_layer(
    name: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "examples.embedding", name, "--cache", str(tmp_path)]
    for state in ("built, because the cache contains no", "cached"):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert f"{name}: [2.0, 4.0, 6.0] ({state}" in done.stdout, done.stderr
        imported = set(re.findall(r"\| +([\w.]+)$", done.stderr, re.MULTILINE))
        own = {module.split(".")[1] for module in imported if module.startswith("op_builder.")}
        assert "engine" in own
        assert own <= {*LOWER, "_version"}
        assert not {"accelerator", "psutil", "rich", "xxhash", "packaging", "filelock"} & imported
        # tvm_ffi itself imports torch where it is installed.
        assert name == "tvm_ffi_op" or "torch" not in imported
