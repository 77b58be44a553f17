"""The table of ops: each once, with its builder, its sources for each device, and what ``load()`` returns.

Everything else that lists ops is made from this table or checked against it: the packages ``op_builder.cpu``, ``cuda``,
``xpu`` and ``host``, ``ALL_OPS``, the report, the switches ``ACCEL_BUILD_<OP>``, uv's cache keys in ``pyproject.toml``
and the table in ``README.md`` (``python -m op_builder.catalog`` prints it).
"""

from __future__ import annotations

from typing import NamedTuple


class Op(NamedTuple):
    """One op.

    Attributes:
        name: as in ``OpBuilder.NAME``.
        builder: its builder's name; the class is the same on every device with the same kernels.
        summary: one line for the report and the documentation.
        module: the class below ``op_builder.ops`` whose object ``load()`` returns.
        sources: C++ files of the kernels in host memory, below ``csrc/kernels``. The binding is
            ``csrc/bindings/<name>.cpp``. Those that take longest come first, so that no core waits for them at the end.
        cuda: files of the CUDA kernels, below ``csrc/kernels/cuda``; one binary then serves CPU and CUDA tensors.
        sycl: whether there are SYCL kernels: ``kernels_sycl/kernels/<name>.sycl.hpp``, with a binding of their own.
        works_anywhere: whether its tensors are in host memory whatever the device, so that every device has the op.
        base: the class in :mod:`op_builder.catalog.native` with what is the op's own, if it has any.
        front_ends: what users import from ``op_builder.ops``, and the module there that has it.
    """

    name: str
    builder: str
    summary: str
    module: str
    sources: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    sycl: bool = False
    works_anywhere: bool = False
    base: str = "NativeOpBuilder"
    front_ends: tuple[tuple[str, str], ...] = ()

    @property
    def build_variable(self) -> str:
        """The variable that asks for it in a prebuild."""
        return f"ACCEL_BUILD_{self.name.upper()}"

    def kernels_for(self, device: str) -> str | None:
        """Which of its kernels serve ``device``: those of ``cpu``, ``cuda`` or ``xpu``; None where none do."""
        if self.works_anywhere:
            return "cpu"
        here = {"cpu": bool(self.sources), "cuda": bool(self.cuda), "xpu": self.sycl}
        return device if here.get(device) else None

    @property
    def devices(self) -> list[str]:
        """The devices with kernels of their own."""
        return [device for device in DEVICES if self.kernels_for(device)]


DEVICES = ("cpu", "cuda", "xpu")

_EVERY_OPTIMIZER = ("cpu/norm.cpp", "cpu/isa.cpp")
_AIO = ("pump", "handle", "thread_queue", "operation", "file", "linux_aio_queue", "uring_queue", "queue")

OPS = (
    Op(
        "cpu_adam",
        "CPUAdamBuilder",
        "Adam and AdamW with parameters and states in host memory",
        "optim.host_op.HostOp",
        sources=("cpu/adam.cpp", *_EVERY_OPTIMIZER),
        works_anywhere=True,
        front_ends=(("CPUAdam", "optim.cpu_adam"),),
    ),
    Op(
        "cpu_amsgrad",
        "CPUAmsgradBuilder",
        "Adam and AdamW with amsgrad, with parameters and states in host memory",
        "optim.host_op.HostOp",
        sources=("cpu/amsgrad.cpp", *_EVERY_OPTIMIZER),
        works_anywhere=True,
    ),
    Op(
        "cpu_adagrad",
        "CPUAdagradBuilder",
        "Adagrad with parameters and states in host memory",
        "optim.host_op.HostOp",
        sources=("cpu/adagrad.cpp", *_EVERY_OPTIMIZER),
        works_anywhere=True,
        front_ends=(("CPUAdagrad", "optim.cpu_adagrad"),),
    ),
    Op(
        "cpu_lion",
        "CPULionBuilder",
        "Lion with parameters and states in host memory",
        "optim.host_op.HostOp",
        sources=("cpu/lion.cpp", *_EVERY_OPTIMIZER),
        works_anywhere=True,
        front_ends=(("CPULion", "optim.cpu_lion"),),
    ),
    Op(
        "cpu_lamb",
        "CPULambBuilder",
        "LAMB with parameters and states in host memory",
        "optim.host_op.HostOp",
        sources=("cpu/lamb.cpp", *_EVERY_OPTIMIZER),
        works_anywhere=True,
        front_ends=(("CPULamb", "optim.cpu_lamb"),),
    ),
    Op(
        "cpu_sgd",
        "CPUSGDBuilder",
        "SGD with momentum with parameters and states in host memory",
        "optim.host_op.HostOp",
        sources=("cpu/sgd.cpp", *_EVERY_OPTIMIZER),
        works_anywhere=True,
        front_ends=(("CPUSGD", "optim.cpu_sgd"),),
    ),
    Op(
        "fused_adam",
        "FusedAdamBuilder",
        "Adam and AdamW over many tensors in one kernel on the device",
        "optim.fused_op.FusedOp",
        sources=("cpu/adam.cpp", *_EVERY_OPTIMIZER),
        cuda=("fused_adam.cu", "multi_tensor.cu"),
        sycl=True,
        front_ends=(("FusedAdam", "optim.fused_adam"), ("SYCLFusedAdam", "functional.sycl")),
    ),
    Op(
        "fused_amsgrad",
        "FusedAmsgradBuilder",
        "Adam and AdamW with amsgrad over many tensors in one kernel on the device",
        "optim.fused_op.FusedOp",
        sources=("cpu/amsgrad.cpp", *_EVERY_OPTIMIZER),
        cuda=("fused_amsgrad.cu", "multi_tensor.cu"),
    ),
    Op(
        "fused_lion",
        "FusedLionBuilder",
        "Lion over many tensors in one kernel on the device",
        "optim.fused_op.FusedOp",
        sources=("cpu/lion.cpp", *_EVERY_OPTIMIZER),
        cuda=("fused_lion.cu", "multi_tensor.cu"),
        sycl=True,
        front_ends=(("FusedLion", "optim.fused_lion"), ("SYCLFusedLion", "functional.sycl")),
    ),
    Op(
        "fused_lamb",
        "FusedLambBuilder",
        "LAMB over many tensors in a few kernels on the device",
        "optim.fused_op.FusedOp",
        sources=("cpu/lamb.cpp", *_EVERY_OPTIMIZER),
        cuda=("fused_lamb.cu", "multi_tensor.cu"),
        front_ends=(("FusedLamb", "optim.fused_lamb"),),
    ),
    Op(
        "async_io",
        "AsyncIOBuilder",
        "tensors to and from files, asynchronously",
        "io.async_io.AsyncIOModule",
        sources=(*(f"aio/{name}.cpp" for name in _AIO), "memory/pages.cpp"),
        works_anywhere=True,
        base="AsyncIOBase",
        front_ends=(("TensorStore", "io.tensor_store"),),
    ),
    Op(
        "pin_memory",
        "PinMemoryBuilder",
        "page-locked host memory",
        "io.pin_memory.PinMemoryModule",
        sources=("memory/pages.cpp",),
        works_anywhere=True,
    ),
    Op(
        "shm_comm",
        "ShareMemCommBuilder",
        "collectives between the CPU ranks of one host through shared memory",
        "comm.shm_comm.ShareMemCommModule",
        sources=("comm/reduce.cpp", "comm/collectives.cpp", "comm/group.cpp", "comm/segment.cpp", "cpu/isa.cpp"),
        works_anywhere=True,
        base="SharedMemoryBase",
    ),
    Op(
        "ccl_comm",
        "CCLCommBuilder",
        "collectives between CPU ranks through oneCCL",
        "comm.ccl_comm.CCLCommModule",
        sources=("ccl/communicator.cpp",),
        works_anywhere=True,
        base="OneCCLBase",
    ),
    Op(
        "pack_bits",
        "PackBitsBuilder",
        "bytes to bits and back",
        "functional.pack_bits.PackBitsModule",
        sycl=True,
        front_ends=(("packbits", "functional.registration"), ("unpackbits", "functional.registration")),
    ),
    Op(
        "block_quantize",
        "BlockQuantizeBuilder",
        "quantization by blocks to eight or four bits, and back",
        "functional.block_quantize.BlockQuantizeModule",
        sycl=True,
        front_ends=(
            ("quantize_blocks", "functional.registration"),
            ("dequantize_blocks", "functional.registration"),
        ),
    ),
    Op(
        "rms_norm",
        "RMSNormBuilder",
        "RMSNorm of rows, with a residual added before",
        "functional.rms_norm.RMSNormModule",
        sycl=True,
        front_ends=(("rms_norm", "functional.registration"),),
    ),
)


def op_of(builder: str) -> Op | None:
    """The op with a builder of that name."""
    return next((op for op in OPS if op.builder == builder), None)


def builder_names(device: str) -> list[str]:
    """The builders of the ops that ``device`` has."""
    return sorted(op.builder for op in OPS if op.kernels_for(device))


def markdown_table() -> str:
    """The table for the documentation."""
    lines = ["| op | builder | devices | what it does |", "|---|---|---|---|"]
    for op in OPS:
        devices = "all (host memory)" if op.works_anywhere else ", ".join(op.devices)
        lines.append(f"| `{op.name}` | `{op.builder}` | {devices} | {op.summary} |")
    return "\n".join(lines) + "\n"


def cache_keys() -> str:
    """The lines of uv's cache keys in ``pyproject.toml`` that name the ops' switches."""
    return "".join(f'  {{ env = "{variable}" }},\n' for variable in sorted(op.build_variable for op in OPS))
