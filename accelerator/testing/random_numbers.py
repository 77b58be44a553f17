"""Generators: states, seeds and the numbers that come of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accelerator.testing.model import Ability, Subject, expect, expect_equal, expect_type, needs

_SEED = 20_240_611


@contextmanager
def _kept_states(subject: Subject) -> Iterator[None]:
    """Leave the caller's generators as they were."""
    states = [(index, subject.accelerator.get_rng_state(index)) for index in subject.indices()]
    try:
        yield
    finally:
        for index, state in states:
            subject.accelerator.set_rng_state(state, index)


def random_is_torch_random(subject: Subject) -> None:
    """random() is the module torch.random."""
    expect(subject.accelerator.random() is torch.random, "the module torch.random", subject.accelerator.random())


def rng_state_is_bytes_on_the_host(subject: Subject) -> None:
    """get_rng_state() is a uint8 CPU tensor, for the current and for each device."""
    for index in (None, *subject.indices()):
        state = subject.accelerator.get_rng_state(index)
        expect_type(f"get_rng_state({index})", state, torch.Tensor)
        expect_equal("dtype of the state", state.dtype, torch.uint8)
        expect_equal("device of the state", state.device.type, "cpu")


@needs(Ability.TENSORS)
def rng_state_round_trips(subject: Subject) -> None:
    """Restoring a generator's state brings the same numbers again, on every device."""
    accelerator = subject.accelerator
    with _kept_states(subject), subject.each_device() as devices:
        for index in devices:
            for argument in (None, index):
                state = accelerator.get_rng_state(argument)
                first, second = subject.draw(), subject.draw()
                expect(first != second, "other numbers from the second draw", "the same")
                accelerator.set_rng_state(state, argument)
                expect(subject.draw() == first, f"the same numbers after set_rng_state(..., {argument})", "others")


@needs(Ability.TENSORS)
def manual_seed_is_reproducible(subject: Subject) -> None:
    """One seed brings the same numbers each time, another seed brings others."""
    with _kept_states(subject):
        draws = []
        for seed in (_SEED, _SEED, _SEED + 1):
            subject.accelerator.manual_seed(seed)
            draws.append(subject.draw())
    expect(draws[0] == draws[1], "the same numbers from the same seed", "others")
    expect(draws[0] != draws[2], "other numbers from another seed", "the same")


@needs(Ability.TENSORS)
def manual_seed_all_seeds_every_device(subject: Subject) -> None:
    """After manual_seed_all() every device draws the same numbers as after the same call before."""
    with _kept_states(subject), subject.each_device() as devices:
        for index in devices:
            draws = []
            for _ in range(2):
                subject.accelerator.manual_seed_all(_SEED)
                draws.append(subject.draw())
            expect(draws[0] == draws[1], f"the same numbers on device {index}", "others")


def initial_seed_is_the_seed(subject: Subject) -> None:
    """initial_seed() is what manual_seed() was given."""
    with _kept_states(subject):
        for seed in (_SEED, _SEED + 1):  # one of them is not what an earlier check left
            subject.accelerator.manual_seed(seed)
            found = subject.accelerator.initial_seed()
            expect_type("initial_seed()", found, int)
            expect_equal("initial_seed()", found, seed)


def default_generator_is_the_seeded_one(subject: Subject) -> None:
    """default_generator(i) is the torch.Generator of that device, which manual_seed_all() seeds."""
    with _kept_states(subject):
        for seed in (_SEED, _SEED + 1):
            subject.accelerator.manual_seed_all(seed)
            for index in subject.indices():
                generator = subject.accelerator.default_generator(index)
                expect_type(f"default_generator({index})", generator, torch.Generator)
                expect_equal(f"seed of default_generator({index})", generator.initial_seed(), seed)


CHECKS = (
    random_is_torch_random,
    rng_state_is_bytes_on_the_host,
    rng_state_round_trips,
    manual_seed_is_reproducible,
    manual_seed_all_seeds_every_device,
    initial_seed_is_the_seed,
    default_generator_is_the_seeded_one,
)
