"""The functions with SYCL kernels, and the front ends of the fused optimizers, on the SYCL CPU device."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import (
    FusedLion,
    SYCLFusedAdam,
    SYCLFusedLion,
    dequantize_blocks,
    packbits,
    quantize_blocks,
    rms_norm,
    unpackbits,
)
from op_builder.xpu import BlockQuantizeBuilder, FusedAdamBuilder, PackbitsBuilder, RMSNormBuilder
from tests.support.foreign_package import output_of
from tests.support.fused_cases import apply
from tests.support.optimizer_reference import ADAM, make_tensors
from tests.support.sycl_ops import needs_runtime
from tests.support.threads import in_threads
from tests.support.training_tensors import Tensors

pytestmark = needs_runtime

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(0,), (1,), (7,), (8,), (9,), (3, 8), (3, 13), (2, 3, 1003), (5, 0), (0, 5), (70_001,), (3, 65_544)]
U = 2.0**-24


def random_bytes(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 4, shape, dtype=torch.uint8, generator=generator) * 85  # 0, 85, 170, 255


# Bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bitorder", ["big", "little"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_packed_and_unpacked_as_numpy_does(shape, bitorder):
    x = random_bytes(shape)
    packed = packbits(x, bitorder)
    expected = np.packbits(x.numpy(), axis=-1, bitorder=bitorder)
    assert packed.numpy().shape == expected.shape
    assert (packed.numpy() == expected).all()
    assert torch.equal(unpackbits(packed, shape[-1], bitorder), (x != 0).to(torch.uint8))
    whole = np.unpackbits(expected, axis=-1, bitorder=bitorder)
    assert (unpackbits(packed, bitorder=bitorder).numpy() == whole).all()
    storage = x.reshape(-1)
    for other in (x != 0, storage[5:], storage.repeat(2, 1).t()):  # bools, unaligned, not contiguous
        assert (packbits(other, bitorder).numpy() == np.packbits(other.numpy(), axis=-1, bitorder=bitorder)).all()


def test_nothing_beyond_the_packed_bytes_is_touched():
    module = PackbitsBuilder().load()
    for columns in (5, 8, 13, 4096):
        storage = torch.full(((columns + 7) // 8 + 2,), 77, dtype=torch.uint8)
        module.ops.pack.default(torch.zeros(columns, dtype=torch.uint8), storage[1:-1], columns, True)
        assert storage.tolist() == [77] + [0] * ((columns + 7) // 8) + [77]
        storage = torch.full((columns + 2,), 77, dtype=torch.uint8)
        packed = torch.zeros((columns + 7) // 8, dtype=torch.uint8)
        module.ops.unpack.default(packed, storage[1:-1], columns, True)
        assert storage.tolist() == [77] + [0] * columns + [77]


# Quantisation ------------------------------------------------------------------------------------


def values(numel: int, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(numel)
    storage = torch.empty(numel + offset, dtype=dtype)
    tensor = storage[offset:]
    tensor.copy_(torch.randn(numel, generator=generator) * 10 ** (torch.rand(numel, generator=generator) * 6 - 3))
    return tensor


def blocks_of(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """In float64, a row for each block, the last filled up with zeros."""
    padded = torch.zeros(-(-x.numel() // block_size) * block_size, dtype=torch.float64)
    padded[: x.numel()] = x
    return padded.view(-1, block_size)


def signed_codes(codes: torch.Tensor, numel: int) -> torch.Tensor:
    """Codes as numbers: of eight bits as they are, of four from both halves of each byte."""
    if codes.dtype == torch.int8:
        return codes.double()
    halves = torch.stack((codes & 15, codes >> 4), dim=1).reshape(-1)[:numel].double()
    return torch.where(halves > 7, halves - 16, halves)


@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("block_size", [2, 64, 256, 1000])
def test_blocks_are_quantised_within_half_a_scale(bits, largest, dtype, block_size):
    """Scale and factor are each rounded twice, the product once: a code may differ where an element lies within
    some units of 2**-24 of the middle between two, so it comes back within half a scale and that much of it."""
    for numel, offset in itertools.product((0, 1, 15, 17, 255, 256, 257, 4097, 70_001), (0, 1, 3)):
        x = values(numel, dtype, offset)
        codes, scales = quantize_blocks(x, bits, block_size)
        assert scales.numel() == -(-numel // block_size)
        assert codes.numel() == (numel if bits == 8 else -(-numel // 2))
        back = dequantize_blocks(codes, scales, x.shape, block_size=block_size)
        numbers = signed_codes(codes, numel)
        assert (numbers.abs() <= largest).all()
        blocks, code_blocks = blocks_of(x, block_size), blocks_of(numbers, block_size)
        scale, wanted = scales.double()[:, None], blocks.abs().amax(1, keepdim=True) / largest if numel else blocks
        assert ((scale - wanted).abs() <= 2 * U * wanted).all()
        exact = (code_blocks.float() * scales[:, None]).view(-1)[:numel]
        assert torch.equal(back, exact)
        slack = 4 * U * blocks.abs() + 2 * U * largest * scale
        assert ((code_blocks * scale - blocks).abs() <= scale / 2 + slack).all()


@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
def test_blocks_become_zeros_below_the_smallest_scale_alone_and_the_largest_numbers_do_not_overflow(bits, largest):
    smallest = torch.tensor(largest * 2.0**-126)
    below = torch.nextafter(smallest, torch.zeros(()))
    x = torch.zeros(1024)
    x[3], x[300], x[600] = below, smallest, 1e-40
    codes, scales = quantize_blocks(x, bits)
    assert scales[[0, 2, 3]].tolist() == [0, 0, 0]
    back = dequantize_blocks(codes, scales, x.shape)
    assert not back[:256].any()
    assert not back[512:].any()
    assert back[300] == smallest
    largest_numbers = torch.full((256,), torch.finfo(torch.float32).max)
    assert dequantize_blocks(*quantize_blocks(largest_numbers, bits), (256,)).isfinite().all()


@pytest.mark.parametrize(
    ("value", "dtype"), list(zip((float("nan"), float("inf"), float("-inf")), FLOATS, strict=True))
)
@pytest.mark.parametrize("bits", [8, 4])
def test_a_block_with_an_infinity_or_nan_comes_back_as_nan_and_others_as_they_were(value, dtype, bits):
    x = values(600, dtype)
    x[300] = value
    back = dequantize_blocks(*quantize_blocks(x, bits), x.shape)
    assert back[256:512].isnan().all()
    assert back[:256].isfinite().all()
    assert back[512:].isfinite().all()


# RMSNorm -----------------------------------------------------------------------------------------


def norm_bound(x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype):
    """The result in float64, and how far float32 may be from it.

    A lane adds n / 16 squares by fused products, each within u of its result, and all are positive: n / 16 + 4 (the
    lanes' tree) units of relative error, halved by the square root; division, root, reciprocal and two products add
    eight.
    """
    x, weight = x.double(), weight.double()
    n = x.shape[-1]
    result = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight
    relative = U * ((n / 16 + 4) / 2 + 8)
    storing = torch.finfo(dtype).eps / 2 if dtype != torch.float32 else 0.0
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    return result, result.abs() * (relative + storing) * 1.01 + smallest


TYPES = [(torch.float32, torch.float32), *((d, w) for d in FLOATS[1:] for w in (d, torch.float32))]


@pytest.mark.parametrize(("dtype", "weight_dtype"), TYPES)
@pytest.mark.parametrize("with_residual", [False, True])
def test_rows_are_normalised_as_in_float64(dtype, weight_dtype, with_residual):
    for shape, offset in itertools.product([(1, 1), (3, 15), (2, 3, 16), (5, 17), (300, 100), (7, 4097)], (0, 1)):
        generator = torch.Generator().manual_seed(shape[-1])
        x, residual = (torch.empty(int(np.prod(shape)) + offset, dtype=dtype)[offset:].view(shape) for _ in range(2))
        x.copy_(torch.randn(shape, generator=generator) * 3)
        residual.copy_(torch.randn(shape, generator=generator))
        weight = torch.rand(shape[-1], generator=generator).to(weight_dtype)
        before, total = x.clone(), x + residual
        out = rms_norm(x, weight, 1e-5, residual if with_residual else None)
        assert torch.equal(x, before)
        if with_residual:
            assert torch.equal(residual, total)
        result, bound = norm_bound(total if with_residual else x, weight, 1e-5, dtype)
        assert out.dtype == dtype
        assert ((out.double() - result).abs() <= bound).all()


def test_empty_rows_give_nothing_and_nan_stays_in_its_row():
    assert rms_norm(torch.ones(0, 5), torch.ones(5)).shape == (0, 5)
    assert rms_norm(torch.ones(5, 0), torch.ones(0)).shape == (5, 0)
    x = torch.ones(3, 20)
    x[1, 3] = float("nan")
    out = rms_norm(x, torch.ones(20))
    assert out[1].isnan().all()
    assert torch.equal(out[0], out[2])
    assert out[0].isfinite().all()


# All of them -------------------------------------------------------------------------------------


X = torch.ones(4, 8)


def one_block() -> tuple[torch.Tensor, torch.Tensor]:
    return quantize_blocks(torch.ones(64), 8)


REFUSED = [
    (lambda: packbits(torch.ones(3)), "x is of type Float; uint8 or bool"),
    (lambda: packbits(torch.ones((), dtype=torch.uint8)), "x has no dimension"),
    (lambda: packbits(torch.ones(3, dtype=torch.uint8), "middle"), "bitorder is 'middle'"),
    (lambda: packbits([1, 0]), "x is of type list"),
    (lambda: unpackbits(torch.ones(2, dtype=torch.uint8), 17), "count is 17; an int of 9 to 16 is required"),
    (lambda: packbits(torch.ones(3, dtype=torch.uint8, device="meta")), "x is on device meta"),
    (lambda: unpackbits(torch.ones(2, 0, dtype=torch.uint8), -3), "count is -3; an int of 0 is required"),
    (lambda: unpackbits(torch.ones(2, dtype=torch.uint8), 9.5), "count is 9.5"),
    (lambda: quantize_blocks(torch.ones(8, dtype=torch.float64)), "x is of type Double"),
    (lambda: quantize_blocks(torch.ones(8), 5), "bits is 5"),
    (lambda: quantize_blocks(torch.ones(8), 8, 7), "block_size is 7"),
    (lambda: quantize_blocks(torch.ones(8, requires_grad=True)), "x requires a gradient"),
    (lambda: dequantize_blocks(*one_block(), (65,)), r"does not match 8 bits per element of shape \(65,\)"),
    (lambda: dequantize_blocks(*one_block(), (64,), block_size=16), "scales has 1 elements of type Float; 4"),
    (lambda: dequantize_blocks(*one_block(), (64,), torch.float64), "dtype is torch.float64"),
    (lambda: dequantize_blocks(one_block()[0].float(), one_block()[1], (64,)), "codes has 64 elements of type Float"),
    (lambda: dequantize_blocks(*one_block(), (-1,)), "a length in shape is -1"),
    (lambda: dequantize_blocks(*one_block(), (64.0,)), "a length in shape is 64.0"),
    (lambda: dequantize_blocks(*one_block(), 64), "shape is 64"),
    (lambda: quantize_blocks(torch.ones(8), bits=8.0), "bits is 8.0"),
    (lambda: quantize_blocks(torch.ones(8), block_size=2**63), "block_size is 9223372036854775808"),
    (lambda: quantize_blocks(torch.ones(0, dtype=torch.float64)), "x is of type Double"),
    (lambda: rms_norm(X, torch.ones(7)), r"weight has shape \(7,\), x has shape \(4, 8\)"),
    (lambda: rms_norm(X, torch.ones(8), residual=torch.ones(4, 7)), "residual has shape"),
    (lambda: rms_norm(X, torch.ones(8), residual=torch.ones(4, 8).half()), "residual has 32 elements of type float16"),
    (lambda: rms_norm(X, torch.ones(8), residual=torch.ones(8, 4).t()), "residual is not contiguous"),
    (lambda: rms_norm(X, torch.ones(8), residual=X), "residual shares memory with x"),
    (lambda: rms_norm(X, torch.ones(8), residual=torch._neg_view(torch.ones(4, 8))), "residual is a lazy negation"),
    (lambda: rms_norm(X, torch.ones(8).half()), "weight is of type float16, x of type float32"),
    (lambda: rms_norm(X, torch.ones(8), eps=-1.0), "eps is -1.0"),
    (lambda: rms_norm(X.double(), torch.ones(8)), "x is of type Double"),
    (lambda: rms_norm(X, torch.nn.Parameter(torch.ones(8))), "weight requires a gradient"),
    (lambda: rms_norm(X.to_sparse(), torch.ones(8)), "x has layout"),
    (lambda: rms_norm(X, None), "weight is of type NoneType"),
    (lambda: rms_norm(X[:, :0].int(), torch.ones(0)), "x is of type Int"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(OpArgumentError, match=message):
        call()


def test_opcheck_of_all_ops():
    bits, blocks, norm = PackbitsBuilder().load().ops, BlockQuantizeBuilder().load().ops, RMSNormBuilder().load().ops
    bytes_, packed = random_bytes((3, 13)), torch.zeros(3, 2, dtype=torch.uint8)
    codes, scales = torch.zeros(100, dtype=torch.int8), torch.zeros(2)
    x, out = torch.randn(4, 8), torch.empty(4, 8)
    for op, arguments in (
        (bits.pack, (bytes_, packed, 13, True)),
        (bits.unpack, (packed, bytes_, 13, False)),
        (blocks.quantize, (torch.randn(100), codes, scales, 64, 8)),
        (blocks.dequantize, (codes, scales, torch.empty(100), 64, 8)),
        (norm.rms_norm, (x, None, torch.ones(8), out, 1e-6)),
        (norm.rms_norm, (x, torch.randn(4, 8), torch.ones(8), out, 1e-6)),
    ):
        torch.library.opcheck(op.default, arguments)


ROWS = torch.arange(12.0).view(3, 4)
BITS = (ROWS > 3).to(torch.uint8)
CODES = (torch.arange(-6, 6, dtype=torch.int8), torch.ones(1))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (packbits, (BITS,)),
        (unpackbits, (BITS, 27)),
        (quantize_blocks, (ROWS, 4)),
        (dequantize_blocks, (*CODES, (3, 4))),
        (rms_norm, (ROWS, torch.ones(4))),
    ],
    ids=lambda value: getattr(value, "__name__", "on"),
)
def test_a_function_that_was_called_is_compiled_as_one_graph(function, arguments):
    expected = function(*arguments)
    torch._dynamo.reset()
    result = torch.compile(function, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_a_compiled_function_may_be_the_first_call():
    code = """
import torch
from op_builder.ops import packbits
bits = torch.tensor([1, 0, 0, 0, 0, 0, 0, 1], dtype=torch.uint8)
assert torch.compile(packbits, backend="aot_eager")(bits).tolist() == [129]
"""
    output_of("-c", code)


def test_lengths_that_a_graph_leaves_open_are_taken():
    def there_and_back(x, packed):
        return dequantize_blocks(*quantize_blocks(x), x.shape), unpackbits(packed, 8 * packed.shape[-1] - 3)

    torch._dynamo.reset()
    compiled = torch.compile(there_and_back, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (300, 301):
        arguments = torch.randn(3, length), torch.arange(length).to(torch.uint8)
        torch.testing.assert_close(compiled(*arguments), there_and_back(*arguments), rtol=0, atol=0)


def test_many_threads_may_call_at_once():
    def work(index: int) -> None:
        generator = torch.Generator().manual_seed(index)
        for _ in range(10):
            x = torch.randn(3, 501 + index, generator=generator)
            ones = (x > 0).to(torch.uint8)
            assert torch.equal(unpackbits(packbits(ones), x.shape[-1]), ones)
            back = dequantize_blocks(*quantize_blocks(x), x.shape)
            assert (back - x).abs().max() < x.abs().max() / 200
            result, bound = norm_bound(x, torch.ones(x.shape[-1]), 1e-6, torch.float32)
            assert ((rms_norm(x, torch.ones(x.shape[-1])).double() - result).abs() <= bound).all()

    in_threads(8, work)


# Optimizers: test_fused_update.py compares their updates with the CPU's ---------------------------


def test_bad_tensors_are_refused_and_nothing_is_changed():
    good, (param, grad, *states) = make_tensors(ADAM, 8), make_tensors(ADAM, 8)
    before = good.clone()
    for bad, message in (
        (Tensors(param, grad[:7], tuple(states)), "grad of tensor 1 has 7 elements; 8 are required"),
        (Tensors(param, grad, (param, states[1])), "exp_avg of tensor 1 shares memory with its param"),
    ):
        with pytest.raises(OpArgumentError, match=message):
            apply(FusedAdamBuilder().load(), ADAM, [good, bad])
    assert all(map(torch.equal, good, before))


def losses(optimizer_class, steps: int = 20, **options) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(9, 17), torch.nn.Tanh(), torch.nn.Linear(17, 3))
    optimizer = optimizer_class(model.parameters(), lr=1e-2, **options)
    x, y = torch.randn(64, 9), torch.randn(64, 3)
    result = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


@pytest.mark.parametrize(
    ("ours", "reference", "options", "tolerance"),
    [(SYCLFusedAdam, torch.optim.AdamW, {"weight_decay": 0.1}, 1e-4), (SYCLFusedLion, FusedLion, {}, 0)],
)
def test_the_optimizer_trains_as_torchs_or_the_cpus_does(ours, reference, options, tolerance):
    found = losses(ours, **options)
    assert found[-1] < 0.9 * found[0]
    torch.testing.assert_close(found, losses(reference, **options), rtol=tolerance, atol=0)
