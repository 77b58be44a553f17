"""Models that change at random between steps: ``python -m tests.support.changed_models SEED COUNT STATES``.

A change may raise; it must not end the process. One change is left out: a gradient whose storage is too small when
``backward()`` runs again. torch adds to such a gradient without a check and writes behind its memory, before any
optimizer sees it (the same program with torch.optim.AdamW ends by it, too).
"""

from __future__ import annotations

import copy
import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from op_builder.ops import CPUAdam

WIDTHS = (1, 3, 8, 64, 300)


class ChangedModel:
    """A model and its optimizer; every public method except :meth:`step` is a change."""

    def __init__(self, seed: int, states: str, *, in_backward: bool) -> None:
        self._options: dict[str, Any] = {"states": states, "in_backward": in_backward}
        self._random = random.Random(seed)
        torch.manual_seed(seed)
        widths = self._random.choices(WIDTHS, k=self._random.randint(2, 5))
        self._layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        self._model = torch.nn.Sequential(*self._layers, torch.nn.Tanh())
        self.new_optimizer()

    def step(self) -> None:
        batch = torch.randn(self._random.choice((1, 4)), self._layers[0].in_features)
        self._model(batch).square().mean().backward()
        self._optimizer.step()
        if self._random.random() < 0.7:
            self._optimizer.zero_grad(set_to_none=self._random.random() < 0.7)

    def delete_bias(self) -> None:
        self._random.choice(self._layers)._parameters["bias"] = None

    def freeze(self) -> None:
        param = self._param()
        param.requires_grad_(not param.requires_grad)

    def replace_data(self) -> None:
        param = self._param()
        param.data = torch.randn([max(1, size + self._random.choice((-1, 0, 1, 50))) for size in param.shape])

    def share(self) -> None:
        self._random.choice(self._layers).weight = self._random.choice(self._layers).weight

    def share_memory(self) -> None:
        first, second = self._param(), self._param()
        if first.numel() >= second.numel():
            second.data = first.data.view(-1)[: second.numel()].view(second.shape)

    def resize_param(self) -> None:
        param = self._param()
        param.data.untyped_storage().resize_(param.nbytes * 3)

    def shrink_grad_for_a_step(self) -> None:
        param = self._param()
        param.grad = torch.randn_like(param)
        self._resize(param.grad, (0, 1, param.nbytes // 2))
        try:
            self._optimizer.step()
        finally:
            param.grad = None

    def resize_state(self) -> None:
        for tensor in self._state_tensors():
            self._resize(tensor, (0, 1, tensor.nbytes // 2, tensor.nbytes * 3))

    def reshape_state(self) -> None:
        for tensor in self._state_tensors():
            tensor.resize_(self._random.choice((0, 1, 1000)))

    def remove_state(self) -> None:
        state = self._state()
        if state:
            del state[self._random.choice(list(state))]

    def clear_state(self) -> None:
        self._state().clear()

    def replace_state(self) -> None:
        state = self._state()
        if state:
            name = self._random.choice(list(state))
            state[name] = self._random.choice((None, torch.zeros(3), 7, copy.deepcopy(state[name])))

    def add_group(self) -> None:
        layer = torch.nn.Linear(3, self._random.choice(WIDTHS))
        self._optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-2})

    def save(self) -> None:
        self._saved = copy.deepcopy(self._optimizer.state_dict())

    def load(self) -> None:
        self._optimizer.load_state_dict(self._saved)

    def deepcopy(self) -> None:
        self._model, self._optimizer, self._layers = copy.deepcopy((self._model, self._optimizer, self._layers))

    def new_optimizer(self) -> None:
        self._optimizer: Any = None  # frees the old one, whose hooks would refuse another
        self._optimizer = CPUAdam(self._model.parameters(), **self._options)
        self._saved = self._optimizer.state_dict()

    def _param(self) -> torch.nn.Parameter:
        return self._random.choice(list(self._model.parameters()))

    def _state(self) -> dict[str, Any]:
        return self._optimizer.state.get(self._param(), {})  # type: ignore[no-any-return]

    def _state_tensors(self) -> Iterable[torch.Tensor]:
        tensors = [value for value in self._state().values() if isinstance(value, torch.Tensor)]
        return [self._random.choice(tensors)] if tensors else []

    def _resize(self, tensor: torch.Tensor, sizes: tuple[int, ...]) -> None:
        tensor.untyped_storage().resize_(self._random.choice(sizes))


_CHANGES = [name for name in vars(ChangedModel) if not name.startswith("_") and name != "step"]


def main(first: int, count: int, states: str) -> Counter[str]:
    """Try ``count`` models; returns how often each change succeeded, and each class of error."""
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        model = ChangedModel(seed, states, in_backward=seed % 2 == 0)
        choose = random.Random(seed)
        for _ in range(8):
            for name in ("step", choose.choice(_CHANGES)):
                try:
                    getattr(model, name)()
                    outcomes[name] += 1
                except Exception as error:
                    outcomes[type(error).__name__] += 1
    return outcomes


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
