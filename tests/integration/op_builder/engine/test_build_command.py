"""``python -m op_builder.build``: parallel builds, the summary and the exit status."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from op_builder import env
from op_builder.build import Batch, OpResult, main
from op_builder.cache.staging import sweep
from op_builder.cache.store import Cache
from op_builder.spec import OpSpec
from tests.support.builds import built_by_command
from tests.support.compilers import EndlessCompiler, needs_gxx, program
from tests.support.foreign_package import ROOT, python
from tests.support.small_ops import STABLE_SOURCE, SmallBuilder, make_small
from tests.support.waiting import wait_until


def named(name: str, directory: Path, cache: Cache, source: str = STABLE_SOURCE) -> SmallBuilder:
    make_small(directory, cache, source=source)
    return type(f"{name}Builder", (SmallBuilder,), {"NAME": name})(directory, cache)


def outcomes_of(*ops: SmallBuilder, is_required: bool = True) -> list[OpResult]:
    required = [op.name for op in ops] if is_required else []
    return built_by_command(ops, required)


def test_a_failed_op_does_not_affect_the_others(tmp_path: Path, cache: Cache) -> None:
    good, other = named("good", tmp_path / "a", cache), named("other", tmp_path / "c", cache)
    broken = named("broken", tmp_path / "b", cache, "#error on purpose\n")
    odd = named("odd", tmp_path / "d", cache)
    odd.build_checks = lambda: {}["odd"]  # type: ignore[method-assign]
    steps: list[tuple[str, int, int, str]] = []
    ops = [good, broken, odd, other]
    outcomes = built_by_command(ops, ["good"], progress=lambda *step: steps.append(step))
    assert [outcome.status for outcome in outcomes] == ["built", "failed", "skipped", "built"]
    assert "on purpose" in outcomes[1].message
    assert "KeyError: 'odd'" in outcomes[2].message
    assert ("good", 4, 4, "link good.so") in steps
    again = outcomes_of(good, other)
    assert {outcome.status for outcome in again} == {"cached"}
    assert all(Path(outcome.path).is_file() for outcome in again)


@needs_gxx
@pytest.mark.parametrize(
    ("max_jobs", "free_mib", "most"), [("1", 1 << 20, 1), (None, 900, 2)], ids=["ACCEL_MAX_JOBS", "memory"]
)
def test_all_ops_together_run_no_more_compilers_than_allowed(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch, max_jobs: str | None, free_mib: int, most: int
) -> None:
    monkeypatch.setattr("op_builder.toolchains.jobs.available_cores", lambda *_: 4)
    monkeypatch.setattr("op_builder.toolchains.jobs.available_memory_bytes", lambda *_: free_mib << 20)
    ops = [named(name, tmp_path / name, cache, "#error on purpose\n") for name in ("one", "two", "three")]
    for number, op in enumerate(ops, start=1):
        op.files = [f"part{part}.cpp" for part in range(number)]
        for file in op.files:
            (op.directory / file).write_text("int nothing;\n")
    log = tmp_path / "log"
    counted = f'echo + >>{log}; g++ "$@"; status=$?; sleep 0.2; echo - >>{log}; exit $status'
    compiler = program(tmp_path / "counting-g++", f'case "$*" in *.o.d*) {counted};; *) exec g++ "$@";; esac')
    with env.scope(CXX=str(compiler), ACCEL_MAX_JOBS=max_jobs):
        outcomes_of(*ops)
    signs = [1 if sign == "+" else -1 for sign in log.read_text().split()]
    assert signs.count(1) == signs.count(-1) == 1 + 2 + 3
    assert max(itertools.accumulate(signs)) <= most


@needs_gxx
@pytest.mark.parametrize(("required", "status"), [(True, "failed"), (False, "skipped")])
def test_an_incompatible_op_fails_only_if_required(
    small: SmallBuilder, tmp_path: Path, required: bool, status: str
) -> None:
    with env.scope(PATH=str(tmp_path), CXX=None):
        (outcome,) = outcomes_of(small, is_required=required)
    assert outcome.status == status
    assert "No C++ compiler" in outcome.message


def test_a_named_op_that_cannot_be_built_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CCL_ROOT", str(tmp_path))  # where no oneCCL is
    assert main(["ccl_comm"]) == 1
    assert "failed" in capsys.readouterr().out


def test_an_unknown_op_lists_the_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu_adm"]) == 2
    assert "cpu_adam" in capsys.readouterr().err


@needs_gxx
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda sign: sign.name)
def test_the_compilers_end_with_the_command(tmp_path: Path, sign: signal.Signals) -> None:
    compiler = EndlessCompiler(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "op_builder.build", "cpu_adam"],
        cwd=ROOT,
        env=env.child_environment(
            CXX=str(compiler.path), ACCEL_CACHE_DIR=str(tmp_path / "cache"), ACCEL_ACCELERATOR="cpu"
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: bool(compiler.processes()) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    process.send_signal(sign)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == (130 if sign == signal.SIGINT else -sign)
    wait_until(compiler.ended)
    staging = tmp_path / "cache" / "v1" / "staging"
    if sign == signal.SIGINT:
        assert "Interrupted" in errors
        assert "cpu_adam: cancelled" in errors
        assert "failed" not in errors
    else:
        assert sweep(tmp_path / "cache") == 1, "what it left goes with the next build, be it a second old"
    assert list(staging.iterdir()) == []
    assert Cache(tmp_path / "cache").entries() == []


@needs_gxx
@pytest.mark.slow
def test_the_compilers_end_with_the_build_of_a_wheel_which_leaves_no_files(tmp_path: Path) -> None:
    compiler, temporary, out = EndlessCompiler(tmp_path), tmp_path / "tmp", tmp_path / "out"
    temporary.mkdir()
    out.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", f"import accel_ops_build; accel_ops_build.build_wheel({str(out)!r})"],
        cwd=ROOT,
        env=env.child_environment(
            PYTHONPATH=f"{ROOT / 'build_tools'}:{ROOT}",
            CXX=str(compiler.path),
            ACCEL_CACHE_DIR=str(tmp_path / "cache"),
            TMPDIR=str(temporary),
            ACCEL_BUILD_PIN_MEMORY="1",
            ACCEL_ACCELERATOR="cpu",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(compiler.processes()) or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to the whole group
    process.communicate(timeout=300)
    assert process.returncode != 0
    wait_until(compiler.ended)
    assert [*temporary.iterdir(), *out.iterdir(), *Cache(tmp_path / "cache").entries()] == []


@needs_gxx
def test_the_build_command_ends_with_the_cause(tmp_path: Path) -> None:
    program(tmp_path / "cxx", 'case "$*" in *adam*) set -- "$@" -include nowhere.h;; esac\nexec g++ "$@"')
    variables = {"CXX": str(tmp_path / "cxx"), "ACCEL_CACHE_DIR": str(tmp_path / "cache")}
    done = python("-m", "op_builder.build", "cpu_adam", **variables)
    assert done.returncode == 1
    seen = "\n".join(done.stdout.splitlines()[-10:])
    assert "fatal error: nowhere.h" in seen
    assert "package that has nowhere.h" in seen
    assert "Command: " in seen


def test_the_ops_are_those_of_the_named_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, str]] = []

    def build_none(_batch: Batch, specs: list[OpSpec]) -> list[OpResult]:
        found.extend((spec.builder, spec.device) for spec in specs)
        return []

    monkeypatch.setattr("op_builder.build.Batch.build_all", build_none)
    with env.scope(ACCEL_ACCELERATOR="xpu", DS_ACCELERATOR=None):
        assert main(["fused_adam"]) == 0
        assert found == [("FusedAdamBuilder", "xpu")]
        assert main(["--all"]) == 0
        assert found[1:].count(("FusedAdamBuilder", "xpu")) == 1


def test_the_compilers_end_when_ninja_is_killed(small: SmallBuilder, tmp_path: Path) -> None:
    compiler = EndlessCompiler(tmp_path)

    def kill_ninja() -> None:
        wait_until(lambda: bool(compiler.processes()))
        os.kill(os.getsid(compiler.processes()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_ninja)
    killer.start()
    with env.scope(CXX=str(compiler.path)):
        (outcome,) = outcomes_of(small)
    killer.join()
    assert outcome.status == "failed"
    wait_until(compiler.ended)  # a signal needs a moment
