"""What a native update of many tensors takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from op_builder.errors import OpArgumentError

QUANT_BLOCK = 256  # elements that share a scale where states are bytes; csrc/kernels/cpu/optimizer.h


class Pass(NamedTuple):
    """What an update does in addition to its formula, in the same pass over memory.

    Attributes:
        grad_scale: every gradient is multiplied by it first: one over a loss scale, a factor that
            clips the norm, a negative number to maximise.
        zero_grads: leave zeros in the gradients.
        stochastic: states of bfloat16 are rounded up or down at random, so that the mean is exact.
        seed: of that rounding, and of 8-bit states'. The same seed, step and place of a
            parameter (``TensorLists.places``) give the same bits, whatever the number of threads.
    """

    grad_scale: float = 1.0
    zero_grads: bool = False
    stochastic: bool = False
    seed: int = 0

    def positional(self) -> tuple[float, bool, bool, int]:
        """The fields as the ops take them."""
        return (float(self.grad_scale), *self.settings())

    def settings(self) -> tuple[bool, bool, int]:
        """All but the first, which may change from call to call."""
        return (bool(self.zero_grads), bool(self.stochastic), int(self.seed))


class TensorLists(NamedTuple):
    """The tensors of an update, a list entry for each parameter.

    Attributes:
        params: contiguous CPU tensors of float32, bfloat16 or float16.
        grads: of the same lengths, of any of the three types.
        states: a list for each state of the optimizer; entries are all of float32, of their
            parameter's type, of bfloat16 with ``Pass.stochastic``, or uint8 with scales.
        scales: a list for each state, of float32 tensors with one entry for each QUANT_BLOCK
            elements begun; empty unless states are uint8.
        copies: where the new parameters go as well, rounded to their own type; or empty.
        places: an int for each parameter that its random bits depend on, of 64 bits; empty for its index. Numbers
            that stay keep the bits of a parameter when others join the list or leave it.
    """

    params: Sequence[torch.Tensor]
    grads: Sequence[torch.Tensor]
    states: Sequence[Sequence[torch.Tensor]]
    scales: Sequence[Sequence[torch.Tensor]] = ()
    copies: Sequence[torch.Tensor] = ()
    places: Sequence[int] = ()

    def by_role(self, names: Sequence[str]) -> dict[str, Sequence[torch.Tensor]]:
        """All lists under the names that messages give them.

        Raises:
            OpArgumentError: there are not as many lists of states, or of scales, as ``names``, or a
                list is not as long as ``params``.
        """
        for what, lists in (("states", self.states), ("scales", self.scales or names)):
            if len(lists) != len(names):
                raise OpArgumentError(
                    f"{len(lists)} lists of {what} were given.", f"Pass {len(names)}: {', '.join(names)}."
                )
        scales = {f"scale of {name}": scale for name, scale in zip(names, self.scales, strict=False)}
        states = dict(zip(names, self.states, strict=True))
        roles = {"param": self.params, "grad": self.grads, **states, **scales, "copy": self.copies}
        # Not left to the op, which gets all states end to end: lists of 2 and 0 would look like 1 and 1.
        for role, members in roles.items():
            if len(members) != len(self.params) and (role != "copy" or len(members)):
                raise OpArgumentError(
                    f"{len(self.params)} parameters came with {len(members)} {role} tensors.",
                    "Pass one for each parameter.",
                )
        if len(self.places) not in (0, len(self.params)):
            raise OpArgumentError(
                f"{len(self.params)} parameters came with {len(self.places)} places.",
                "Pass one for each parameter, or none.",
            )
        return roles

    def changed(self, also: Pass) -> list[torch.Tensor]:
        """What an update changes of the tensors that autograd may have kept."""
        return [*self.params, *self.copies, *(self.grads if also.zero_grads else ())]

    def positional(self) -> tuple[Sequence[torch.Tensor], ...]:
        """The lists of tensors as the ops take them: those of all states end to end."""
        states = [tensor for state in self.states for tensor in state]
        scales = [tensor for scale in self.scales for tensor in scale]
        return (self.params, self.grads, states, scales, self.copies)


def roles_of(tensors: TensorLists, states: Sequence[str]) -> dict[str, Sequence[torch.Tensor]]:
    """The lists of an update by the names that messages give them.

    Raises:
        OpArgumentError: ``tensors`` is something else, or its lists do not fit together.
    """
    if not isinstance(tensors, TensorLists):
        raise OpArgumentError(
            f"tensors is of type {type(tensors).__name__}.",
            "Pass an op_builder.ops.optim.tensor_lists.TensorLists(params, grads, states).",
        )
    return tensors.by_role(states)
