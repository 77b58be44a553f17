"""The base of the optimizers with parameters and states in host memory.

One native call updates all parameters of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, overload

import torch

from op_builder.errors import OpArgumentError
from op_builder.ops.arguments import (
    bounded_int,
    finite_number,
    is_dense,
    positive_number,
    step_count,
    switch,
    untraced,
)
from op_builder.ops.declare import load_host
from op_builder.ops.optim.checks import check_copy, owners_of_shared_memory, place_of
from op_builder.ops.optim.in_backward import add_hooks, remove_hooks
from op_builder.ops.optim.optimizer import NativeOptimizer, is_of_copy
from op_builder.ops.optim.prepared_groups import Batch
from op_builder.ops.optim.sharding import local_of, sharding_of
from op_builder.ops.optim.tensor_lists import Pass, TensorLists, write_zeros

_LARGEST_FLOAT = torch.finfo(torch.float32).max
_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_'s

# Options of the optimizer, not of a group, and their values for old pickles that lack them.
_SAVED: dict[str, Any] = {"max_grad_norm": None, "zero_grads": False, "seed": 0, "in_backward": False, "copies": {}}


class HostSettings(TypedDict, total=False):
    """Keyword arguments of every optimizer in host memory.

    Attributes:
        maximize: maximise the objective; an option of a group.
        states: the storage of the states, an option of a group: ``float32``, ``param`` (the parameter's type),
            ``bfloat16`` (rounded at random, so that small changes are not lost; 20 instead of 28 bytes moved for each
            float32 parameter of Adam) or ``8bit`` (16 bytes). Not every optimizer supports the last two.
        max_grad_norm: scale gradients down so that the Euclidean norm of all together is at
            most this, as :func:`torch.nn.utils.clip_grad_norm_` does; infinity only measures the norm.
        zero_grads: leave zeros in the gradients after a step.
        seed: of the random rounding.
        in_backward: update each parameter during ``backward()``, as soon as its gradient is complete, and free the
            gradient, so that the gradients never exist all at once. ``step()`` then updates only parameters that had
            no hook. Not with options that need all gradients, and not for sharded parameters. Gradients of several
            ``backward()`` calls do not accumulate. After an error in ``backward()`` the parameters updated so far
            stay updated.
    """

    maximize: bool
    states: str
    max_grad_norm: float | None
    zero_grads: bool
    seed: int
    in_backward: bool


class HostOptimizer(NativeOptimizer):
    """Base of :class:`CPUAdam` and its like; a subclass declares its options.

    Attributes:
        grad_norm: the Euclidean norm of all gradients in the last step, before clipping; None if neither
            ``max_grad_norm`` nor ``grad_scale`` was given.
        skipped: whether the last step changed nothing because a gradient was infinite or NaN.
    """

    grad_norm: float | None
    skipped: bool
    _hooks: list[Any]  # of in_backward

    def _load(self) -> Any:
        return load_host(self.NATIVE)

    def __init__(self, params: Iterable[Any], settings: HostSettings, **options: Any) -> None:
        """``options`` are the defaults of the groups; for ``settings`` see :class:`HostSettings`."""
        unknown = settings.keys() - HostSettings.__annotations__.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__}() has no argument {', '.join(sorted(unknown))}.")
        limit = settings.get("max_grad_norm")
        self.max_grad_norm = None if limit is None else positive_number("max_grad_norm", limit)
        self.zero_grads = switch("zero_grads", settings.get("zero_grads", False))
        self.copies = {}
        self.seed = bounded_int("seed", settings.get("seed", 0), -(2**63), 2**63 - 1, "Pass an int of 64 bits.")
        self.in_backward = switch("in_backward", settings.get("in_backward", False))
        if self.in_backward:
            self._reject_options_needing_all_grads()
        options |= {"maximize": settings.get("maximize", False), "states": settings.get("states", "float32")}
        self._hooks = []
        try:
            super().__init__(params, **options)
        except BaseException:
            self.remove_hooks()
            raise

    # torch.optim.Optimizer's interface --------------------------------------------------------

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in _SAVED.items():
            self.__dict__.setdefault(name, value)
        super().__setstate__(state)
        if is_of_copy(state):
            self._hooks = []
            for group_index in range(len(self.param_groups) if self.in_backward else 0):
                self._hooks += add_hooks(self, group_index)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in _SAVED}}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; checks its parameters and options as the constructor does."""
        with self._lock:
            super().add_param_group(param_group)
            if self.in_backward:
                try:
                    self._hooks += add_hooks(self, len(self.param_groups) - 1)
                except BaseException:
                    self.param_groups.pop()
                    raise

    def remove_hooks(self) -> None:
        """Stop the updates of ``in_backward``; ``step()`` updates all parameters from now on."""
        remove_hooks(self, self._hooks)
        self.in_backward = False

    @overload
    def step(self, closure: None = None, *, grad_scale: float | torch.Tensor | None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], *, grad_scale: float | torch.Tensor | None = None) -> float: ...

    @torch.no_grad()
    @untraced
    def step(
        self, closure: Callable[[], float] | None = None, *, grad_scale: float | torch.Tensor | None = None
    ) -> float | None:
        """Update every parameter that has a gradient.

        With ``grad_scale`` or ``max_grad_norm`` an additional pass reads the gradients for their norm. Unscaling,
        clipping, the copies of :meth:`write_copies` and zeroing are part of the pass that updates. If a gradient is
        infinite or NaN, or the norm exceeds the largest float32, parameters and states stay unchanged and ``skipped``
        is True.

        Args:
            closure: reevaluates the model and returns the loss.
            grad_scale: the factor of the loss, a number or a tensor of one element.

        Raises:
            OpArgumentError: an option or a tensor of any group does not fit; nothing was changed.
        """
        if self.in_backward and grad_scale is not None:
            raise OpArgumentError(
                "With in_backward the gradients were used already, without grad_scale.",
                "Create the optimizer without in_backward.",
            )
        return self._step(closure, grad_scale)

    def _update_groups(self, grad_scale: torch.Tensor | float | None) -> None:
        batches = self._groups.current(self, self.param_groups, self.state, writes_grads=self.zero_grads)
        factor = self._grad_factor(grad_scale, batches)
        self.skipped = factor is None
        if factor is not None:
            self._update(batches, factor)
        elif self.zero_grads:  # an infinite gradient would stay infinite when the next is added
            write_zeros([grad for batch in batches for grad in batch.grads])

    def _update(self, batches: Sequence[Batch], factor: float) -> None:
        """Update all batches; gradients are multiplied by ``factor`` first."""
        for batch, options, settings in self._checked_updates(batches, lambda batch: self._pass(batch.group, factor)):
            batch.update(options, settings)
            self._after_update(batch.group, batch.named["step"])
            if batch.copied and self.zero_grads:
                write_zeros(batch.copied)

    def _after_update(self, group: Mapping[str, Any], steps: list[torch.Tensor]) -> None:
        """Called after the update of parameters of a group, with their counters; for optimizers that restart them."""

    def _pass(self, group: Mapping[str, Any], factor: float = 1.0) -> Pass:
        """What an update of the group does in addition to its formula."""
        return Pass(
            grad_scale=-factor if group["maximize"] else factor,
            zero_grads=self.zero_grads,
            stochastic=group["states"] == "bfloat16",
            seed=self.seed,
        )

    def _reject_options_needing_all_grads(self) -> None:
        """Raise an OpArgumentError if an option needs all gradients at once."""
        for name in ("max_grad_norm", "zero_grads"):
            if getattr(self, name) not in (None, False):
                raise OpArgumentError(
                    f"in_backward frees each gradient at once, but {name} needs all of them.",
                    f"Leave out {name} or in_backward.",
                )

    def update_one(self, param: torch.Tensor, group_index: int, index: int) -> None:
        """Update one parameter of a group, for ``in_backward``; an OpArgumentError changes nothing."""
        self._reject_options_needing_all_grads()
        self._reject_modes()
        with self._lock:
            group, place = self.param_groups[group_index], place_of(group_index, index, param)
            self._check_if_changed(group_index)
            self.check_tensors(param, place, group)
            grad = param.grad
            if grad is None:  # another thread has dropped it
                return
            state, op = self.state_of(param, group), self.native()
            states = [[state[name]] for name in self.states_of(group)]
            # The same place as in step(), so that random rounding gives the same bits.
            place_number = (group_index << 32) + index
            copies = [self.copies[param]] if param in self.copies else []
            grad = grad.resolve_neg().contiguous()
            lists = TensorLists([param], [grad], states, copies, [place_number])
            step = int(step_count(f"The state of {place}", state["step"])) + 1
            batch = Batch(group, group_index, op)
            batch.indices, batch.params = [index], [param]
            batch.call(op.update_list, lists, step, self._option_values(group, op), self._pass(group))
            with torch.inference_mode():  # as in write_zeros()
                state["step"] += 1
            self._after_update(group, [state["step"]])

    def write_copies(self, copies: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Also write each new parameter to another tensor, rounded to that tensor's type.

        For float32 parameters in host memory of a model in bfloat16 or float16. Not part of the
        ``state_dict``, but copied and pickled with the optimizer; a second call replaces the first.

        Args:
            copies: a contiguous CPU tensor of float32, bfloat16 or float16 for parameters of this optimizer, with
                as many elements.

        Raises:
            OpArgumentError: a key is not a parameter of this optimizer, a tensor does not fit, or its memory is that of
                another copy, a parameter, a gradient or a state. The copies given before stay.
        """
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for param, copy in copies.items():
            if id(param) not in known:
                raise OpArgumentError(
                    f"A tensor of shape {tuple(param.shape)} is not a parameter of this optimizer.",
                    "Pass parameters as keys and the tensors to write as values.",
                )
            if not isinstance(copy, torch.Tensor) or sharding_of(copy) != sharding_of(param):
                raise OpArgumentError(
                    f"The copy of a parameter of shape {tuple(param.shape)} is not distributed as the parameter is.",
                    "Pass a DTensor of the same mesh and placements for each DTensor.",
                )
            check_copy(f"The copy of a parameter of shape {tuple(param.shape)}", local_of(copy), local_of(param))
        params = [param for group in self.param_groups for param in group["params"]]
        states = [value for entry in self.state.values() for value in entry.values()]
        others = [local_of(one) for one in (*params, *(param.grad for param in params), *states) if is_dense(one)]
        written = enumerate(map(local_of, copies.values()), start=1)
        if owners_of_shared_memory([*written, *((0, other) for other in others)]):
            raise OpArgumentError(
                "A copy shares memory with another copy, a parameter, a gradient or a state.",
                "Give each copy its own memory, for example by x.clone().",
            )
        self.copies = dict(copies)
        self._groups.forget()

    # The parts of a step ----------------------------------------------------------------------

    def _grad_factor(self, grad_scale: float | torch.Tensor | None, batches: Sequence[Batch]) -> float | None:
        """The factor of every gradient; None to skip the step."""
        self.grad_norm = None
        if grad_scale is None and self.max_grad_norm is None:
            return 1.0
        scale = 1.0
        if grad_scale is not None:
            scale = finite_number("grad_scale", grad_scale)
            if scale == 0 or 1 / scale > _LARGEST_FLOAT:
                raise OpArgumentError(
                    f"grad_scale is {scale:g}; its reciprocal is not a float32.",
                    "Pass the number that multiplied the loss.",
                )
        norm = self._groups.grad_norm(batches) / scale
        self.grad_norm = norm
        if not norm <= _LARGEST_FLOAT:  # scaling in float32 may make an element infinite
            return None
        clip = 1.0 if self.max_grad_norm is None else min(1.0, self.max_grad_norm / (norm + _CLIP_EPSILON))
        return clip / scale

    # Called by the base -----------------------------------------------------------------------

    def _make_unsaved(self) -> None:
        super()._make_unsaved()
        self.grad_norm = None
        self.skipped = False

    def _check_group(self, group: dict[str, Any]) -> None:
        for name in _SAVED:
            if name in group:
                raise OpArgumentError(
                    f"A group has {name}={group[name]!r}, which is not an option of a group.",
                    f"Pass {name} to {type(self).__name__} itself. A wrapper that passes options to groups, such as "
                    "ZeroRedundancyOptimizer, does not support it.",
                )
        super()._check_group(group)

    def _check_device(self, param: torch.Tensor, what: str) -> None:
        if param.device.type != "cpu":
            raise OpArgumentError(
                f"{what} is on device {param.device}; {type(self).__name__} supports CPU tensors.",
                "Pass copies in host memory, for example p.detach().float().cpu().",
            )

    def check_state(self, state: Mapping[str, Any], param: torch.Tensor, place: str, group: Mapping[str, Any]) -> None:
        """Check a parameter's state, including its step: counters on the CPU can be read without waiting."""
        super().check_state(state, param, place, group)
        step_count(f"The state of {place}", state.get("step", 0))
