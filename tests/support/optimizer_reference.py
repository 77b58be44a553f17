"""The optimizers on host tensors in float64, with a bound of what the float32 kernels may differ from them.

Formulas work on :class:`Rounded` numbers, a running error analysis (Wilkinson, 1963): in addition to its value
each carries a bound of what the same operations in float32 can have made of it. An operation adds at most
u = 2**-24 of its result, and passes on what its operands had. So the bound follows the kernel operation
by operation; a fused multiply-add rounds less and stays within it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from op_builder import cpu, env
from op_builder.ops.optim.fused_op import FusedOp
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import Pass, TensorLists
from tests.support.training_tensors import SUBNORMAL, Tensors, U, unit_roundoff

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
#: Every supported combination of a parameter's, a gradient's and a state's type.
DTYPES = [
    (param, grad, state)
    for param, grad in itertools.product(FLOATS, FLOATS)
    for state in dict.fromkeys((torch.float32, param))
]
# What first-order error analysis leaves out: products of two errors within one operation on constants.
SECOND_ORDER = 1.01


@dataclass(frozen=True)
class Rounded:
    """A float64 ``value``, and how far the kernel's may be from it."""

    value: torch.Tensor
    error: torch.Tensor

    @staticmethod
    def exact(value: torch.Tensor) -> Rounded:
        return Rounded(value.double(), torch.zeros_like(value, dtype=torch.float64))

    @staticmethod
    def computed(value: torch.Tensor, error: torch.Tensor) -> Rounded:
        """The result of an operation whose operands' errors amount to ``error``."""
        return Rounded(value, error + U * value.abs() + SUBNORMAL)

    def __add__(self, other: Rounded) -> Rounded:
        return Rounded.computed(self.value + other.value, self.error + other.error)

    def __mul__(self, other: Rounded) -> Rounded:
        error = self.value.abs() * other.error + other.value.abs() * self.error + self.error * other.error
        return Rounded.computed(self.value * other.value, error)

    def __truediv__(self, other: Rounded) -> Rounded:
        quotient = self.value / other.value
        least = other.value.abs() - other.error
        error = torch.where(least > 0, (self.error + quotient.abs() * other.error) / least, math.inf)
        return Rounded.computed(quotient, error)

    def sqrt(self) -> Rounded:
        root = self.value.sqrt()
        # |x - y| / (sqrt(x) + sqrt(y)), with y as small as it can be.
        sum_of_roots = root + (self.value - self.error).clamp(min=0).sqrt()
        error = torch.where(sum_of_roots > 0, self.error / sum_of_roots, self.error.sqrt())
        return Rounded.computed(root, error)

    def sign(self) -> Rounded:
        """-1, 0 or 1, and any of them where the value is not known well enough."""
        sign = torch.where(self.value.isnan(), self.value, self.value.sign())
        return Rounded(sign, torch.where(self.value.abs() <= self.error, 2.0, 0.0).double())

    def norm(self) -> Rounded:
        """The Euclidean norm, added up in double."""
        value = self.value.square().sum().sqrt()
        return Rounded(value, self.error.square().sum().sqrt() + 1e-12 * value)

    def stored(self, dtype: torch.dtype) -> Rounded:
        if dtype == torch.float32:
            return self
        relative, absolute = unit_roundoff(dtype)
        error = self.error * (1 + relative) + relative * self.value.abs() + absolute
        overflows = self.value.abs() + error >= torch.finfo(dtype).max
        return Rounded(self.value, torch.where(overflows, math.inf, error))


def const(number: float) -> Rounded:
    """An option as kernels have it: rounded to float32 once."""
    value = torch.tensor(number, dtype=torch.float64)
    return Rounded(value, (value - value.float().double()).abs())


Options = Mapping[str, Any]
States = tuple[Rounded, ...]
#: (param, grad, states, options, step, stored) -> (new param, new states). ``stored`` are the new states that a second
#: pass finds in memory.
Formula = Callable[[Rounded, Rounded, States, Options, int, States], tuple[Rounded, States]]


def _with_l2(param: Rounded, grad: Rounded, weight_decay: float) -> Rounded:
    return const(weight_decay) * param + grad if weight_decay else grad  # 0 * infinity is NaN


def _average(old: Rounded, new: Rounded, beta: float) -> Rounded:
    return const(beta) * old + const(1 - beta) * new


def _moments(states: States, grad: Rounded, options: Options) -> States:
    beta2 = options["beta2"]
    return _average(states[0], grad, options["beta1"]), const(beta2) * states[1] + const(1 - beta2) * grad * grad


def _corrections(options: Options, step: int) -> tuple[float, float]:
    if not options["bias_correction"]:
        return 1.0, 1.0
    return 1 - options["beta1"] ** step, 1 - options["beta2"] ** step


def _adam(param, grad, states, options, step, _stored):
    correction1, correction2 = _corrections(options, step)
    if not options["adamw_mode"]:
        grad = _with_l2(param, grad, options["weight_decay"])
    m, v = _moments(states, grad, options)
    direction = m / (v.sqrt() * const(correction2**-0.5) + const(options["eps"]))
    decay = 1 - options["lr"] * options["weight_decay"] if options["adamw_mode"] else 1.0
    return const(decay) * param + const(-options["lr"] / correction1) * direction, (m, v)


def _adagrad(param, grad, states, options, step, _stored):
    grad = _with_l2(param, grad, options["weight_decay"])
    total = states[0] + grad * grad
    step_size = options["lr"] / (1 + (step - 1) * options["lr_decay"])
    return param + const(-step_size) * (grad / (total.sqrt() + const(options["eps"]))), (total,)


def _lion(param, grad, states, options, _step, _stored):
    direction = _average(states[0], grad, options["beta1"]).sign()
    decay = const(1 - options["lr"] * options["weight_decay"])
    return decay * param + const(-options["lr"]) * direction, (_average(states[0], grad, options["beta2"]),)


def _lamb(param, grad, states, options, step, stored):
    correction1, correction2 = _corrections(options, step)
    first, second = stored
    direction = first * const(1 / correction1) / (second.sqrt() * const(correction2**-0.5) + const(options["eps"]))
    if options["weight_decay"]:
        direction = const(options["weight_decay"]) * param + direction
    norms = param.norm(), direction.norm()
    trust = norms[0] / norms[1] if all(norm.value > 0 for norm in norms) else const(1.0)
    return const(-options["lr"]) * trust * direction + param, _moments(states, grad, options)


def _sgd(param, grad, states, options, step, _stored):
    grad = _with_l2(param, grad, options["weight_decay"])
    buffer = grad
    if step > 1 and options["momentum"]:
        buffer = const(options["momentum"]) * states[0] + const(1 - options["dampening"]) * grad
    direction = const(options["momentum"]) * buffer + grad if options["nesterov"] else buffer
    return param + const(-options["lr"]) * direction, (buffer,)


@dataclass(frozen=True, eq=False)
class Kind:
    """An optimizer.

    Attributes:
        name: as in the functions of one tensor, ``<name>_update``.
        formula: in :class:`Rounded` numbers.
        options: what the tests give it, in the order of ``HostOp.options``.
        variants: changes of these that matter.
        states: its states' names.
        packs: whether its states may be packed.
    """

    name: str
    formula: Formula
    options: Options
    variants: Sequence[Options]
    states: tuple[str, ...] = ("exp_avg",)
    packs: bool = True

    @property
    def roles(self) -> tuple[str, ...]:
        return ("param", "grad", *self.states)

    @property
    def of_one(self) -> Options:
        """The options of ``<name>_update``."""
        declared = load(self).declaration
        return {name: self.options[name] for name in (*declared.numbers, *declared.switches)}

    def __str__(self) -> str:
        return self.name


BETAS = {"beta1": 0.9, "beta2": 0.999}
VARIANTS = [{"weight_decay": 0}, {"lr": 0}, {"lr": 10.0}]  # of all
OF_BETAS = [{"beta1": 0, "beta2": 0}, {"beta1": 0.999, "beta2": 0.99999}]
ADAM = Kind(
    "adam",
    _adam,
    {"lr": 1e-2, **BETAS, "eps": 1e-8, "weight_decay": 0.01, "adamw_mode": True, "bias_correction": True},
    [*VARIANTS, *OF_BETAS, {"adamw_mode": False}, {"bias_correction": False}, {"eps": 0.1}],
    ("exp_avg", "exp_avg_sq"),
)
ADAGRAD = Kind(
    "adagrad",
    _adagrad,
    {"lr": 1e-2, "eps": 1e-8, "weight_decay": 0.01, "lr_decay": 0.0},
    [*VARIANTS, {"lr_decay": 0.3}, {"eps": 0.1}],
    ("exp_avg_sq",),
)
LION = Kind("lion", _lion, {"lr": 1e-3, **BETAS, "weight_decay": 0.1}, [*VARIANTS, *OF_BETAS])
LAMB = Kind(
    "lamb",
    _lamb,
    {"lr": 1e-2, **BETAS, "eps": 1e-6, "weight_decay": 0.01, "bias_correction": True},
    [*VARIANTS, *OF_BETAS, {"bias_correction": False}, {"eps": 0.1}, {"eps": 0}],
    ("exp_avg", "exp_avg_sq"),
    packs=False,
)
SGD = Kind(
    "sgd",
    _sgd,
    {"lr": 1e-2, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.01, "nesterov": False},
    [*VARIANTS, {"nesterov": True}, {"dampening": 0.3}, {"momentum": 0, "dampening": 0.5}, {"momentum": 0.999}],
    ("momentum_buffer",),
)
KINDS = (ADAM, ADAGRAD, LION, LAMB, SGD)


@cache
def load(kind: Kind, isa: str | None = None) -> HostOp:
    """The op as users get it, or with an instruction set that is not the best."""
    name = "SGD" if kind is SGD else kind.name.capitalize()
    module: HostOp = getattr(cpu, f"CPU{name}Builder")().load()
    if isa is None:
        return module
    with env.scope(ACCEL_CPU_ISA=isa):
        return type(module)(module.ops)


def load_fused(kind: Kind) -> FusedOp:
    """The fused op of the same formula, for the CPU."""
    return getattr(cpu, f"Fused{kind.name.capitalize()}Builder")().load()


def make_tensors(
    kind: Kind,
    numel: int,
    param: torch.dtype = torch.float32,
    grad: torch.dtype = torch.float32,
    state: torch.dtype = torch.float32,
    seed: int = 0,
    offset: int = 0,
) -> Tensors:
    """Tensors of a training run's magnitudes, ``offset`` elements into their storage."""
    generator = torch.Generator().manual_seed(seed)

    def make(scale: float, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(numel + offset, dtype=dtype)[offset:]
        # Magnitudes over several powers of ten, as gradients have.
        spread = torch.rand(numel, generator=generator) * 4 - 3
        return tensor.copy_(torch.randn(numel, generator=generator) * 10**spread * scale)

    states = (make(1e-2, state).abs_() if name.endswith("sq") else make(0.1, state) for name in kind.states)
    return Tensors(make(1.0, param), make(0.1, grad), tuple(states))


def as_lists(members: Sequence[Tensors]) -> TensorLists:
    states = zip(*(one.states for one in members), strict=True)
    return TensorLists([one.param for one in members], [one.grad for one in members], list(map(list, states)))


def update(module: HostOp, tensors: Tensors, options: Options, step: int = 3, **also: Any) -> Tensors:
    """A copy of ``tensors`` after one update."""
    result = tensors.clone()
    module.update_list(as_lists([result]), step, list(options.values()), Pass(**also))
    return result


def update_one(
    kind: Kind,
    tensors: Iterable[torch.Tensor],
    verb: str = "update",
    *,
    step: int = 3,
    isa: str | None = None,
    **changes: float,
) -> None:
    """An update of a parameter, or its ``rollback``, by the functions of one tensor."""
    module = HostOp(load(kind).ops)  # with ids of its own
    module.isa = isa or module.isa
    options = {**kind.options, **changes}
    getattr(module, f"create_{kind.name}")(0, **{name: options[name] for name in module.declaration.modes})
    getattr(module, f"{kind.name}_{verb}")(0, step, *(options[name] for name in kind.of_one), *tensors)


def expected_update(kind: Kind, options: Options, before: Tensors, step: int, found: Tensors) -> list[Rounded]:
    """The parameter and the states after one update.

    Args:
        found: the kernel's result: a second pass works on states as it finds them in memory, so on these.
    """
    param, grad, *states = map(Rounded.exact, before)
    stored = tuple(map(Rounded.exact, found.states))
    param, states = kind.formula(param, grad, states, options, step, stored)
    return [param.stored(before.param.dtype), *(state.stored(before.states[0].dtype) for state in states)]


def assert_within(kind: Kind, found: Tensors, expected: Sequence[Rounded]) -> None:
    """Raise unless the parameter and the states are within the bound."""
    for name, tensor, rounded in zip(("param", *kind.states), (found.param, *found.states), expected, strict=True):
        difference = (tensor.double() - rounded.value).abs()
        within = difference <= SECOND_ORDER * rounded.error  # NaN is not
        over = ~within & rounded.value.isfinite()
        assert not over.any(), (
            f"{name}: {int(over.sum())} of {over.numel()} elements beyond the bound, "
            f"the worst by a factor of {(difference / rounded.error)[over].max():.3g}"
        )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
