"""Finding compilers: what is there, what it is, and what to say when it is not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from pathlib import Path

import psutil
import pytest

from op_builder import env
from op_builder.errors import MissingCUDAException, ToolchainError
from op_builder.system.process import run
from op_builder.system.records import Memo
from op_builder.system.torch_install import torch_install
from op_builder.toolchains.checks import cxx_check
from op_builder.toolchains.cuda import find_cuda
from op_builder.toolchains.toolset import find_cxx
from tests.support.compilers import needs_gxx, program
from tests.support.small_ops import SmallBuilder, replace_content

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


@pytest.fixture
def memo(tmp_path: Path) -> Memo:
    return Memo(tmp_path / "memo")


def test_the_script_that_runs_ziglang_is_identified_by_what_it_runs(
    tmp_path: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with env.scope(CXX="/bin/accel-c++"):
        if importlib.util.find_spec("ziglang") is None:
            with pytest.raises(ToolchainError, match="package ziglang"):
                find_cxx(memo)
        zig = program(tmp_path / "ziglang" / "zig", 'echo "clang version 22.1.8"')
        (zig.parent / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        assert find_cxx(memo).path == str(zig)


@needs_gxx
def test_launcher_words_before_the_compiler_are_kept(tmp_path: Path, memo: Memo) -> None:
    launcher = program(tmp_path / "bin" / "launcher", 'exec "$@"')
    with env.scope(CXX=f"{launcher} g++"):
        compiler = find_cxx(memo)
    assert compiler.command[0] == str(launcher)
    assert compiler.command[1] == "g++"
    assert compiler.path == os.path.realpath(str(shutil.which("g++")))


@needs_gxx
def test_a_wrapper_is_asked_each_question_once_for_each_path(tmp_path: Path) -> None:
    log = tmp_path / "log"
    wrapper = program(tmp_path / "wrapper", f'echo "$PATH $*" >> {log}\nexec g++ "$@"')
    for path in (os.environ["PATH"], f"{tmp_path}:{os.environ['PATH']}"):
        for _ in range(2):  # each with a memo as in a new process
            with env.scope(CXX=str(wrapper), PATH=path):
                find_cxx(Memo(tmp_path / "memo"))
    questions = log.read_text().splitlines()
    assert len(questions) == len(set(questions))
    assert len([line for line in questions if line.endswith("--version")]) == 2


def test_the_nvcc_that_path_selects_for_a_wrapper_counts(tmp_path: Path, memo: Memo) -> None:
    program(tmp_path / "home" / "bin" / "nvcc", 'selected "$@"')
    versions = []
    for version in (12, 13):
        program(tmp_path / str(version) / "selected", NVCC.format(version))
        path = f"{tmp_path / str(version)}:{os.environ['PATH']}"
        with env.scope(CUDA_HOME=str(tmp_path / "home"), PATH=path):
            versions.append(find_cuda(memo).version[0])
    assert versions == [12, 13]


def test_flags_of_two_words_stay_whole(small: SmallBuilder) -> None:
    small.flags = ["-isystem", "/usr/include", "-D", "VALUE=5", "-x", "c++", "-UVALUE", "-O2"]
    assert cxx_check(small.plan(), small.cache.memo)


@needs_gxx
def test_a_linker_that_fails_is_quoted_and_a_success_counts_for_its_flags_alone(small: SmallBuilder) -> None:
    with env.scope(CXX="g++"):
        assert cxx_check(small.plan(), small.cache.memo)
    with env.scope(CXX="g++ -lacme_nowhere"), pytest.raises(ToolchainError, match="find -lacme_nowhere") as caught:
        cxx_check(small.plan(), small.cache.memo)
    assert "collect2" not in caught.value.message


@needs_nvcc
def test_toolkit_behind_a_wrapper_is_found(tmp_path: Path, memo: Memo) -> None:
    real = shutil.which("nvcc")
    program(tmp_path / "bin" / "nvcc", f'exec {real} "$@"')
    with env.scope(CUDA_HOME=None, CUDA_PATH=None, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}"):
        toolkit = find_cuda(memo)
    assert toolkit.nvcc == str(tmp_path / "bin" / "nvcc")
    assert (toolkit.home / "include" / "cuda_runtime.h").is_file()
    assert toolkit.library_dir.is_dir()
    assert toolkit.version >= (11, 0)
    assert (9, 0) in toolkit.archs


NVCC = """case "$*" in
*--version*) echo "Cuda compilation tools, release {0}.1, V{0}.1.2" ;;
*) echo "#$ TOP=$(dirname "$0")/.." ;;
esac"""


@pytest.mark.parametrize("part", ["bin/nvcc.profile", "bin/fatbinary", "nvvm/libdevice/libdevice.10.bc"])
def test_what_nvcc_runs_and_reads_counts(tmp_path: Path, memo: Memo, part: str) -> None:
    program(tmp_path / "bin" / "nvcc", NVCC.format(13))
    digests = set()
    with env.scope(CUDA_HOME=str(tmp_path)):
        for text in ("", "1", "2"):
            if text:  # it appears, then changes
                (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / part).write_text(text)
            digests.add(find_cuda(memo, for_torch=False).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("system", "wheels", "of_torch", "found"),
    [
        (None, [13], "12.8", "wheel 13"),
        (None, [13, 14], "13.0", "wheel 13"),
        (None, [13, 14], None, "wheel 14"),
        (12, [13], "12.8", "system 12"),
        (12, [13], "13.0", "wheel 13"),
        (13, [13], "13.0", "system 13"),
        (12, [], "13.0", "system 12"),
    ],
)
def test_wheels_give_the_toolkit_if_the_systems_is_missing_or_unfit(
    tmp_path: Path,
    memo: Memo,
    monkeypatch: pytest.MonkeyPatch,
    system: int | None,
    wheels: list[int],
    of_torch: str | None,
    found: str,
) -> None:
    monkeypatch.setattr("op_builder.toolchains.cuda.USUAL_HOME", tmp_path / "none")
    monkeypatch.setattr("op_builder.toolchains.cuda.torch_install", lambda: torch_install()._replace(cuda=of_torch))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for major in wheels:
        program(tmp_path / "site" / "nvidia" / f"cu{major}" / "bin" / "nvcc", NVCC.format(major))
    if system is not None:
        program(tmp_path / "system" / "bin" / "nvcc", NVCC.format(system))
    with env.scope(CUDA_HOME=None, CUDA_PATH=None, PATH=f"{tmp_path / 'system' / 'bin'}:/usr/bin:/bin"):
        toolkit = find_cuda(memo)
    place = "wheel" if "nvidia" in toolkit.home.parts else "system"
    assert f"{place} {toolkit.version[0]}" == found


@pytest.mark.parametrize(
    ("home", "of_torch", "message"),
    [
        (None, None, r"No CUDA toolkit[\s\S]*nvvm\]'`"),
        (None, "13.0", r"No CUDA toolkit[\s\S]*nvvm\]==13\.0\.\*'"),
        (None, "12.8", r"No CUDA toolkit[\s\S]*Install the CUDA toolkit 12\.8 and"),
        ("empty", "13.0", "CUDA_HOME='empty"),
        ("x" * 300, "13.0", "CUDA_HOME='xxx"),  # which the system refuses
    ],
)
def test_a_missing_toolkit_is_reported_with_the_version_that_torch_needs(
    tmp_path: Path, memo: Memo, monkeypatch: pytest.MonkeyPatch, home: str | None, of_torch: str | None, message: str
) -> None:
    monkeypatch.setattr("op_builder.toolchains.cuda.USUAL_HOME", tmp_path)
    monkeypatch.setattr("op_builder.toolchains.cuda.torch_install", lambda: torch_install()._replace(cuda=of_torch))
    with (
        env.scope(CUDA_HOME=home, CUDA_PATH=None, PATH=str(tmp_path)),
        pytest.raises(MissingCUDAException, match=message),
    ):
        find_cuda(memo)


def test_a_tool_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "wrapper", f"sleep 600 &\necho $! > {tmp_path}/child\nwait")
    with pytest.raises(ToolchainError, match="did not end"):
        run([str(wrapper)], timeout_s=5)  # the shell needs some of it to begin
    child = int((tmp_path / "child").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        # It is killed at once, but exists until its new parent reaps it.
        psutil.Process(child).wait(timeout=60)


def test_a_server_that_a_tool_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    # As a compiler launcher does that starts its cache's server.
    launcher = program(tmp_path / "launcher", f"sleep 600 &\necho $! > {tmp_path}/server\necho 1.0\necho careful >&2")
    done = run([str(launcher)], timeout_s=60)
    server = psutil.Process(int((tmp_path / "server").read_text()))
    try:
        assert (done.code, done.output, done.errors) == (0, "1.0\n", "careful\n")
        assert server.status() != psutil.STATUS_ZOMBIE
    finally:
        server.kill()


@needs_gxx
def test_the_configuration_file_that_clang_reads_counts(tmp_path: Path, memo: Memo) -> None:
    settings = tmp_path / "clang.cfg"
    settings.write_text("-DVAL=1")
    answer = f'echo "clang version 19.1.0"; echo "Configuration file: {settings}"'
    body = f'case "$*" in *--version*) {answer};; *) exec {shutil.which("g++")} "$@";; esac'
    with env.scope(CXX=str(program(tmp_path / "clang++", body))):
        before = find_cxx(memo).identity
        replace_content(settings, b"-DVAL=2")
        assert find_cxx(memo).identity != before
