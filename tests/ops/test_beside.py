"""Python that runs while a native op works: where, what becomes of its errors, and that nothing is missed."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest
import torch
from adam_reference import Options
from list_cases import AS_PARAM, Case, make

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUAdam, FusedAdam
from op_builder.ops.native.beside import call_beside
from op_builder.ops.native.cpu_adam import CPUAdamModule
from op_builder.ops.native.tensor_lists import Pass

OPTIONS = Options().listed()
MANY = 1200


class Odd(Exception):
    """No exception of anybody else's."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def make_params(kind: type[torch.Tensor] = torch.nn.Parameter) -> list[torch.Tensor]:
    params = [kind(torch.full((5,), float(i))) for i in range(MANY)]
    for param in params:
        param.grad = torch.ones(5)
    return params


def test_work_is_done_once_on_the_calling_thread_with_its_settings(cpu_adam):
    def work() -> str:
        seen.append((threading.get_ident(), torch.is_grad_enabled()))
        return "done"

    seen: list[tuple[int, bool]] = []
    with torch.no_grad():
        assert call_beside(cpu_adam.ops.look.default, ([],), work) == ([], "done")
    assert seen == [(threading.get_ident(), False)]


def test_what_work_raises_comes_out_and_keeps_nothing_alive(cpu_adam):
    class Held:
        pass

    def fail() -> None:
        held = Held()
        alive.append(weakref.ref(held))
        raise Odd

    alive: list[weakref.ref[Held]] = []
    gc.disable()  # it is let go without looking for cycles
    try:
        with pytest.raises(Odd) as raised:
            call_beside(cpu_adam.ops.look.default, ([],), fail)
        del raised
        assert alive[0]() is None
    finally:
        gc.enable()


def test_an_op_that_refuses_has_no_work_done(cpu_adam):
    with pytest.raises(ValueError, match="There is no prepared list 123456789"):
        call_beside(cpu_adam.ops.look.default, ([123456789],), lambda: pytest.fail("it ran"))


def test_nothing_that_a_handler_of_signals_raises_is_lost(cpu_adam, monkeypatch):
    """Also where it does so before the first line of the work: often, since the op is being called by then."""

    def handle(*_: object) -> None:
        raise Odd

    def interrupted_after(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while not dropped:
            call_beside(cpu_adam.ops.look.default, ([],), int)

    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        for turn in range(2000):
            with pytest.raises(Odd):
                interrupted_after(2e-5 + turn % 50 * 1e-6)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("two_threads")
def test_others_do_the_callers_part_while_it_is_busy(cpu_adam):
    lists = make(Case(torch.float32, torch.float32, AS_PARAM, lengths=(16384,) * 64)).lists
    firsts = [lists.params[0][0], lists.params[63][0]]
    before = [first.item() for first in firsts]
    seen: list[float] = []

    def wait() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            seen[:] = [first.item() for first in firsts]
            if all(now != then for now, then in zip(seen, before, strict=True)):
                return
            time.sleep(0.001)

    prepared = cpu_adam.prepare(lists, [torch.zeros(()) for _ in range(64)])
    arguments = (*prepared.numbers, list(OPTIONS), *Pass().positional(), cpu_adam.isa, 0)
    call_beside(cpu_adam.ops.update_prepared.default, arguments, wait)
    assert all(now != then for now, then in zip(seen, before, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_element_is_updated_once_whoever_does_it(cpu_adam: CPUAdamModule, threads):
    case = Case(torch.float32, torch.float32, AS_PARAM, lengths=(300, 70_000, 0, 1) * 25)
    kept, anew = make(case).lists, make(case).lists
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        prepared = cpu_adam.prepare(kept, [torch.zeros(()) for _ in range(100)])
        for step in range(1, 4):
            arguments = (*prepared.numbers, list(OPTIONS), *Pass().positional(), cpu_adam.isa, 0)
            call_beside(cpu_adam.ops.update_prepared.default, arguments, lambda: time.sleep(0.002))
            cpu_adam.update_list(anew, step, OPTIONS)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(kept.positional(), anew.positional(), strict=True):
        assert all(torch.equal(tensor, same) for tensor, same in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", [CPUAdam, FusedAdam])
def test_many_tensors_that_move_are_followed_and_those_that_do_not_fit_refused(kind):
    params, same = make_params(), make_params()
    optimizer = kind(params, lr=0.1)
    reference = torch.optim.AdamW(same, lr=0.1, weight_decay=optimizer.param_groups[0]["weight_decay"])
    for step in range(8):
        index = 150 * step
        for each in (params, same):
            if step == 2:
                each[index].data = each[index].data.clone()
            elif step == 3:
                each[index].grad.set_(torch.full((5,), 2.0))
            elif step == 4:
                each[index].grad = torch.full((5,), 3.0)
            elif step == 5:
                each[index].grad = None
        if step == 6:
            state = optimizer.state[params[index]]
            state["exp_avg"].data = state["exp_avg"].data.clone()
        optimizer.step()
        reference.step()
    for param, other in zip(params, same, strict=True):
        torch.testing.assert_close(param.detach(), other.detach())
    before = [param.detach().clone() for param in params]
    params[700].data = torch.zeros(6)
    with pytest.raises(OpArgumentError, match="tensor 700"):
        optimizer.step()
    assert all(torch.equal(param, was) for param, was in zip(params[:700], before, strict=False))


def test_autograd_is_told_of_many_changed_tensors():
    params = make_params()
    optimizer = CPUAdam(params, zero_grads=True)
    for _ in range(3):
        before = [(param._version, param.grad._version) for param in params]
        optimizer.step()
        assert all(
            param._version > version and param.grad._version > grad_version
            for param, (version, grad_version) in zip(params, before, strict=True)
        )


def test_a_gradient_that_fails_to_be_read_fails_the_step_and_changes_nothing():
    class Broken(torch.nn.Parameter):
        fails = False

        @property
        def grad(self) -> torch.Tensor | None:
            if self.fails:
                raise Odd
            return self.__dict__.get("given")

        @grad.setter
        def grad(self, value: torch.Tensor | None) -> None:
            self.__dict__["given"] = value

    params = [*make_params(), Broken(torch.zeros(5))]
    params[-1].grad = torch.ones(5)
    optimizer = CPUAdam(params)
    optimizer.step()
    before = params[0].detach().clone()
    params[-1].fails = True
    with pytest.raises(Odd):
        optimizer.step()
    params[-1].fails = False
    assert torch.equal(params[0], before)
    optimizer.step()
    assert not torch.equal(params[0], before)


def test_tensors_are_looked_at_beside_plain_parameters_alone():
    """Another's ``grad`` may do anything to them meanwhile."""

    class Own(torch.nn.Parameter):
        pass

    for kind, is_beside in ((torch.nn.Parameter, True), (Own, False)):
        params = make_params(kind)
        optimizer = CPUAdam(params)
        optimizer.step()
        assert bool(optimizer._groups._looked_at) == is_beside


def test_several_groups_are_looked_at_together():
    params = make_params()
    optimizer = CPUAdam([{"params": params[:500]}, {"params": params[500:], "lr": 0.5}])
    for _ in range(2):
        optimizer.step()
    for index in (3, 700):
        params[index].data = params[index].data.clone()
    before = [param.detach().clone() for param in params]
    optimizer.step()
    assert not any(torch.equal(param, was) for param, was in zip(params, before, strict=True))


def test_an_optimizer_of_many_tensors_is_freed_with_its_last_reference():
    optimizer = CPUAdam(make_params())
    for _ in range(3):
        optimizer.step()
    alive = weakref.ref(optimizer)
    gc.disable()
    try:
        del optimizer
        assert alive() is None
    finally:
        gc.enable()
