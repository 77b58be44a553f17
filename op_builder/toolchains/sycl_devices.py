"""The SYCL devices of this machine, as their drivers list them in a child process.

A driver stays loaded and starts threads, so it must not be loaded in a process that may fork. OpenCL devices are listed
through OpenCL's C interface, which needs no compiler; Intel GPUs, with an XPU build of torch, by torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.system.interpreter import bare_command
from op_builder.system.process import run
from op_builder.system.records import Memo, Schema, is_flag, is_text, objects_of
from op_builder.toolchains.sycl_runtime import SyclRuntime, runtime_variables

_TIMEOUT_S = 120.0
_MARK = "accel-ops: devices"
_COMPILER_MARK = "accel-ops: kernel compiler"

_CHILD = f"""
import ctypes, json, sys
compiler, *libraries = sys.argv[1:]
for library in libraries:
    cl = ctypes.CDLL(library)
def listed(call, *first):
    count = ctypes.c_uint(0)
    if call(*first, 0, None, ctypes.byref(count)) != 0 or count.value == 0:
        return []
    found = (ctypes.c_void_p * count.value)()
    call(*first, count, found, None)
    return [ctypes.c_void_p(handle) for handle in found]
def text(call, handle, number):
    size = ctypes.c_size_t(0)
    if call(handle, number, ctypes.c_size_t(0), None, ctypes.byref(size)) != 0:
        return ""
    room = ctypes.create_string_buffer(size.value + 1)
    call(handle, number, size, room, None)
    return room.value.decode(errors="replace").strip()
def kind(handle):
    bits = ctypes.c_uint64(0)
    cl.clGetDeviceInfo(handle, 0x1000, ctypes.c_size_t(8), ctypes.byref(bits), None)
    return "cpu" if bits.value & 2 else "gpu" if bits.value & 4 else "other"
devices = []
for platform in listed(cl.clGetPlatformIDs):
    for device in listed(cl.clGetDeviceIDs, platform, ctypes.c_uint64(0xFFFFFFFF)):
        ask = lambda number: text(cl.clGetDeviceInfo, device, number)
        words = ask(0x1030).split()
        devices.append(dict(
            platform=text(cl.clGetPlatformInfo, platform, 0x0902), name=ask(0x102B), driver=ask(0x102D),
            kind=kind(device), fp16="cl_khr_fp16" in words, fp64="cl_khr_fp64" in words,
            takes_kernels="SPIR-V" in ask(0x105B),
        ))
print({_MARK!r}, json.dumps(devices), flush=True)
refused = ""
try:
    if compiler:
        ctypes.CDLL(compiler)
except OSError as error:
    refused = str(error)
print({_COMPILER_MARK!r}, json.dumps(refused))
"""


@dataclass(frozen=True)
class SyclDevice:
    """A device that the SYCL runtime has.

    Attributes:
        platform, name, driver: as its driver reports them.
        kind: ``cpu``, ``gpu`` or ``other``.
        fp16, fp64: whether it computes in half and double precision.
        takes_kernels: whether its driver takes kernels that were compiled at run time (SPIR-V).
    """

    platform: str
    name: str
    driver: str
    kind: str
    fp16: bool
    fp64: bool
    takes_kernels: bool


_DEVICE: Schema = {name: is_flag if kind == "bool" else is_text for name, kind in SyclDevice.__annotations__.items()}
_ANSWER: Schema = {"devices": objects_of(_DEVICE), "compiler_failure": is_text}


@dataclass(frozen=True)
class DevicesAnswer:
    """The devices, or why they could not be listed; and why an installed kernel compiler cannot be opened."""

    devices: tuple[SyclDevice, ...]
    failure: str = ""
    compiler_failure: str = ""


def opencl_devices(runtime: SyclRuntime, memo: Memo) -> DevicesAnswer:
    """The OpenCL devices that ``runtime`` finds, and whether its kernel compiler can be opened.

    An answer with a device and without a failure is remembered.
    """
    library = runtime.library_dir / "libOpenCL.so.1"
    # It finds Intel's math library only if another library has opened it; the runtime's loader does.
    preloaded = sorted(runtime.library_dir.glob("libur_loader.so.*"))[:1]
    files = [library, *Path("/etc/OpenCL/vendors").glob("*.icd")]
    files += [path for path in (runtime.opencl_cpu, runtime.kernel_compiler) if path is not None]
    variables = runtime_variables(runtime, None)
    compiler = str(runtime.kernel_compiler or "")
    drivers = env.OCL_ICD_FILENAMES.raw() or variables.get(env.OCL_ICD_FILENAMES.name, "")
    subject = f"sycl devices, kernel compiler: {runtime.prefix} {runtime.version} {drivers} {compiler}"

    def compute() -> tuple[dict[str, Any], list[str]]:
        child = run(
            bare_command(_CHILD, compiler, *map(str, preloaded), str(library)),
            timeout_s=_TIMEOUT_S,
            environment=env.child_environment(**variables),
        )
        last = (child.errors.strip().splitlines() or [f"status {child.code}"])[-1]
        output, opened, refused = child.output.partition(_COMPILER_MARK)
        _, mark, listed = output.rpartition(_MARK)
        if not mark:
            raise ToolchainError(f"{library} did not answer: {last}")
        fact = {"devices": json.loads(listed), "compiler_failure": json.loads(refused) if opened else last}
        # Only a complete answer is kept: what is missing may be installed the next moment.
        is_whole = fact["devices"] and not fact["compiler_failure"]
        return fact, [str(path) for path in files] if is_whole else ["/nothing"]

    try:
        fact = memo.get(subject, _ANSWER, compute)
    except ToolchainError as error:
        return DevicesAnswer((), error.message)
    devices = tuple(SyclDevice(**device) for device in fact["devices"])
    return DevicesAnswer(devices, compiler_failure=fact["compiler_failure"])
