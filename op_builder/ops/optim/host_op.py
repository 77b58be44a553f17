"""The object that ``load()`` returns for optimizers on host tensors: list updates, and functions of one tensor."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import check_nesterov, checked_numbers, is_traced, step_number, switch
from op_builder.ops.optim.native_op import REQUIRED, NativeOp
from op_builder.ops.optim.tensor_lists import Pass, TensorLists, roles_of

logger = logging.getLogger(__name__)


class HostOp(NativeOp):
    """An optimizer on host tensors.

    It updates lists, all parameters of a group in one native call, and single tensors by functions made from the
    optimizer's declaration: for Adam ``create_adam``, ``adam_update``, ``adam_rollback`` and ``destroy_adam``. For
    those, tensors are contiguous, in host memory and of equal length: a parameter of float32, bfloat16 or float16, a
    gradient of any of the three, and states, all of float32 or all of the parameter's type.

    torch's threads get even shares of all elements together. Arithmetic is in float32; results do not depend on the
    number of threads. Everything is checked before anything is written.
    """

    def __init__(self, ops: Any) -> None:
        super().__init__(ops)
        self._modes: dict[int, dict[str, bool]] = {}  # by optimizer id
        self._make_functions()

    def update_list(
        self, tensors: TensorLists, step: int, options: Sequence[float], settings: Pass | None = None
    ) -> None:
        """Update all parameters and their states in place; an OpArgumentError changes nothing.

        Under torch.compile step, options and ``grad_scale`` may change without another graph, and be tensors of one
        element on the CPU, read when the graph runs; a value out of range is a ValueError then.

        Args:
            tensors: no tensor may appear twice.
            step: the number of this update, from 1.
            options: as in ``self.options``; their values are not checked.
        """
        settings = settings or Pass()
        roles = self._roles(tensors)
        step = step_number(step)
        rest = (*settings.settings(), self.isa, tensors.places)
        if is_traced():
            numbers = _in_a_tensor((step, settings.grad_scale, *options))
            self._call(self.ops.update.numbers, roles, *tensors.positional(), numbers, *rest)
        else:
            values = [float(value) for value in options]
            scale = float(settings.grad_scale)
            self._call(self.ops.update.default, roles, *tensors.positional(), step, values, scale, *rest)
        # autograd then notices a change between a forward and its backward.
        torch.autograd.graph.increment_version(tensors.changed(settings))

    def _prepare(self, tensors: TensorLists, steps: Sequence[torch.Tensor]) -> int:
        number: int = self.ops.prepare.default(*tensors.positional(), steps, tensors.places)
        return number

    def prepared_arguments(self, options: Sequence[float], settings: Pass) -> tuple[Any, ...]:
        return (list(options), *settings.positional(), self.isa)

    def _roles(self, tensors: TensorLists) -> dict[str, Sequence[torch.Tensor]]:
        return roles_of(tensors, self.states)

    # The functions of one tensor --------------------------------------------------------------

    def _make_functions(self) -> None:
        declared = self.declaration
        kind = declared.name.lower()
        later_numbers = {key: default for key, default in declared.numbers.items() if key != "lr"}
        created = {
            "optimizer_id": REQUIRED,
            "alpha": declared.numbers["lr"],
            **later_numbers,
            **declared.modes,
            "should_log": False,
        }
        each = ("optimizer_id", "step", *declared.numbers, *declared.switches, "param", "grad", *self.states)
        updated = dict.fromkeys(each, REQUIRED)
        changed = ", ".join(f"``{name}``" for name in ("param", *self.states))
        fixed = "".join(f"The id fixes ``{name}``. " for name in declared.modes)
        self._add(
            f"create_{kind}",
            f"Register an optimizer under an id, an int that the caller chooses.\n\n{fixed}Other values are checked "
            "here, and given again to every update. Raises OpArgumentError if the id is not an int or in use, or a "
            "value is out of range.",
            created,
            self._create,
        )
        self._add(
            f"{kind}_update",
            f"Update {changed} in place; ``step`` counts from 1.\n\n"
            "Raises OpArgumentError if an argument does not fit; no tensor was changed then.",
            updated,
            lambda given: self.update_list(_lists_of_one(given, self.states), given["step"], self._values(given)),
        )
        if hasattr(self.ops, "rollback"):
            self._add(
                f"{kind}_rollback",
                f"Undo the ``{kind}_update`` that had these arguments and left these tensors.\n\n"
                "All tensors are float32. ``csrc/kernels/cpu/adam.h`` bounds how far the result may be from the old "
                "values. Raises OpArgumentError if an argument does not fit, and for a beta of 0 and "
                "lr * weight_decay = 1, where the old values are lost; no tensor was changed then.",
                updated,
                self._roll_back,
            )
        self._add(
            f"destroy_{kind}",
            "Forget an optimizer and free its id.\n\nRaises OpArgumentError if no optimizer has this id.",
            {"optimizer_id": REQUIRED},
            lambda given: self._modes.pop(self._existing_id(given["optimizer_id"])),
        )

    def _create(self, given: dict[str, Any]) -> None:
        declared = self.declaration
        number = _identity(given["optimizer_id"])
        numbers = checked_numbers(**{key: given["alpha" if key == "lr" else key] for key in declared.numbers})
        if number in self._modes:
            destroy = f"destroy_{declared.name.lower()}"
            raise OpArgumentError(f"Optimizer id {number} is in use.", f"Choose another id, or call {destroy} first.")
        modes = {key: switch(key, given[key]) for key in declared.modes}
        check_nesterov({**numbers, **modes})
        self._modes[number] = modes
        if switch("should_log", given["should_log"]):
            values = ", ".join(f"{key}={value}" for key, value in {**numbers, **modes}.items())
            logger.info("%s optimizer %s: %s arithmetic, %s", declared.name, number, self.isa, values)

    def _existing_id(self, optimizer_id: Any) -> int:
        number = _identity(optimizer_id)
        if number not in self._modes:
            raise OpArgumentError(
                f"No {self.declaration.name} optimizer with id {optimizer_id} exists.",
                f"Call create_{self.declaration.name.lower()} with this id first.",
            )
        return number

    def _values(self, given: dict[str, Any]) -> list[float]:
        """The options of an update of one tensor, in the op's order."""
        declared = self.declaration
        modes = self._modes[self._existing_id(given["optimizer_id"])]
        numbers = checked_numbers(**{key: given[key] for key in declared.numbers})
        switches = {key: switch(key, given[key]) for key in declared.switches}
        values = {**declared.constants, **numbers, **modes, **switches}
        check_nesterov(values)
        return [values[key] for key in declared.options]

    def _roll_back(self, given: dict[str, Any]) -> None:
        tensors = _lists_of_one(given, self.states)
        params, grads, states, _ = tensors.positional()
        numbers = (step_number(given["step"]), [float(value) for value in self._values(given)])
        self._call(self.ops.rollback.default, self._roles(tensors), params, grads, states, *numbers, self.isa)
        torch.autograd.graph.increment_version(params)


def _lists_of_one(given: Mapping[str, Any], states: Sequence[str]) -> TensorLists:
    """The lists of a single parameter."""
    return TensorLists([given["param"]], [given["grad"]], [[given[state]] for state in states])


def _identity(optimizer_id: Any) -> int:
    try:
        if not isinstance(optimizer_id, bool):
            return operator.index(optimizer_id)
    except TypeError:
        pass
    raise OpArgumentError(f"optimizer_id is {optimizer_id!r}, which is not an int.", "Pass an int.")


def _in_a_tensor(numbers: Iterable[float | torch.Tensor]) -> torch.Tensor:
    """``numbers``, which may be a traced graph's inputs and tensors of one element, as float64 on the CPU."""
    zero = torch.zeros(1, dtype=torch.float64, device="cpu")
    # Added, because torch.tensor() and torch.full() would make them constants of the graph.
    return torch.cat([(zero + number).reshape(1) for number in numbers])
