"""The modules that the builders of the fused optimizers return."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from op_builder import env
from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import (
    explained,
    finite_number,
    is_traced,
    replaced_grads,
    roles_of,
    step_number,
    untraced,
)
from op_builder.ops.optim.fused_arguments import (
    Tensors,
    adam_options,
    checked_betas,
    checked_chunk,
    learning_rate,
    named_lists,
    one_tensor,
    step_or_tensors,
    step_tensors,
)
from op_builder.ops.optim.tensor_lists import TensorLists
from op_builder.system.cpu_isa import best_isa


@dataclasses.dataclass(frozen=True)
class Control:
    """What an update reads where its tensors are when it runs, all optional.

    Each tensor is of one element, on the device of the parameters; nobody waits for it.

    Attributes:
        lr: float32, in place of the option.
        noop_flag: int32; not 0 means change nothing.
        grad_scale: float32; gradients are divided by it first.
        found_inf: float32; not 0 means change nothing.
        maximize: follow the gradient, not its opposite.
        chunk_size: the most elements that a block of threads works on at once.
    """

    lr: torch.Tensor | None = None
    noop_flag: torch.Tensor | None = None
    grad_scale: torch.Tensor | None = None
    found_inf: torch.Tensor | None = None
    maximize: bool = False
    chunk_size: int = 65536

    def tensors(self, device: torch.device) -> tuple[torch.Tensor | None, ...]:
        """The tensors as the ops take them, moved to ``device`` where they are elsewhere."""
        given = (self.lr, self.noop_flag, self.grad_scale, self.found_inf)
        # Not to the CPU: the value would be read before it has come.
        asynchronous = device.type != "cpu"
        return tuple(None if tensor is None else tensor.to(device, non_blocking=asynchronous) for tensor in given)


class FusedOptimizerModule:
    """An optimizer over lists of tensors, on any device that the binary is for, whichever they are on.

    Tensors are contiguous, of equal length for each parameter: a parameter of float32, bfloat16 or
    float16, a gradient of any of the three, and states, all of float32 or all of the parameter's
    type. Parameters may differ in their types. Arithmetic is in float32. Everything is checked before
    anything is written. On a CUDA or XPU device the work is queued on torch's current stream and nothing is
    waited for, so a call may be captured into a graph.

    Args:
        ops: the namespace of torch ops that the binding registered.

    Attributes:
        OPTIONS: the numbers that every update takes, in their order; the first is lr.
        STATES: the names of the optimizer's states.
        ops: the namespace.
        isa: instruction set in use on the CPU, fixed when the module is made (``ACCEL_CPU_ISA`` caps it).
        devices: the types of devices that the binary has kernels for.
    """

    OPTIONS: ClassVar[tuple[str, ...]]
    STATES: ClassVar[tuple[str, ...]]

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        isas = ops.supported_isas()  # none where a CPU is a device like others, whose compiler knows it
        self.isa = best_isa(tuple(isas.split(",")), env.ACCEL_CPU_ISA.get()) if isas else ""
        self.devices: tuple[str, ...] = tuple(ops.devices().split(","))

    def update_list(
        self,
        tensors: TensorLists,
        options: Sequence[float],
        step: int | Tensors,
        control: Control | None = None,
    ) -> None:
        """Update all parameters and their states in place.

        Under torch.compile step and learning rate may change without another graph; the rate is rounded to float32.

        Args:
            tensors: all on one device, without scales and copies; no tensor may appear twice.
            options: as in OPTIONS; their values are not checked.
            step: the number of this update, from 1; or the updates done so far, tensors of one float32
                on the same device, one for each parameter or one for all, which are counted up unless
                the update is skipped.

        Raises:
            OpArgumentError: a tensor or the step does not fit; no tensor was changed.
        """
        steps: Tensors = () if isinstance(step, int) else step
        number = step_number(step) if isinstance(step, int) else 1
        control = control or Control()
        roles = {**self._roles(tensors), "step": steps}
        if not len(tensors.params):
            return
        if is_traced():
            # Tensors of the graph, where numbers would be its constants.
            zero = torch.zeros(1, dtype=torch.float32, device=tensors.params[0].device)
            if isinstance(step, int):
                roles["step"] = steps = [zero + (number - 1)]
                number = 1
            if control.lr is None:
                control = dataclasses.replace(control, lr=zero + options[0])
                options = (0.0, *options[1:])
        self._require_one_device(roles, control)
        states = [tensor for state in tensors.states for tensor in state]
        values = [float(value) for value in options]
        given = (control.lr, control.noop_flag, control.grad_scale, control.found_inf)
        arguments = (values, number, bool(control.maximize), int(control.chunk_size), self.isa)
        with explained(), torch.no_grad():
            self.ops.update.default(tensors.params, tensors.grads, states, steps, *given, *arguments)
        # autograd then notices what was changed between a forward and its backward.
        torch.autograd.graph.increment_version(tensors.params)

    @untraced
    def prepare(self, tensors: TensorLists, steps: Tensors) -> PreparedFused:
        """Keep tensors, of one device or several, for many updates, each of which then costs less.

        Args:
            steps: the updates done so far of each parameter: tensors of one float32 on its device,
                which every update counts up.

        Raises:
            OpArgumentError: a tensor is none or sparse, or on a device that this build of the op lacks. All
                else is checked by the updates.
        """
        roles = {**self._roles(tensors), "step": steps}
        by_device: dict[torch.device, list[int]] = {}
        for index, param in enumerate(tensors.params):
            by_device.setdefault(param.device, []).append(index)
        for indices in by_device.values():
            part = {role: [members[index] for index in indices] for role, members in roles.items()}
            self._require_one_device(part, Control())
        return PreparedFused(self, tensors, steps, by_device)

    def _roles(self, tensors: TensorLists) -> dict[str, Tensors]:
        roles = dict(roles_of(tensors, self.STATES))
        if tensors.scales or tensors.copies:
            raise OpArgumentError("Scales or copies were given, which this op lacks.", "Use a CPU optimizer's op.")
        del roles["copy"]
        return roles

    def _require_one_device(self, roles: Mapping[str, Tensors], control: Control) -> None:
        # Asked here, because one tensor of another device decides which kernel torch's dispatcher takes:
        # a meta tensor would silently get the one that does nothing.
        device = getattr(roles["param"][0], "device", None)
        name = f"is_{device.type if device is not None and device.type in self.devices else 'cpu'}"
        for role, members in roles.items():
            for index, tensor in enumerate(members):
                if not (getattr(tensor, name, False) and tensor.layout == torch.strided):
                    raise self._unfit(f"{role} of tensor {index}", tensor, device)
        for role in ("lr", "noop_flag", "grad_scale", "found_inf"):
            tensor = getattr(control, role)
            if tensor is not None and not getattr(tensor, name, False):
                raise self._unfit(role, tensor, device)

    def _unfit(self, what: str, tensor: Any, device: torch.device | None) -> OpArgumentError:
        if not isinstance(tensor, torch.Tensor):
            return OpArgumentError(f"{what} is of type {type(tensor).__name__}.", "Pass a torch.Tensor.")
        if tensor.layout != torch.strided:
            return OpArgumentError(
                f"{what} has layout {tensor.layout}; a dense (strided) tensor is needed.",
                "Pass a dense tensor, for example x.to_dense().",
            )
        if tensor.device != device:
            return OpArgumentError(
                f"{what} is on device {tensor.device}, the first parameter on {device}.",
                "Pass the tensors of each device in a call of their own.",
            )
        others = [name.upper() for name in self.devices if name != "cpu"]
        devices = f"the CPU and {' and '.join(others)} devices" if others else "the CPU alone"
        return OpArgumentError(
            f"{what} is on device {tensor.device}; this build of the op is for {devices}.",
            "Use the builder of that device, for example op_builder.cuda.FusedAdamBuilder, or move the tensors.",
        )


class PreparedFused:
    """Tensors that the native op keeps for many updates; made by :meth:`FusedOptimizerModule.prepare`.

    It keeps the tensors alive and looks at them in every update, so one whose memory, length or type
    was changed in place meanwhile is updated as it is then. A tensor that was replaced by another is
    not noticed: the list must be made anew, or :meth:`replace_grads` called.
    """

    def __init__(
        self,
        module: FusedOptimizerModule,
        tensors: TensorLists,
        steps: Tensors,
        by_device: Mapping[torch.device, Sequence[int]],
    ) -> None:
        self._isa = module.isa
        self._ops = module.ops
        self._params = tuple(tensors.params)
        self._parts: list[tuple[torch.device, Sequence[int], int]] = []
        for device, indices in by_device.items():
            lists = [[members[index] for index in indices] for members in (tensors.params, tensors.grads)]
            states = [state[index] for state in tensors.states for index in indices]
            with explained():
                number = self._ops.prepare.default(*lists, states, [steps[index] for index in indices])
            weakref.finalize(self, self._ops.forget.default, number).atexit = False
            self._parts.append((device, indices, number))

    @untraced
    def update(self, options: Sequence[float], control: Control) -> None:
        """Update all parameters and states in place and count their steps up, unless ``control`` says not to.

        Raises:
            OpArgumentError: a tensor does not fit any more; nothing of its device was changed.
        """
        values = list(options)
        for device, _, number in self._parts:
            arguments = (values, 1, bool(control.maximize), int(control.chunk_size), self._isa)
            with explained():
                self._ops.update_prepared.default(number, *control.tensors(device), *arguments)
        torch.autograd.graph.increment_version(self._params)

    @untraced
    def replace_grads(self, grads: Tensors) -> list[int]:
        """Take other gradients from now on, one for each parameter; they are checked by the updates.

        Returns:
            The places of those that are not contiguous, which an update would refuse.

        Raises:
            OpArgumentError: one is not on its parameter's device, or there are not as many as parameters.
        """
        if len(grads) != len(self._params):
            raise OpArgumentError(
                f"{len(self._params)} parameters came with {len(grads)} grad tensors.", "Pass one for each parameter."
            )
        odd: list[int] = []
        for _, indices, number in self._parts:
            members = grads if len(self._parts) == 1 else [grads[index] for index in indices]
            places = replaced_grads(self._ops.replace_grads.default, number, members)
            if places is None:
                raise OpArgumentError(
                    "A gradient is not on the device of its parameter.", "Pass gradients that backward() has made."
                )
            odd += [indices[place] for place in places]
        return odd

    @untraced
    def release_grads(self) -> None:
        """Hold the gradients no longer; updates are refused until :meth:`replace_grads`."""
        for _, _, number in self._parts:
            self._ops.release_grads.default(number)


class FusedAdamModule(FusedOptimizerModule):
    """Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019) over many tensors at once.

    The formula is torch.optim.AdamW's.
    """

    OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "adamw_mode", "bias_correction")
    STATES = ("exp_avg", "exp_avg_sq")

    def multi_tensor_adam(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        step: int,
        mode: int,
        bias_correction: bool,
        weight_decay: float,
    ) -> None:
        """Update parameters and both moments of all tensors in place.

        Args:
            chunk_size: the most elements that a block of threads works on at once.
            noop_flag: an int32 tensor of one element on the device of the parameters; if it is not 0 when
                the update runs, nothing is changed.
            tensor_lists: ``[grads, params, exp_avgs, exp_avg_sqs]``, lists of equal length.
            step: the number of this update, from 1.
            mode: 0 is Adam with L2 penalty, 1 is AdamW with decoupled weight decay.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        options = adam_options(finite_number("lr", lr), beta1, beta2, eps, weight_decay, mode, bias_correction)
        tensors = named_lists(tensor_lists, self.STATES)
        control = Control(noop_flag=noop_flag, chunk_size=checked_chunk(chunk_size))
        self.update_list(tensors, options, step_number(step), control)

    def multi_tensor_adam_capturable(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        lr: torch.Tensor,
        beta1: float,
        beta2: float,
        eps: float,
        step: torch.Tensor | Tensors,
        mode: int,
        bias_correction: bool,
        weight_decay: float,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """:meth:`multi_tensor_adam` with learning rate and steps read where the tensors are.

        Args:
            lr: a float32 tensor of one element on the device of the parameters.
            step: the updates done so far: a float32 tensor of one element on that device for all
                parameters, or a list of one for each. They are counted up before the update, unless it is
                skipped. No tensor may appear twice.
            grad_scale: a float32 tensor of one element; gradients are divided by it first.
            found_inf: a float32 tensor of one element; if it is not 0, nothing is changed.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        options = adam_options(0.0, beta1, beta2, eps, weight_decay, mode, bias_correction)
        control = Control(one_tensor("lr", lr), noop_flag, grad_scale, found_inf, chunk_size=checked_chunk(chunk_size))
        self.update_list(named_lists(tensor_lists, self.STATES), options, step_tensors(step), control)


class FusedLionModule(FusedOptimizerModule):
    """Lion (Chen et al., 2023, arXiv:2302.06675) over many tensors at once."""

    OPTIONS = ("lr", "beta1", "beta2", "weight_decay")
    STATES = ("exp_avg",)

    def multi_tensor_lion(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        lr: float | torch.Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """Update parameters and the moment of all tensors in place.

        Args:
            chunk_size: the most elements that a block of threads works on at once.
            noop_flag: an int32 tensor of one element on the device of the parameters; if it is not 0 when
                the update runs, nothing is changed.
            tensor_lists: ``[grads, params, exp_avgs]``, lists of equal length.
            lr: a number, or a float32 tensor of one element on that device, read when the update runs.
            grad_scale, found_inf: as for :meth:`FusedAdamModule.multi_tensor_adam_capturable`.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        number, lr_tensor = learning_rate(lr)
        options = (number, *checked_betas(beta1, beta2), finite_number("weight_decay", weight_decay))
        control = Control(lr_tensor, noop_flag, grad_scale, found_inf, chunk_size=checked_chunk(chunk_size))
        self.update_list(named_lists(tensor_lists, self.STATES), options, (), control)


class FusedLambModule(FusedOptimizerModule):
    """LAMB (You et al., 2020, arXiv:1904.00962) over many tensors at once.

    Norms are taken over each tensor, summed in float64 in a fixed order.
    """

    OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "bias_correction")
    STATES = ("exp_avg", "exp_avg_sq")

    def multi_tensor_lamb(
        self,
        chunk_size: int,
        noop_flag: torch.Tensor | None,
        tensor_lists: Sequence[Tensors],
        lr: float | torch.Tensor,
        beta1: float,
        beta2: float,
        eps: float,
        step: int | torch.Tensor | Tensors,
        bias_correction: bool,
        weight_decay: float,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        """Update parameters and both moments of all tensors in place.

        Args:
            chunk_size: on a CUDA device, the elements whose squares are summed before those sums are;
                another value may change the last bits of the norms.
            noop_flag: an int32 tensor of one element on the device of the parameters; if it is not 0 when
                the update runs, nothing is changed.
            tensor_lists: ``[grads, params, exp_avgs, exp_avg_sqs]``, lists of equal length.
            lr: a number, or a float32 tensor of one element on that device, read when the update runs.
            step: the number of this update, from 1; or tensors, as for
                :meth:`FusedAdamModule.multi_tensor_adam_capturable`.
            grad_scale, found_inf: as there.

        Raises:
            OpArgumentError: an argument does not fit; no tensor was changed.
        """
        number, lr_tensor = learning_rate(lr)
        options = (
            number,
            *checked_betas(beta1, beta2),
            finite_number("eps", eps),
            finite_number("weight_decay", weight_decay),
            bool(bias_correction),
        )
        control = Control(lr_tensor, noop_flag, grad_scale, found_inf, chunk_size=checked_chunk(chunk_size))
        self.update_list(named_lists(tensor_lists, self.STATES), options, step_or_tensors(step), control)
