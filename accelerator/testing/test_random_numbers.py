"""Random number generators."""

from __future__ import annotations

from typing import Any

import torch

from accelerator.testing import devices, each_device, is_int

_SEED = 20_240_611


def _draw(accelerator: Any) -> list[float]:
    """Random numbers from the current device."""
    numbers: list[float] = torch.rand(16, device=accelerator.device_name()).cpu().tolist()
    return numbers


def test_random_is_torch_random(accelerator: Any) -> None:
    """random() is the module torch.random."""
    assert accelerator.random() is torch.random


def test_rng_state_is_bytes_on_the_host(accelerator: Any) -> None:
    """get_rng_state() is a uint8 CPU tensor, for the current and for each device."""
    for index in (None, *devices(accelerator)):
        state = accelerator.get_rng_state(index)
        assert isinstance(state, torch.Tensor)
        assert (state.dtype, state.device.type) == (torch.uint8, "cpu")


def test_rng_state_round_trips(accelerator: Any) -> None:
    """Restoring a generator's state repeats its numbers, on every device."""
    for index in each_device(accelerator):
        for argument in (None, index):
            state = accelerator.get_rng_state(argument)
            first, second = _draw(accelerator), _draw(accelerator)
            assert first != second
            accelerator.set_rng_state(state, argument)
            assert _draw(accelerator) == first


def test_manual_seed_is_reproducible(accelerator: Any) -> None:
    """One seed gives the same numbers each time; another seed gives others."""
    draws = []
    for seed in (_SEED, _SEED, _SEED + 1):
        accelerator.manual_seed(seed)
        draws.append(_draw(accelerator))
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_manual_seed_all_seeds_every_device(accelerator: Any) -> None:
    """After manual_seed_all() every device draws the same numbers as after the same call before."""
    for _ in each_device(accelerator):
        draws = []
        for _ in range(2):
            accelerator.manual_seed_all(_SEED)
            draws.append(_draw(accelerator))
        assert draws[0] == draws[1]


def test_initial_seed_is_the_seed(accelerator: Any) -> None:
    """initial_seed() returns the seed that was passed to manual_seed()."""
    for seed in (_SEED, _SEED + 1):  # one of them is not what an earlier check left
        accelerator.manual_seed(seed)
        found = accelerator.initial_seed()
        assert is_int(found)
        assert found == seed


def test_default_generator_is_the_seeded_one(accelerator: Any) -> None:
    """default_generator(i) is the torch.Generator of that device, which manual_seed_all() seeds."""
    for seed in (_SEED, _SEED + 1):
        accelerator.manual_seed_all(seed)
        for index in devices(accelerator):
            generator = accelerator.default_generator(index)
            assert isinstance(generator, torch.Generator)
            assert generator.initial_seed() == seed
