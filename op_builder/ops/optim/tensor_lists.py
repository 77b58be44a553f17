"""The arguments of a native update of many tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from op_builder.errors import OpArgumentError

QUANT_BLOCK = 256  # elements that share a scale in 8-bit states; csrc/kernels/cpu/optimizer.h


class Pass(NamedTuple):
    """What an update does in addition to its formula, in the same pass over memory.

    Attributes:
        grad_scale: every gradient is multiplied by it first: one over a loss scale, a factor that
            clips the norm, a negative number to maximise.
        zero_grads: leave zeros in the gradients.
        stochastic: round states of bfloat16 up or down at random, so that the mean is exact.
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
        """All fields except ``grad_scale``, which a traced graph takes as a tensor."""
        return (bool(self.zero_grads), bool(self.stochastic), int(self.seed))


class TensorLists(NamedTuple):
    """The tensors of an update; each list has one entry per parameter.

    Attributes:
        params: contiguous tensors of float32, bfloat16 or float16.
        grads: of the same lengths, of any of the three types.
        states: a list for each state of the optimizer; entries are all of float32, of their
            parameter's type, of bfloat16 with ``Pass.stochastic``, or of uint8: 8-bit states, of
            packed_states.packed_length() bytes.
        copies: tensors that also receive the new parameters, rounded to their own type; or empty.
        places: an int of 64 bits for each parameter that its random bits depend on; empty for its index. Fixed
            numbers keep a parameter's bits the same when others join or leave the list.
    """

    params: Sequence[torch.Tensor]
    grads: Sequence[torch.Tensor]
    states: Sequence[Sequence[torch.Tensor]]
    copies: Sequence[torch.Tensor] = ()
    places: Sequence[int] = ()

    def changed(self, settings: Pass) -> list[torch.Tensor]:
        """The tensors that an update changes and that autograd may have saved."""
        return [*self.params, *self.copies, *(self.grads if settings.zero_grads else ())]

    def positional(self) -> tuple[Sequence[torch.Tensor], ...]:
        """The lists as the ops take them, with the lists of all states joined."""
        states = [tensor for state in self.states for tensor in state]
        return (self.params, self.grads, states, self.copies)


def roles_of(tensors: TensorLists, names: Sequence[str]) -> dict[str, Sequence[torch.Tensor]]:
    """The lists under the names that messages use; raises an OpArgumentError if they do not fit together."""
    if not isinstance(tensors, TensorLists):
        raise OpArgumentError(
            f"tensors is of type {type(tensors).__name__}.",
            "Pass an op_builder.ops.optim.tensor_lists.TensorLists(params, grads, states).",
        )
    if len(tensors.states) != len(names):
        raise OpArgumentError(
            f"{len(tensors.states)} lists of states were given.", f"Pass {len(names)}: {', '.join(names)}."
        )
    states = dict(zip(names, tensors.states, strict=True))
    roles = {"param": tensors.params, "grad": tensors.grads, **states, "copy": tensors.copies}
    # Checked here because the op gets the lists of all states joined: lists of 2 and 0 would look like 1 and 1.
    for role, members in roles.items():
        if len(members) != len(tensors.params) and (role != "copy" or len(members)):
            raise OpArgumentError(
                f"{len(tensors.params)} parameters came with {len(members)} {role} tensors.",
                "Pass one for each parameter.",
            )
    if len(tensors.places) not in (0, len(tensors.params)):
        raise OpArgumentError(
            f"{len(tensors.params)} parameters came with {len(tensors.places)} places.",
            "Pass one for each parameter, or none.",
        )
    return roles


def write_zeros(tensors: list[torch.Tensor]) -> None:
    """Set tensors to zeros after an update, which must not fail then.

    Only inference mode changes both kinds of tensors, those that were made in it and the others.
    """
    with torch.inference_mode():
        torch._foreach_zero_(tensors)
