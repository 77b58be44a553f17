"""Several users of one machine and one cache: real ops, the public interface, and no compiler for those who load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from op_builder.commands.cache import main
from tests.support.users import STRANGER, interpreter_of_all, place_for_all, run_as

pytestmark = pytest.mark.slow

GROUP, FIRST, SECOND = 4242, 65534, 12345

INLINE = """
import torch
from op_builder import Binding, load_inline
from tests.support.small_ops import STABLE_SOURCE
source = STABLE_SOURCE.replace("AMOUNT", "1").replace('#include "amount.h"', "")
op = load_inline("small", source, binding=Binding.STABLE)
values = torch.zeros(3)
op.add_(values)
print(values.tolist())
"""
LOCKED = """
import torch
from accelerator import get_accelerator
print(get_accelerator().create_op_builder("PinMemoryBuilder").load().pin_memory(torch.ones(3)).tolist())
"""
REBUILD = """
from op_builder.commands.cache import main
raise SystemExit(main(["verify", "--rebuild"]))
"""
RESULT = "[1.0, 1.0, 1.0]\n"
CLOSED = "import os\nos.umask(0o077)\n"


@pytest.fixture
def root() -> Iterator[Path]:
    interpreter_of_all()
    with place_for_all() as place:
        yield place / "cache"


def uses(user: int, code: str, root: Path, *, compiles: bool, groups: tuple[int, ...] = ()) -> str:
    """What ``code`` prints as ``user``; who compiles nothing gets no warning."""
    no_tools = {} if compiles else {"PATH": "/nonexistent", "CC": None, "CXX": None}
    done = run_as(user, CLOSED + code, groups=groups, ACCEL_CACHE_DIR=str(root), **no_tools)
    assert done.returncode == 0, done.stderr
    assert compiles or done.stderr == ""
    return done.stdout


def test_members_of_a_group_load_what_others_of_it_have_built(root: Path) -> None:
    assert main(["init", "--shared", str(GROUP), "--directory", str(root)]) == 0
    members = (GROUP,)
    assert uses(FIRST, LOCKED, root, compiles=True, groups=members) == RESULT
    assert uses(SECOND, LOCKED, root, compiles=False, groups=members) == RESULT
    assert uses(SECOND, INLINE, root, compiles=True, groups=members) == RESULT
    assert uses(FIRST, INLINE, root, compiles=False, groups=members) == RESULT
    # Everybody may read it, and only its members write it.
    assert uses(STRANGER, INLINE, root, compiles=False) == RESULT
    assert {path.stat().st_gid for path in root.glob("v1/ops/**/*")} == {GROUP}


def test_a_cache_for_readers_serves_who_may_neither_write_nor_lock(root: Path) -> None:
    assert main(["init", "--readers", "--directory", str(root)]) == 0
    assert uses(0, LOCKED, root, compiles=True) == RESULT
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert uses(STRANGER, LOCKED, root, compiles=False) == RESULT

    rebuilt = uses(STRANGER, REBUILD, root, compiles=True)
    assert "pin_memory" in rebuilt
    assert "equal" in rebuilt

    refused = run_as(STRANGER, INLINE, ACCEL_CACHE_DIR=str(root))
    assert refused.returncode == 1
    assert f"The cache directory {root} cannot be written: Permission denied" in refused.stderr
    assert "ACCEL_CACHE_DIR) that you can write" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
