"""The object that ``load()`` returns for the fused optimizers, which work on the device of their tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import bounded_int, checked_numbers, finite_number, is_traced, step_number, switch
from op_builder.ops.optim.lamb_of_one import lamb
from op_builder.ops.optim.native_op import REQUIRED, NativeOp
from op_builder.ops.optim.tensor_lists import TensorLists, roles_of

Tensors = Sequence[torch.Tensor]

_CHUNK_REMEDY = "Pass a number of elements, for example 65536."


@dataclasses.dataclass(frozen=True)
class Control:
    """Settings that an update reads on the device when it runs, all optional.

    Each tensor has one element and is on the device of the parameters; the host does not wait for it.

    Attributes:
        lr: float32, in place of the option.
        noop_flag: int32; a value other than 0 skips the update.
        grad_scale: float32; gradients are divided by it first.
        found_inf: float32; a value other than 0 skips the update.
        maximize: follow the gradient instead of its opposite.
        chunk_size: the most elements that a block of threads works on at once.
    """

    lr: torch.Tensor | None = None
    noop_flag: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None
    found_inf: torch.Tensor | None = None
    maximize: bool = False
    chunk_size: int = 65536

    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The tensors as the ops take them."""
        return (self.lr, self.noop_flag, self.grad_scale, self.found_inf)

    def settings(self) -> tuple[bool, int]:
        """The other fields as the ops take them."""
        return (bool(self.maximize), int(self.chunk_size))

    def on(self, device: torch.device) -> Control:
        """The same with its tensors on ``device``."""

        def moved(tensor: torch.Tensor | None) -> torch.Tensor | None:
            # Without waiting, except for a move to the CPU, where the value would be read before it arrives.
            return None if tensor is None else tensor.to(device, non_blocking=device.type != "cpu")

        tensors = (moved(self.lr), moved(self.noop_flag), moved(self.grad_scale), moved(self.found_inf))
        return Control(*tensors, self.maximize, self.chunk_size)


class FusedOp(NativeOp):
    """An optimizer over lists of tensors, on any device that the binary has kernels for.

    It updates lists, and has a function that is made from the optimizer's declaration, for Adam ``multi_tensor_adam``:
    see :meth:`_update`.

    Tensors are contiguous, of equal length for each parameter: a parameter of float32, bfloat16 or
    float16, a gradient of any of the three, and states, all of float32 or all of the parameter's
    type. Parameters may differ in their types. Arithmetic is in float32. Everything is checked before
    anything is written. On a CUDA or XPU device the work is queued on torch's current stream and the host does not
    wait, so a call may be captured into a graph.
    """

    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self.devices = tuple(ops.devices().split(","))
        self._make_functions()

    def update_list(
        self, tensors: TensorLists, options: Sequence[float], step: int | Tensors, control: Control | None = None
    ) -> None:
        """Update all parameters and their states in place; an OpArgumentError changes nothing.

        Under torch.compile step and learning rate may change without another graph; the rate is rounded to float32.

        Args:
            tensors: all on one device, without copies; no tensor may appear twice.
            options: as in ``self.options``; their values are not checked.
            step: the number of this update, from 1; or the number of updates done so far, tensors of one float32
                on the same device, one for each parameter or one for all, which advance unless the update is skipped.
        """
        steps: Tensors = () if isinstance(step, int) else step
        number = step_number(step) if isinstance(step, int) else 1
        control = control or Control()
        roles = {**self._roles(tensors), "step": steps}
        if not len(tensors.params):
            return
        if is_traced():
            # As tensors, because numbers would be constants of the graph.
            zero = torch.zeros(1, dtype=torch.float32, device=tensors.params[0].device)
            if isinstance(step, int):
                roles["step"] = steps = [zero + (number - 1)]
                number = 1
            if control.lr is None:
                control = dataclasses.replace(control, lr=zero + options[0])
                options = (0.0, *options[1:])
        device = getattr(tensors.params[0], "device", None)
        for role, given in zip(("lr", "noop_flag", "grad_scale", "found_inf"), control.tensors(), strict=True):
            if device is not None and given is not None and not self._fits(given, device):
                raise self._unfit(role, given, device)
        params, grads, states, _ = tensors.positional()
        rest = (steps, *control.tensors(), [float(value) for value in options], number, *control.settings(), self.isa)
        self._call(self.ops.update.default, roles, params, grads, states, *rest)
        # autograd then notices a change between a forward and its backward.
        torch.autograd.graph.increment_version(tensors.params)

    def _prepare(self, tensors: TensorLists, steps: Tensors) -> int:
        params, grads, states, _ = tensors.positional()
        number: int = self.ops.prepare.default(params, grads, states, steps)
        return number

    def prepared_arguments(self, options: Sequence[float], settings: Control) -> tuple[Any, ...]:
        return (*settings.tensors(), list(options), 1, *settings.settings(), self.isa)

    def _roles(self, tensors: TensorLists) -> dict[str, Tensors]:
        roles = roles_of(tensors, self.states)
        if tensors.copies:
            raise OpArgumentError("Copies were given, which this op does not support.", "Use a CPU optimizer's op.")
        del roles["copy"]
        return roles

    # The function of many tensors -------------------------------------------------------------

    def _make_functions(self) -> None:
        declared = self.declaration
        kind = declared.name.lower()
        numbers = [name for name in declared.numbers if name != "weight_decay"]
        modes = ["mode"] if declared.modes else []
        names = (
            "chunk_size",
            "noop_flag",
            "tensor_lists",
            *numbers,
            "step",
            *modes,
            *declared.switches,
            "weight_decay",
        )
        parameters = {**dict.fromkeys(names, REQUIRED), "grad_scale": None, "found_inf": None}
        documentation = f"Update the parameters and states of all tensors by {declared.name}; see FusedOp._update."
        if kind == "adam":  # the only one with a separate form for tensors
            self._add("multi_tensor_adam", documentation, parameters, self._update_by_number)
            self._add("multi_tensor_adam_capturable", documentation, parameters, self._update)
        else:
            self._add(f"multi_tensor_{kind}", documentation, parameters, self._update)
        if kind == "lamb":
            self.lamb = lamb

    def _update_by_number(self, given: dict[str, Any]) -> None:
        """As :meth:`_update`, but ``step`` is a number, and an ``lr`` tensor on the CPU is read before the call."""
        lr, step = given["lr"], given["step"]
        if is_traced():
            if isinstance(step, torch.Tensor):
                raise OpArgumentError("step is a tensor.", "Pass a number, or call multi_tensor_adam_capturable().")
        elif isinstance(lr, torch.Tensor) and lr.is_cpu:
            lr = finite_number("lr", lr)
        self._update({**given, "lr": lr, "step": step_number(step)})

    def _update(self, given: dict[str, Any]) -> None:
        """The body of ``multi_tensor_*`` and ``multi_tensor_adam_capturable``.

        Args:
            given: their arguments by name.

                - ``chunk_size``: the most elements that a block of threads works on at once. For LAMB on a CUDA
                  device, the elements whose squares are summed before those sums are: another value may change the
                  last bits of the norms.
                - ``noop_flag``: None, or an int32 tensor of one element on the device of the parameters; a value
                  other than 0 when the update runs skips it.
                - ``tensor_lists``: ``[grads, params, *states]``, lists of equal length.
                - ``lr``: a number, or a float32 tensor of one element on that device, read when the update runs.
                - ``step``: the number of this update, from 1; or the number of updates done so far: a float32 tensor
                  of one element on that device for all parameters, or a list of one for each. They advance before the
                  update, unless it is skipped. No tensor may appear twice. Lion's formula has no step and ignores it.
                - ``mode``: 0 is Adam with L2 penalty, 1 is AdamW with decoupled weight decay.
                - ``grad_scale``: a float32 tensor of one element; gradients are divided by it first.
                - ``found_inf``: a float32 tensor of one element; a value other than 0 skips the update.
        """
        declared = self.declaration
        lr_tensor = given["lr"] if isinstance(given["lr"], torch.Tensor) else None
        numbers = {key: given[key] for key in declared.numbers}
        if lr_tensor is not None:
            numbers["lr"] = 0.0
        values = {**declared.constants, **checked_numbers(**numbers)}
        if declared.modes:
            if given["mode"] not in (0, 1):
                raise OpArgumentError(f"mode is {given['mode']!r}.", "Pass 0 for Adam with L2 penalty, 1 for AdamW.")
            values |= dict.fromkeys(declared.modes, given["mode"])
        values |= {key: switch(key, given[key]) for key in declared.switches}
        tensors = _named_lists(given["tensor_lists"], self.states)
        control = Control(
            lr_tensor,
            given["noop_flag"],
            given["grad_scale"],
            given["found_inf"],
            chunk_size=bounded_int("chunk_size", given["chunk_size"], 1, 2**63 - 1, _CHUNK_REMEDY),
        )
        step = _step_or_tensors(given["step"]) if declared.has_step else ()
        self.update_list(tensors, [values[key] for key in declared.options], step, control)


def _named_lists(tensor_lists: Sequence[Tensors], states: Sequence[str]) -> TensorLists:
    """``[grads, params, *states]`` by their names."""
    names = ("grads", "params", *(f"{state}s" for state in states))
    if len(tensor_lists) != len(names):
        raise OpArgumentError(f"tensor_lists has {len(tensor_lists)} lists.", f"Pass {len(names)}: {', '.join(names)}.")
    grads, params, *rest = tensor_lists
    return TensorLists(params, grads, rest)


def _step_or_tensors(step: Any) -> int | Tensors:
    """The number of this update, from 1, or step counters: one for all parameters, or one for each."""
    if isinstance(step, torch.Tensor):
        return [step]
    if not isinstance(step, (list, tuple)):
        return step_number(step)
    if not step:
        raise OpArgumentError("step is an empty list.", "Pass one tensor for each parameter, or one for all.")
    for one in step:
        if not isinstance(one, torch.Tensor):
            raise OpArgumentError(
                f"step has an item of type {type(one).__name__}.", "Pass float32 tensors with one element each."
            )
    return step
