"""SYCL ops whose kernels the SYCL runtime compiles: built, loaded and run on the SYCL CPU device."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from op_builder import build, env
from op_builder.cache.store import Cache
from op_builder.errors import CompileError, IncompatibleOpError, LoadError
from op_builder.report.machine import sycl_facts
from op_builder.report.render import sycl_rows
from op_builder.system.outcomes import failures
from op_builder.toolchains import sycl_runtime
from op_builder.toolchains.sycl_runtime import find_runtime, open_runtime, runtime_variables
from op_builder.xpu import RMSNormBuilder
from tests.support.builds import built_by_command
from tests.support.compilers import shared_library
from tests.support.sycl_ops import KERNEL, XPU_BINDING, ScaleBuilder, needs_runtime, run_with_op, write_scale

pytestmark = needs_runtime


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the op's files in ``op`` and a cache in which it is built."""
    directory = tmp_path_factory.mktemp("sycl")
    write_scale(directory / "op")
    ScaleBuilder(directory / "op", Cache(directory / "cache")).load()
    return directory


@pytest.fixture
def builder(place: Path) -> ScaleBuilder:
    return ScaleBuilder(place / "op", Cache(place / "cache"))


@pytest.fixture
def op(builder: ScaleBuilder) -> Any:
    return builder.load()


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cpu_tensor_is_changed_in_place_when_the_call_returns(op: Any, dtype: torch.dtype, length: int) -> None:
    x = torch.arange(length, dtype=dtype)
    before, address = x.clone(), x.data_ptr()
    op.scale_(x, 3.0)
    assert torch.equal(x, before * 3)
    assert x.data_ptr() == address


def kept_kernels(place: Path) -> list[Path]:
    return sorted((place / "cache" / "v1" / "sycl_kernels").rglob("*.bin"))


def test_kernels_are_compiled_by_the_build_kept_and_used_by_threads_at_once(place: Path) -> None:
    (entry,) = Cache(place / "cache").entries("sycl_scale")
    runtime = find_runtime()
    assert runtime is not None
    assert entry.manifest.needs["libsycl.so"] == str(runtime.major)
    assert entry.manifest.check.endswith("a kernel compiled")
    assert str(place).encode() not in entry.artifact.read_bytes()
    kept = kept_kernels(place)
    assert kept
    code = """
        tensors = [torch.ones(1001) for _ in range(8)]
        threads = [threading.Thread(target=op.scale_, args=(x, 2.0)) for x in tensors]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(all(torch.equal(x, torch.full((1001,), 2.0)) for x in tensors))
    """
    done = run_with_op(place, code)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert kept_kernels(place) == kept


def test_a_damaged_kernel_is_compiled_again_and_kept(place: Path, tmp_path: Path) -> None:
    write_scale(tmp_path / "op")
    shutil.copytree(place / "cache", tmp_path / "cache")
    kernels = [path for path in kept_kernels(tmp_path) if path.name == "0.bin"]
    damaged = {path: path.read_bytes()[:1000].ljust(path.stat().st_size, b"\0") for path in kernels}
    assert damaged
    for path, content in damaged.items():
        path.write_bytes(content)
    done = run_with_op(tmp_path, "x = torch.ones(3); op.scale_(x, 2.0); print(x.tolist())")
    assert (done.returncode, done.stdout) == (0, "[2.0, 2.0, 2.0]\n"), done.stderr
    kept = [path for path in kept_kernels(tmp_path) if path.name == "0.bin"]
    assert kept
    assert all(path.read_bytes() != damaged.get(path) for path in kept)


def test_a_fork_works_in_both_processes_before_the_first_use_and_is_an_error_after_it(place: Path) -> None:
    code = """
        pid = os.fork()
        x = torch.ones(3)
        op.scale_(x, 2.0)
        right = x.tolist() == [2.0, 2.0, 2.0]
        if pid == 0:
            os._exit(0 if right else 1)
        print(right, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        pid = os.fork()
        if pid == 0:
            try:
                op.scale_(x, 2.0)
            except RuntimeError as error:
                os._exit(7 if "forked" in str(error) and "spawn" in str(error) else 8)
            os._exit(9)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = run_with_op(place, code)
    assert (done.returncode, done.stdout) == (0, "True 0\n7\n"), done.stderr


def test_kernels_run_in_order_on_torchs_xpu_stream(tmp_path: Path) -> None:
    """With stand-ins for torch's functions: the stream is an in-order queue of the CPU device."""
    write_scale(tmp_path / "op", binding=XPU_BINDING)
    op = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")).load()
    for length in (1, 1001):
        x = torch.arange(float(length))
        assert op.between(x, 2.0)
        assert torch.equal(x, (torch.arange(float(length)) + 1) * 2 + 3)


def test_a_wrong_number_of_arguments_is_an_error(op: Any) -> None:
    with pytest.raises(RuntimeError, match="takes 3 arguments"):
        op.forget_(torch.ones(3), 2.0)


def test_an_error_in_a_kernel_names_its_file_and_line(tmp_path: Path) -> None:
    broken = KERNEL.replace("static_cast<T>(x[i] * a * FACTOR)", "undeclared(x[i])")
    line = next(number for number, text in enumerate(broken.splitlines(), 1) if "undeclared" in text)
    write_scale(tmp_path / "op", kernel=broken)
    with pytest.raises(CompileError) as caught:
        ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")).load()
    assert f"/scale.sycl.hpp:{line}:" in caught.value.diagnostic.splitlines()[0]
    assert "undeclared" in caught.value.diagnostic
    assert "undeclared" in Path(caught.value.log_path).read_text()
    assert Cache(tmp_path / "cache").entries("sycl_scale") == []


def test_an_edited_header_of_a_kernel_is_another_build(tmp_path: Path, op: Any) -> None:
    write_scale(tmp_path / "op", factor="10.0f")
    tenfold = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache")).load()
    x, y = torch.ones(3), torch.ones(3)
    tenfold.scale_(x, 2.0)
    op.scale_(y, 2.0)  # both builds live in this process
    assert (x.tolist(), y.tolist()) == ([20.0] * 3, [2.0] * 3)
    assert kept_kernels(tmp_path), "kept in the cache that it is built for"


def test_a_missing_device_is_an_error(place: Path) -> None:
    done = run_with_op(place, "", OCL_ICD_FILENAMES="/nowhere/libnothing.so")
    assert done.returncode != 0
    assert "has no CPU device that accepts kernels; devices: none" in done.stderr
    assert "pip install intel-opencl-rt" in done.stderr


def test_a_missing_runtime_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scale(tmp_path / "op")
    for module in ("sycl", "sycl_runtime", "sycl_ahead"):
        monkeypatch.setattr(f"op_builder.toolchains.{module}.find_runtime", lambda: None)
    builder = ScaleBuilder(tmp_path / "op", Cache(tmp_path / "cache"))
    with pytest.raises(IncompatibleOpError, match="No SYCL runtime") as caught:
        builder.load()
    assert "pip install intel-sycl-rt intel-opencl-rt" in caught.value.remedy
    assert not builder.is_compatible()


def test_the_build_command_compiles_every_kernel_ahead(place: Path, builder: ScaleBuilder) -> None:
    (outcome,) = built_by_command([builder], ["sycl_scale"], with_kernels=True)
    assert outcome.status == "cached"
    kept = kept_kernels(place)
    done = run_with_op(place, "op.scale_(torch.ones(3, dtype=torch.float64), 2.0); op.scale_(torch.ones(3), 2.0)")
    assert done.returncode == 0, done.stderr
    assert kept_kernels(place) == kept


@pytest.mark.parametrize("name", ["libsycl.so.8.0.0", "libsycl.so.90.0.0", "libsycl-preview.so.9.0.0"])
def test_a_second_runtime_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(sycl_runtime, "opened_runtimes", lambda: [f"/elsewhere/lib/{name}"])
    with pytest.raises(LoadError, match="only one"):
        open_runtime(tmp_path, "libsycl.so.9")


def test_a_broken_kernel_compiler_is_in_checks_and_report(
    builder: ScaleBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = find_runtime()
    assert runtime is not None
    broken = tmp_path / "libsycl-jit.so"
    broken.touch()
    monkeypatch.setattr("op_builder.toolchains.sycl.find_runtime", lambda: replace(runtime, kernel_compiler=broken))
    (failed,) = failures(builder.load_checks())
    assert failed.name == "SYCL kernel compiler"
    assert failed.reason.startswith(f"{broken} cannot be opened: ")
    assert "file too short" in failed.reason
    assert "--force-reinstall" in failed.remedy
    assert sycl_facts(Cache(tmp_path))["kernel_compiler"] == {"error": failed.reason, "remedy": failed.remedy}


DENY = """
#include <dlfcn.h>
#include <sycl/device.hpp>
#include <vector>

#define HAS "_ZNK4sycl3_V16device3hasENS0_6aspectE"  // sycl::device::has(aspect)

extern "C" bool deny(const sycl::device* device, sycl::aspect aspect) asm(HAS);
extern "C" bool deny(const sycl::device* device, sycl::aspect aspect) {
  using Has = bool (*)(const sycl::device*, sycl::aspect);
  // libsycl is opened for itself alone, so RTLD_NEXT would not find it.
  static const Has real = reinterpret_cast<Has>(dlsym(dlopen(LIBSYCL, RTLD_LAZY | RTLD_NOLOAD), HAS));
  return aspect != sycl::aspect::fp64 && aspect != sycl::aspect::fp16 && real(device, aspect);
}
std::vector<std::size_t> sub_group_sizes(const void*)
    asm("_ZNK4sycl3_V16device13get_info_implINS0_4info6device15sub_group_sizesEEENS0_6detail11ABINeutralTINS6_"
        "19is_device_info_descIT_E11return_typeEE4typeEv");
std::vector<std::size_t> sub_group_sizes(const void*) { return {8, 32}; }
"""


def test_a_device_without_a_type_or_a_sub_group_size_runs_only_the_other_kernels(place: Path, tmp_path: Path) -> None:
    RMSNormBuilder().load()
    code = """
        from op_builder.ops import rms_norm
        for dtype in (torch.float32, torch.float64, torch.float16, None):
            try:
                if dtype is None:
                    rms_norm(torch.ones(2, 8), torch.ones(8))
                x = torch.ones(3, dtype=dtype)
                op.scale_(x, 2.0)
                print(dtype, x.tolist())
            except RuntimeError as error:
                print(error)
    """
    runtime = find_runtime()
    assert runtime is not None
    # Every device reports that it has neither double nor half, and only sub-groups of 8 and 32.
    options = ("-std=c++17", "-isystem", str(runtime.include_dir), f'-DLIBSYCL="{runtime.soname}"')
    done = run_with_op(place, code, LD_PRELOAD=str(shared_library(tmp_path / "libdeny.so", DENY, *options)))
    assert done.stdout.startswith("torch.float32 [2.0, 2.0, 2.0]\n"), done.stderr
    assert done.stdout.count("[2.0") == 1
    assert "Kernel tests::scale<double> computes in double (fp64)" in done.stdout
    assert "Kernel tests::scale<::sycl::half> computes in half (fp16)" in done.stdout
    assert re.search(r"rms_norm<float, float, false> works by sub-groups of 16 work-items, which .* does", done.stdout)


def test_sycl_code_in_the_sources_needs_icpx(tmp_path: Path) -> None:
    write_scale(tmp_path / "op")

    class Whole(ScaleBuilder):
        def kernel_sources(self) -> list[str]:
            return []

    whole = Whole(tmp_path / "op", Cache(tmp_path / "cache"))
    (failed,) = failures(whole.spec().build_checks(whole.cache, whole.plan))
    assert failed.name == "SYCL toolchain"
    assert failed.reason.startswith("icpx: ")


def test_the_report_lists_toolchains_and_devices(tmp_path: Path) -> None:
    facts = json.loads(json.dumps(sycl_facts(Cache(tmp_path))))
    chosen = {found["name"]: found["chosen"] for found in facts["toolchains"]}
    assert chosen == {"icpx": False, "ipex": False, "sycl-rtc": True}
    assert all(found["reason"] and found["remedy"] for found in facts["toolchains"] if not found["accepted"])
    assert [device["kind"] for device in facts["devices"]] == ["cpu"]
    assert facts["kernel_compiler"]["devices"] == [facts["devices"][0]["name"]]
    shown = {name: str(value) for name, value in sycl_rows(facts)}
    assert shown["sycl-rtc"].startswith("selected: libsycl ")
    assert facts["devices"][0]["driver"] in shown["device (cpu)"]


@pytest.mark.usefixtures("op")
def test_a_users_variables_are_kept_and_those_of_an_opened_op_give_way_to_another_cache(tmp_path: Path) -> None:
    """A child process inherits them."""
    runtime = find_runtime()
    assert "SYCL_CACHE_DIR" in env.child_environment()
    with env.scope(OCL_ICD_FILENAMES=None):
        inherited = runtime_variables(runtime, tmp_path)
    assert inherited["SYCL_CACHE_DIR"] == str(tmp_path)
    assert inherited["OCL_ICD_FILENAMES"].endswith("libintelocl.so")
    with env.scope(SYCL_CACHE_DIR="/mine", OCL_ICD_FILENAMES="/my/driver.so"):
        assert set(runtime_variables(runtime, tmp_path)) == {"SYCL_CACHE_PERSISTENT"}


def test_the_build_command_reports_kernels_that_were_not_compiled(
    builder: ScaleBuilder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("op_builder.build.find_op", lambda *_: builder.spec())
    with env.scope(OCL_ICD_FILENAMES="/nowhere/libnothing.so", ACCEL_CACHE_DIR=str(builder.cache.root)):
        assert build.main(["sycl_scale", "--json"]) == 0
        (op,) = json.loads(capsys.readouterr().out)["ops"]
        assert build.main(["sycl_scale"]) == 0
    assert (op["status"], op["path"] != "") == ("cached", True)
    assert op["message"].startswith("kernels not compiled: No SYCL CPU device was found; devices: none")
    assert "kernels not compiled: No SYCL CPU device was found" in " ".join(capsys.readouterr().out.split())
