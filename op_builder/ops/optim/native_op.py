"""What the native ops of all optimizers have in common: a declaration, and functions that are made from it.

The declaration is written once, in the optimizer's header in ``csrc/kernels/formulas``; ``adam.h`` there explains it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from op_builder import env
from op_builder.system.cpu_isa import best_isa

if TYPE_CHECKING:
    import torch

    from op_builder.errors import OpArgumentError
    from op_builder.ops.optim.prepared import PreparedList
    from op_builder.ops.optim.tensor_lists import TensorLists

REQUIRED = inspect.Parameter.empty  #: the default of a parameter that has none


class Declaration(NamedTuple):
    """What an optimizer takes.

    Attributes:
        name: for messages; in lower case it is part of the functions' names.
        states: the names of its states.
        options: the numbers that every update takes, in the op's order. Each is in one of the following.
        numbers: those that the functions of one tensor take, with their defaults.
        modes: switches that are fixed when an optimizer is created, with their defaults.
        switches: switches of each update.
        constants: what is no argument of a function, with its value.
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
        """The declaration in the form in which csrc/bindings/host_tensors.h gives it."""
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


def make_function(
    name: str, documentation: str, parameters: Mapping[str, Any], body: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """A function of these parameters, which may be given by position or name.

    Args:
        parameters: defaults by name, in order; REQUIRED for none.
        body: gets the value of each parameter by its name.
    """

    def function(*arguments: Any, **keywords: Any) -> None:
        given = dict(zip(parameters, arguments, strict=False))
        unknown = [key for key in keywords if key in given or key not in parameters]
        values = {**parameters, **given, **keywords}
        missing = [key for key in parameters if values[key] is REQUIRED]
        if len(arguments) > len(parameters) or unknown or missing:
            raise TypeError(f"{name}() takes ({', '.join(parameters)}); missing: {missing}, unexpected: {unknown}.")
        body(values)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = documentation
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made = [inspect.Parameter(key, kind, default=default) for key, default in parameters.items()]
    function.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    return function


class NativeOp:
    """Base of :class:`HostOp` and :class:`FusedOp`.

    Args:
        ops: the namespace of torch ops that the binding registered.

    Attributes:
        ops: the namespace.
        declaration: what the optimizer takes.
        options: the numbers that every update takes, in their order.
        states: the names of the optimizer's states.
        isa: instruction set in use on the CPU, fixed when the object is made (``ACCEL_CPU_ISA`` caps it).
    """

    def __init__(self, ops: Any) -> None:
        self.ops = ops
        isas = ops.supported_isas()  # none where a CPU is a device like others, whose compiler knows it
        self.isa = best_isa(tuple(isas.split(",")), env.ACCEL_CPU_ISA.get()) if isas else ""
        self.declaration = Declaration.parse(ops.declaration())
        self.options = self.declaration.options
        self.states = self.declaration.states

    def prepare(self, tensors: "TensorLists", steps: "Sequence[torch.Tensor]") -> "PreparedList":
        """Keep tensors for many updates."""
        raise NotImplementedError

    def prepared_arguments(self, options: Sequence[float], settings: Any, device: "torch.device") -> tuple[Any, ...]:
        """What the op ``update_prepared`` takes after the list's number."""
        raise NotImplementedError

    def unfit_tensor(
        self, roles: "Mapping[str, Sequence[torch.Tensor]]", device: "torch.device | None"
    ) -> "OpArgumentError":
        """Says which argument is not a tensor, or sparse, or not on ``device``."""
        raise NotImplementedError

    def _add(self, name: str, documentation: str, parameters: Mapping[str, Any], body: Callable[..., Any]) -> None:
        setattr(self, name, make_function(name, documentation, parameters, body))

    if TYPE_CHECKING:  # what _add adds

        def __getattr__(self, name: str) -> Callable[..., None]: ...
