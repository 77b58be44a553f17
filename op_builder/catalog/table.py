"""The table of ops: each op once, with its builder, its sources for each device, and the class that ``load()`` returns.

All other lists of ops are generated from this table or checked against it: the packages ``op_builder.cpu``, ``cuda``,
``xpu`` and ``host``, ``ALL_OPS``, the report, the switches ``ACCEL_BUILD_<OP>``, uv's cache keys in ``pyproject.toml``
and the table in ``README.md`` (``python -m op_builder.catalog`` prints it).
"""

from typing import NamedTuple


class Op(NamedTuple):
    """One op.

    Attributes:
        name: as in ``OpBuilder.NAME``.
        builder: the builder's name; devices with the same kernels share the class.
        summary: one line for the report and the documentation.
        module: the class in ``op_builder.ops`` whose instance ``load()`` returns.
        sources: C++ files of the kernels for host memory, in ``csrc/kernels``; slow ones first, so that all cores
            finish together. The binding is ``csrc/bindings/<name>.cpp``.
        cuda: CUDA files in ``csrc/kernels/cuda``; the binary then supports CPU and CUDA tensors.
        sycl: whether SYCL kernels exist: ``kernels_sycl/kernels/<name>.sycl.hpp``, with a separate binding.
        on_torch: the class in ``op_builder.ops`` that implements the op with functions of torch or vendors, on devices
            without kernels; nothing is compiled then.
        works_anywhere: whether its tensors are in host memory on every device, so that every device has the op.
        base: the builder's base class in :mod:`op_builder.catalog.native`.
        front_ends: the names that users import from ``op_builder.ops``, each with its module there.
        left_out: the systems (``linux``, ``darwin``) that a build for another platform omits it for, with the reasons.
    """

    name: str
    builder: str
    summary: str
    module: str
    sources: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    sycl: bool = False
    on_torch: str = ""
    works_anywhere: bool = False
    base: str = "NativeOpBuilder"
    front_ends: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def build_variable(self) -> str:
        """The variable that requests the op in a prebuild."""
        return f"ACCEL_BUILD_{self.name.upper()}"

    def kernels_for(self, device: str) -> str | None:
        """The kernels that ``device`` uses, ``cpu``, ``cuda``, ``xpu`` or ``torch``; None if it lacks the op."""
        if self.works_anywhere:
            return "cpu"
        here = {"cpu": bool(self.sources), "cuda": bool(self.cuda), "xpu": self.sycl}
        return device if here.get(device) else "torch" if self.on_torch else None

    @property
    def is_native(self) -> bool:
        """Whether a device has kernels for it, which are compiled."""
        return bool(self.sources or self.cuda or self.sycl)

    @property
    def devices(self) -> list[str]:
        """The devices that have this op."""
        return [device for device in DEVICES if self.kernels_for(device)]


DEVICES = ("cpu", "cuda", "xpu")


def _cpu(name: str, builder: str, formula: str, front_end: str = "", module: str = "optim.host_op.HostOp") -> Op:
    """An optimizer whose parameters and states are in host memory."""
    return Op(
        f"cpu_{name}",
        f"{builder}Builder",
        f"{formula} with parameters and states in host memory",
        module,
        (f"cpu/{name}.cpp", "cpu/norm.cpp", "cpu/isa.cpp"),
        works_anywhere=True,
        front_ends=((front_end, f"optim.cpu_{name}"),) if front_end else (),
    )


def _fused(name: str, builder: str, formula: str, *front_ends: tuple[str, str], on_torch: str = "") -> Op:
    """An optimizer whose parameters and states are on the device."""
    return Op(
        f"fused_{name}",
        f"{builder}Builder",
        f"{formula} over many tensors in few kernels on the device",
        "optim.fused_op.FusedOp",
        (f"cpu/{name}.cpp", "cpu/norm.cpp", "cpu/isa.cpp"),
        cuda=(f"fused_{name}.cu", "multi_tensor.cu"),
        on_torch=on_torch,
        sycl=any(front_end.startswith("SYCL") for front_end, _ in front_ends),
        front_ends=front_ends,
    )


_AMSGRAD = "AMSGrad (Adam and AdamW)"
_AIO = ("pump", "handle", "thread_queue", "operation", "file", "linux_aio_queue", "uring_queue")

OPS = (
    _cpu("adam", "CPUAdam", "Adam and AdamW", "CPUAdam", "optim.zenflow.HostAdam"),
    _cpu("amsgrad", "CPUAmsgrad", _AMSGRAD),
    _cpu("adagrad", "CPUAdagrad", "Adagrad", "CPUAdagrad"),
    _cpu("lion", "CPULion", "Lion", "CPULion"),
    _cpu("lamb", "CPULamb", "LAMB", "CPULamb"),
    _cpu("sgd", "CPUSGD", "SGD with momentum", "CPUSGD"),
    _fused(
        "adam",
        "FusedAdam",
        "Adam and AdamW",
        ("FusedAdam", "optim.fused_adam"),
        ("SYCLFusedAdam", "optim.fused_adam"),
        on_torch="optim.vendor_adam.VendorAdam",
    ),
    _fused("amsgrad", "FusedAmsgrad", _AMSGRAD),
    _fused("lion", "FusedLion", "Lion", ("FusedLion", "optim.fused_lion"), ("SYCLFusedLion", "optim.fused_lion")),
    _fused("lamb", "FusedLamb", "LAMB", ("FusedLamb", "optim.fused_lamb")),
    Op(
        "async_io",
        "AsyncIOBuilder",
        "tensors to and from files, asynchronously",
        "io.async_io.AsyncIOModule",
        # The queues of io_uring and libaio are empty except on Linux; the threads need only POSIX.
        sources=(*(f"aio/{name}.cpp" for name in _AIO), "memory/pages.cpp"),
        works_anywhere=True,
        base="AsyncIOBase",
        front_ends=(("TensorStore", "io.tensor_store"), ("load_safetensors", "io.safetensors_file")),
    ),
    Op(
        "pin_memory",
        "PinMemoryBuilder",
        "page-locked host memory",
        "io.locked_memory.PinMemoryModule",
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
        left_out=(("darwin", "it needs memfd_create(2) and futex(2) of Linux"),),
    ),
    Op(
        "ccl_comm",
        "CCLCommBuilder",
        "collectives between CPU ranks through oneCCL",
        "comm.ccl_comm.CCLCommModule",
        sources=("ccl/communicator.cpp",),
        works_anywhere=True,
        base="OneCCLBase",
        left_out=(
            ("linux", "oneCCL's C++ functions take the types of libstdc++, and ziglang's clang has libc++"),
            ("darwin", "oneCCL is for Linux"),
        ),
    ),
    Op(
        "pack_bits",
        "PackBitsBuilder",
        "bit packing and unpacking",
        "functional.pack_bits.PackBitsModule",
        sycl=True,
        front_ends=(("packbits", "functional.registration"), ("unpackbits", "functional.registration")),
    ),
    Op(
        "block_quantize",
        "BlockQuantizeBuilder",
        "block quantization to 8 or 4 bits, and dequantization",
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
        "RMSNorm over rows, optionally with a residual added first",
        "functional.rms_norm.RMSNormModule",
        sycl=True,
        front_ends=(("rms_norm", "functional.registration"),),
    ),
    Op(
        "packbits",
        "PackbitsBuilder",
        "signs of numbers as bits, and back",
        "",
        on_torch="functional.on_torch.SignBitsModule",
    ),
    Op("utils", "UtilsBuilder", "many tensors as one, and back", "", on_torch="functional.on_torch.FlatModule"),
)


_CUDA = "CUDA code"

DEEPSPEED_ONLY_OPS = {
    "DeepCompileBuilder": ("dc", _CUDA),
    "EvoformerAttnBuilder": ("evoformer_attn", f"{_CUDA}, needs CUTLASS"),
    "FPQuantizerBuilder": ("fp_quantizer", _CUDA),
    "FlashAttentionBuilder": ("flash_attn", "for XPU"),
    "GDSBuilder": ("gds", f"{_CUDA}, NVIDIA GPUDirect Storage"),
    "InferenceBuilder": ("transformer_inference", _CUDA),
    "InferenceCoreBuilder": ("inference_core_ops", _CUDA),
    "InferenceCutlassBuilder": ("cutlass_ops", f"{_CUDA}, needs deepspeed-kernels"),
    "NotImplementedBuilder": ("not_implemented", "a place-holder for ops that a device lacks"),
    "QuantizerBuilder": ("quantizer", _CUDA),
    "RaggedOpsBuilder": ("ragged_device_ops", f"{_CUDA}, needs deepspeed-kernels"),
    "RaggedUtilsBuilder": ("ragged_ops", _CUDA),
    "RandomLTDBuilder": ("random_ltd", _CUDA),
    "SparseAttnBuilder": ("sparse_attn", "removed in DeepSpeed 0.19"),
    "SpatialInferenceBuilder": ("spatial_inference", _CUDA),
    "StochasticTransformerBuilder": ("stochastic_transformer", _CUDA),
    "TransformerBuilder": ("transformer", _CUDA),
}
"""Builders that DeepSpeed's interface names and this project does not have: the names of their ops, and what they are.

They are known names on every device: DeepSpeed resolves all of them while it is imported.
"""


def op_of(builder: str) -> Op | None:
    """The op whose builder has that name."""
    return next((op for op in OPS if op.builder == builder), None)


def markdown_table() -> str:
    """The table for the documentation."""
    lines = ["| op | builder | devices | what it does |", "|---|---|---|---|"]
    for op in OPS:
        devices = "all (host memory)" if op.works_anywhere else "all" if op.on_torch else ", ".join(op.devices)
        lines.append(f"| `{op.name}` | `{op.builder}` | {devices} | {op.summary} |")
    return "\n".join(lines) + "\n"


def cache_keys() -> str:
    """The lines with the ops' switches in uv's cache keys in ``pyproject.toml``."""
    return "".join(
        f'  {{ env = "{variable}" }},\n' for variable in sorted(op.build_variable for op in OPS if op.is_native)
    )
