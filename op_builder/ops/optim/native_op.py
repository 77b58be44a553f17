"""What the native ops of all optimizers share: a declaration, functions made from it, prepared lists, checks.

The declaration is written once, in the optimizer's header in ``csrc/kernels/formulas``; ``adam.h`` there explains it.
"""

import inspect
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from op_builder import env
from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import explained, is_dense, is_traced, not_dense, require_memory, untraced
from op_builder.system.cpu_isa import best_isa

if TYPE_CHECKING:
    from op_builder.ops.optim.tensor_lists import TensorLists

Roles = Mapping[str, Sequence[torch.Tensor]]  #: tensors by the names that messages use

REQUIRED = inspect.Parameter.empty  #: the default of a parameter that has none


class Declaration(NamedTuple):
    """An optimizer's states and options.

    Attributes:
        name: for messages; in lower case it is part of the functions' names.
        states: the names of its states.
        options: the numbers that every update takes, in the op's order. Each is in one of the following.
        numbers: those that the functions of one tensor take, with their defaults.
        modes: switches that are fixed when an optimizer is created, with their defaults.
        switches: switches of each update.
        constants: options that no function takes, with their values.
        has_step: whether the formula depends on the number of the step.
    """

    name: str
    states: tuple[str, ...]
    options: tuple[str, ...]
    numbers: dict[str, float]
    modes: dict[str, bool]
    switches: tuple[str, ...]
    constants: dict[str, float]
    has_step: bool

    @classmethod
    def parse(cls, text: str) -> "Declaration":
        """Parse the text that csrc/bindings/host_tensors.h makes."""
        name, states, options, step = text.split("\n")
        made = cls(name, tuple(states.split(",")), (), {}, {}, (), {}, bool(step))
        names: list[str] = []
        switches: list[str] = []
        for option in options.split(","):
            if ":" in option:
                key, _, default = option.partition(":")
                made.constants[key] = float(default)
            elif "=" in option:
                key, _, default = option.partition("=")
                if default in ("true", "false"):
                    made.modes[key] = default == "true"
                else:
                    made.numbers[key] = float(default)
            else:
                key = option
                switches.append(key)
            names.append(key)
        return made._replace(options=tuple(names), switches=tuple(switches))


class NativeOp:
    """Base of :class:`HostOp` and :class:`FusedOp`, on the namespace of torch ops that the binding registered.

    Attributes:
        options: the numbers that every update takes, in their order.
        states: the names of the optimizer's states.
        isa: the CPU instruction set in use, fixed when the object is made (``ACCEL_CPU_ISA`` caps it).
        devices: the types of devices that the binary has kernels for.
    """

    devices: tuple[str, ...] = ("cpu",)

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        isas = ops.supported_isas()  # empty for SYCL, whose runtime compiles for the CPU
        self.isa = best_isa(tuple(isas.split(",")), env.ACCEL_CPU_ISA.get()) if isas else ""
        self.declaration = Declaration.parse(ops.declaration())
        self.options = self.declaration.options
        self.states = self.declaration.states

    @untraced
    def prepare(self, tensors: "TensorLists", steps: Sequence[torch.Tensor]) -> "PreparedList":
        """Keep tensors of one device for many updates, each of which then costs 0.1 microseconds per tensor.

        Only devices and the lists' lengths are checked here. The updates check everything else.

        Args:
            steps: the number of updates done so far of each parameter, which every update advances: tensors of one
                float32 on its device.
        """
        roles = {**self._roles(tensors), "step": steps}
        # An op that only reads gradients may get lazy negations: the dispatcher passes it their values.
        roles["grad"] = [grad.resolve_neg() if isinstance(grad, torch.Tensor) else grad for grad in tensors.grads]
        number = self._call(self._prepare, roles, tensors, steps) or 0
        if tensors.params and not number:
            raise OpArgumentError(
                "A tensor is a fake tensor; an update needs memory to write.",
                "Pass real tensors, and call this outside FakeTensorMode.",
            )
        return PreparedList(self, number, tensors)

    def _prepare(self, tensors: "TensorLists", steps: Sequence[torch.Tensor]) -> int:
        """Call the op ``prepare``."""
        raise NotImplementedError

    def prepared_arguments(self, options: Sequence[float], settings: Any) -> tuple[Any, ...]:
        """The arguments of the op ``update_prepared`` between the list's number and ``check_only``."""
        raise NotImplementedError

    def _roles(self, tensors: "TensorLists") -> dict[str, Sequence[torch.Tensor]]:
        """The lists under the names that messages use; raises an OpArgumentError if they do not fit together."""
        raise NotImplementedError

    def _call(self, op: Callable[..., Any], roles: Roles, *arguments: Any) -> Any:
        """Call an op, unless there are no tensors; ``roles`` are those among the arguments."""
        filled = [members for members in roles.values() if len(members)]
        if not filled:
            return None
        device = getattr(filled[0][0], "device", None)
        # Checked first because a single tensor decides which kernel torch's dispatcher takes: one meta tensor would
        # select the kernel that does nothing.
        is_on_device = f"is_{device.type if device is not None and device.type in self.devices else 'cpu'}"
        for members in filled:
            for tensor in members:
                if not (getattr(tensor, is_on_device, False) and tensor.layout == torch.strided):
                    raise self.unfit_tensor(roles, device)
                if not is_traced() and tensor.is_neg():
                    raise self.unfit_tensor(roles, device)
        try:
            with explained(), torch.no_grad():
                return op(*arguments)
        except NotImplementedError:  # torch has no kernel for a tensor of this type
            raise self.unfit_tensor(roles, device) from None

    def unfit_tensor(self, roles: Roles, device: torch.device | None) -> OpArgumentError:
        """The error for the first tensor that no op of this object takes, with tensors on ``device``."""
        for role, members in roles.items():
            for index, tensor in enumerate(members):
                if not self._fits(tensor, device):
                    return self._unfit(f"{role} of tensor {index}", tensor, device)
        return OpArgumentError(
            "torch has no kernel for these tensors.", "Pass dense tensors of the class torch.Tensor."
        )

    def _fits(self, tensor: Any, device: torch.device | None) -> bool:
        if not is_dense(tensor) or (not is_traced() and tensor.is_neg()):
            return False
        return tensor.device == device and tensor.device.type in self.devices

    def _unfit(self, what: str, tensor: Any, device: torch.device | None) -> OpArgumentError:
        if not is_dense(tensor):
            return not_dense(what, tensor)
        if tensor.device.type not in self.devices:
            supported = " and ".join(name.upper() for name in self.devices)
            return OpArgumentError(
                f"{what} is on device {tensor.device}; this build of the op supports {supported} tensors.",
                "Move the tensor, for example by x.cpu(), or use the builder of its device, for example "
                "op_builder.cuda.FusedAdamBuilder.",
            )
        if tensor.device != device:
            return OpArgumentError(
                f"{what} is on device {tensor.device}, the first tensor on {device}.",
                "Pass the tensors of each device in a separate call.",
            )
        return OpArgumentError(
            f"{what} is a lazy negation: its memory holds the values with the opposite sign.", "Pass x.resolve_neg()."
        )

    def _add(
        self, name: str, documentation: str, parameters: Mapping[str, Any], body: Callable[[dict[str, Any]], Any]
    ) -> None:
        """Add a function whose ``parameters`` (defaults by name; REQUIRED for none) may be given by position or name.

        It calls ``body`` with the value of each.
        """

        def function(*arguments: Any, **keywords: Any) -> None:
            given = dict(zip(parameters, arguments, strict=False))
            unknown = [key for key in keywords if key in given or key not in parameters]
            values = {**parameters, **given, **keywords}
            missing = [key for key in parameters if values[key] is REQUIRED]
            if len(arguments) > len(parameters) or unknown or missing:
                wrong = {"missing": missing, "unexpected": unknown, "too many": list(arguments[len(parameters) :])}
                texts = [f"{what}: {', '.join(map(str, named))}" for what, named in wrong.items() if named]
                raise TypeError(f"{name}() takes ({', '.join(parameters)}); {'; '.join(texts)}.")
            body(values)

        function.__name__ = function.__qualname__ = name
        function.__doc__ = documentation
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        made = [inspect.Parameter(key, kind, default=default) for key, default in parameters.items()]
        function.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
        setattr(self, name, function)

    if TYPE_CHECKING:  # the functions that _add makes

        def __getattr__(self, name: str) -> Callable[..., None]: ...


class PreparedList:
    """Tensors of one device that a native op keeps for many updates; made by its ``prepare``.

    It keeps the tensors alive and checks them in every update: a tensor whose memory, length or type was changed in
    place is updated as it is then. It does not notice that a tensor was replaced by another: prepare a new list, or
    call :meth:`replace_grads`.
    """

    def __init__(self, op: NativeOp, number: int, tensors: "TensorLists") -> None:
        self._op = op
        self._number = number
        self._count = len(tensors.params)
        self._changed = (*tensors.params, *tensors.copies)
        self._grads = tuple(tensors.grads)
        self._grads_are_writable = False  # whether they were checked
        self._device = tensors.params[0].device if self._count else torch.device("cpu")
        if number:
            weakref.finalize(self, op.ops.forget.default, number).atexit = False

    @untraced
    def update(self, options: Sequence[float], settings: Any, check_only: bool = False) -> None:
        """Update all parameters and states in place and advance their steps; an OpArgumentError changes nothing.

        Args:
            options: as in the op's ``options``.
            settings: a :class:`~op_builder.ops.optim.tensor_lists.Pass` for an optimizer on host tensors, a
                :class:`~op_builder.ops.optim.fused_op.Control` for a fused one.
            check_only: raise that error, and change nothing either without one.
        """
        if not self._number:
            return
        zero_grads = getattr(settings, "zero_grads", False)
        if zero_grads:
            self.require_writable_grads()
        with explained():
            arguments = self._op.prepared_arguments(options, settings)
            self._op.ops.update_prepared.default(self._number, *arguments, check_only)
        if not check_only:
            torch.autograd.graph.increment_version((*self._changed, *self._grads) if zero_grads else self._changed)

    def replace_grads(self, grads: Sequence[torch.Tensor]) -> list[int]:
        """Use other gradients from the next update on, which checks them.

        Returns:
            The indices of those that are not contiguous, which an update would reject.
        """
        if len(grads) != self._count:
            raise OpArgumentError(
                f"{self._count} parameters came with {len(grads)} grad tensors.", "Pass one for each parameter."
            )
        if not self._number:
            return []
        taken = 0
        strided: list[int] = []
        try:
            for grad in filter(torch.Tensor.is_neg, grads):  # the dispatcher passes copies of lazy negations
                require_memory("A lazy negation", grad)
            with explained():
                taken, *strided = self._op.ops.replace_grads.default(self._number, grads)
        except (RuntimeError, TypeError) as error:  # NotImplementedError, a RuntimeError: torch has no kernel for one
            if all(isinstance(grad, torch.Tensor) for grad in grads) and not isinstance(error, NotImplementedError):
                raise  # an error of a gradient itself
        if taken != len(grads):
            raise self._op.unfit_tensor({"grad": grads}, self._device)
        self._grads = tuple(grads)
        self._grads_are_writable = False
        return strided

    def require_writable_grads(self) -> None:
        """Raise an OpArgumentError if a gradient is a lazy negation: zeros would go to a copy with its values."""
        if not self._grads_are_writable and any(map(torch.Tensor.is_neg, self._grads)):
            raise self._op.unfit_tensor({"grad": self._grads}, self._device)
        self._grads_are_writable = True

    def moved_params(self) -> list[int]:
        """The indices of parameters whose memory, length or type changed since the last update."""
        if not self._number:
            return []
        moved: list[int] = self._op.ops.moved_params.default(self._number)
        return moved

    def release_grads(self) -> None:
        """Drop the gradients; updates are rejected until :meth:`replace_grads`."""
        if self._number:
            self._op.ops.release_grads.default(self._number)
            self._grads = ()

    def grad_norm(self) -> float:
        """The Euclidean norm of all gradients together, for tensors in host memory; inf or NaN if an element is.

        Raises:
            OpArgumentError: a gradient does not fit, or the gradients were released.
        """
        if not self._number:
            return 0.0
        if not self._grads:
            raise OpArgumentError("The gradients were released.", "Call replace_grads first.")
        with explained():
            return math.sqrt(self._op.ops.grad_sum_of_squares.default(self._number, self._op.isa))
