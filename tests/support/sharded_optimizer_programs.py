"""Training of sharded models with our optimizers: what the ranks of test_sharded_parameters.py run."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from op_builder import ops
from op_builder.errors import OpArgumentError
from tests.support.distributed_programs import start, stop

WIDTH = 21  # no multiple of the number of ranks: shards are uneven, and some small ones empty
STEPS = 4
TOLERANCES = {"bfloat16": 2e-3, "8bit": 5e-3}  # of losses, by the storage of states


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer(), nn.Linear(WIDTH, 1, bias=False))


def plain(_size: int, model: nn.Module) -> nn.Module:
    return model


def ddp(_size: int, model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def fsdp2(_size: int, model: nn.Module) -> nn.Module:
    for layer in model.children():
        fully_shard(layer)
    return fully_shard(model)


def hybrid(size: int, model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(size: int, model: nn.Module, mesh: Any = None) -> nn.Module:
    styles = {"up": ColwiseParallel, "down": RowwiseParallel}
    plan = {f"{layer}.{part}": style() for layer in (0, 1) for part, style in styles.items()}
    return parallelize_module(model, mesh or init_device_mesh("cpu", (size,)), plan)


def both(size: int, model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(size, model, mesh["tensor"])
    for layer in model.children():
        fully_shard(layer, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def frozen(size: int, model: nn.Module) -> nn.Module:
    """As PEFT leaves a model: the base frozen, the rest trained."""
    for name, param in model.named_parameters():
        param.requires_grad_("up" in name)
    return fsdp2(size, model) if size > 1 else model


WAYS: dict[str, Callable[[int, nn.Module], nn.Module]] = {
    "plain": plain, "ddp": ddp, "fsdp2": fsdp2, "hybrid": hybrid, "tensor parallel": tensor_parallel, "both": both,
    "frozen": frozen,
}  # fmt: skip


def refused(text: str) -> Any:
    return pytest.raises(OpArgumentError, match=text)


@contextmanager
def ranks(rank: int, size: int, directory: str) -> Iterator[None]:
    start("gloo", rank, size, directory)
    yield
    stop()


def train(
    model: nn.Module, optimizer: Any, steps: int = STEPS, *, first: int = 0, clip: float | None = None
) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        # Where ranks pass the same steps, their data is the same, so that the means are those of one process.
        x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.sin().sum(1, keepdim=True)).square().mean()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def make(name: str, params: Any, options: dict[str, Any]) -> Any:
    return getattr(ops if hasattr(ops, name) else torch.optim, name)(params, lr=1e-2, **options)


ADAMW: tuple[str, dict[str, Any], float | None] = ("AdamW", {"weight_decay": 0.0}, None)
#: Each optimizer, the one in one process whose losses it has to have, and the ways.
CASES: list[tuple[str, dict[str, Any], tuple[str, dict[str, Any], float | None], list[str]]] = [
    ("CPUAdam", {}, ADAMW, ["fsdp2", "both"]),
    ("CPUAdam", {"max_grad_norm": 0.05, "zero_grads": True}, ("AdamW", {"weight_decay": 0.0}, 0.05), list(WAYS)),
    ("FusedAdam", {}, ADAMW, ["hybrid", "tensor parallel"]),
    *(("CPUAdam", {"states": states}, ADAMW, ["fsdp2"]) for states in ("param", "bfloat16", "8bit")),
    ("CPUSGD", {"momentum": 0.9}, ("SGD", {"momentum": 0.9}, None), ["fsdp2"]),
    ("CPUAdagrad", {}, ("Adagrad", {}, None), ["fsdp2"]),
    ("CPULion", {}, ("CPULion", {}, None), ["fsdp2"]),
    ("FusedLion", {}, ("FusedLion", {}, None), ["fsdp2"]),
]


def losses(rank: int, size: int, directory: str, kinds: list[str]) -> list[list[float]]:
    """Losses of these kinds of models with each optimizer, which are those of its peer in one process."""
    results = []
    with ranks(rank, size, directory):
        for name, options, (peer, peer_options, clip), ways in CASES:
            states = options.get("states")
            for way in (one for one in ways if one in kinds):
                whole = frozen(1, network()) if way == "frozen" else network()
                expected = train(whole, make(peer, whole.parameters(), peer_options), clip=clip)
                model = WAYS[way](size, network())
                optimizer = make(name, model.parameters(), options)
                results.append(train(model, optimizer))
                assert results[-1] == pytest.approx(expected, rel=TOLERANCES.get(states, 2e-5)), (name, options, way)
                held = [optimizer.state.get(param, {}) for param in model.parameters() if isinstance(param, DTensor)]
                types = {type(value) for state in held for key, value in state.items() if key != "step"}
                # Packed bytes belong to a shard; state_dict() decodes them.
                assert types == {torch.Tensor if states == "8bit" else DTensor}
                del model, optimizer
    return results


def _checkpoint(model: nn.Module, optimizer: Any, flat: bool, directory: str, *, load: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    state = {"model": model_state, "optimizer": optimizer_state}
    if load:
        dcp.load(state, checkpoint_id=directory)
        set_state_dict(
            model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state, options=options
        )
    else:
        dcp.save(state, checkpoint_id=directory)


def save(rank: int, size: int, directory: str, ways: list[str], options: dict[str, Any], place: str) -> list[Any]:
    """Train three steps each way, save a checkpoint, flattened and not, and train on; the losses of the later steps."""
    found = []
    with ranks(rank, size, directory):
        for way in ways:
            model = WAYS[way](size, network())
            optimizer = make("CPUAdam", model.parameters(), options)
            train(model, optimizer, 3)
            for flat in (False, True):
                _checkpoint(model, optimizer, flat, f"{place}/{way} on {size}, flat {flat}", load=False)
            found.append(train(model, optimizer, 3, first=3))
            del model, optimizer
    return found


def resume(rank: int, size: int, directory: str, ways: list[str], options: dict[str, Any], place: str) -> list[Any]:
    """Load each checkpoint of ``place`` each way and train on; the losses."""
    found = []
    with ranks(rank, size, directory):
        for way, saved in itertools.product(ways, sorted(Path(place).iterdir())):
            model = WAYS[way](size, network())
            optimizer = make("CPUAdam", model.parameters(), options)
            _checkpoint(model, optimizer, saved.name.endswith("True"), str(saved), load=True)
            found.append(train(model, optimizer, 3, first=3))
            del model, optimizer
    return found


def fsdp1(rank: int, size: int, directory: str) -> None:
    """FSDP1's checkpoint of 8-bit states, and what needs all shards."""

    def build(use_orig_params: bool) -> tuple[Any, Any]:
        model = FullyShardedDataParallel(network(), use_orig_params=use_orig_params, device_id=torch.device("cpu"))
        # One state: on the CPU, torch's optim_state_dict() returns the last one under the names of all.
        return model, make("CPUSGD", model.parameters(), {"momentum": 0.9, "states": "8bit"})

    with ranks(rank, size, directory):
        for use_orig_params in (True, False):
            model, optimizer = build(use_orig_params)
            train(model, optimizer, 3)
            saved = copy.deepcopy((FullyShardedDataParallel.optim_state_dict(model, optimizer), model.state_dict()))
            uninterrupted = train(model, optimizer, 3, first=3)
            model, optimizer = build(use_orig_params)
            model.load_state_dict(saved[1])
            optimizer.load_state_dict(FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, saved[0]))
            assert train(model, optimizer, 3, first=3) == pytest.approx(uninterrupted, rel=TOLERANCES["8bit"])
            optimizer.max_grad_norm = 1.0
            with refused(r"clip_grad_norm_\(\) of the FSDP module"):
                train(model, optimizer, 1)
            with refused("LAMB needs the norm of the whole parameter"):
                make("CPULamb", model.parameters(), {})
            with refused("in_backward is not supported for parameter 0 of group 0"):
                make("CPUAdam", model.parameters(), {"in_backward": True})


def single(rank: int, size: int, directory: str) -> None:
    """What concerns single DTensors."""
    with ranks(rank, size, directory):
        mesh = init_device_mesh("cpu", (size,))
        values = torch.arange(20.0).reshape(5, 4)

        def parameter(placement: Any, dtype: torch.dtype = torch.float32) -> nn.Parameter:
            return nn.Parameter(distribute_tensor(values.to(dtype), mesh, [placement]))

        def spread(grad: torch.Tensor, placement: Any) -> DTensor:
            return distribute_tensor(grad, mesh, [placement])

        # Gradients that are not distributed as their parameters are; each rank has a part of a partial one.
        for placement in (Replicate(), Shard(0)):
            plain, param = nn.Parameter(values.clone()), parameter(placement)
            optimizers = [ops.CPUAdam([one], max_grad_norm=0.5, zero_grads=True) for one in (plain, param)]
            for step in range(3):
                plain.grad = torch.full((5, 4), 3.0 + step) * values
                part = DTensor.from_local(plain.grad * 2 * (rank + 1) / (size * (size + 1)), mesh, [Partial()])
                param.grad = part if step < 2 else spread(plain.grad, Shard(1))
                for optimizer in optimizers:
                    optimizer.step()
                assert param.grad.to_local().count_nonzero() == 0
            torch.testing.assert_close(param.full_tensor(), plain)
            assert abs(optimizers[0].grad_norm - optimizers[1].grad_norm) < 1e-3

        # Copies in another type, also after the memory of the shard was replaced, as loading a model may do.
        master, rounded = parameter(Shard(0)), parameter(Shard(0), torch.bfloat16)
        optimizer = ops.CPUAdam([master], lr=1.0)
        optimizer.write_copies({master: rounded})
        for _ in range(2):
            master.grad = spread(torch.ones(5, 4), Shard(0))
            optimizer.step()
            assert torch.equal(rounded.full_tensor(), master.full_tensor().bfloat16())
            master._local_tensor = master._local_tensor.clone()
        torch.testing.assert_close(master.full_tensor(), values - 2)
        with refused("not distributed as the parameter is"):
            optimizer.write_copies({master: parameter(Replicate())})

        # A change between forward and backward.
        param = parameter(Shard(0))
        loss = param.square().sum()
        param.grad = spread(torch.ones(5, 4), Shard(0))
        ops.FusedAdam([param]).step()
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()

        param = parameter(Shard(0))
        optimizer = ops.CPUAdam([param])
        param.grad = torch.ones(5, 4)
        with refused(r"The gradient of parameter 0 of group 0 \(shape \(5, 4\)\) is not a DTensor"):
            optimizer.step()
        param.grad = spread(torch.ones(5, 4), Shard(0))
        optimizer.step()
        saved = optimizer.state_dict()
        saved["state"][0]["exp_avg"] = saved["state"][0]["exp_avg"].full_tensor()
        with refused("set_optimizer_state_dict"):
            optimizer.load_state_dict(saved)
        with refused("partial placement"):
            ops.CPUAdam([nn.Parameter(DTensor.from_local(values, mesh, [Partial()]))])
        with refused("LAMB needs the norm of the whole parameter"):
            ops.FusedLamb([param])
        with refused("in_backward is not supported for parameter 0 of group 0"):
            ops.CPUAdam([param], in_backward=True)
        ops.CPULamb([parameter(Replicate())])
