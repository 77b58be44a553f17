"""What runs beside a native op that updates many tensors, and that nothing is missed."""

from __future__ import annotations

import functools
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
from op_builder.ops import CPUSGD, CPUAdam, CPULamb, FusedAdam
from op_builder.ops.optim import beside
from op_builder.ops.optim.beside import Question, call_beside
from op_builder.ops.optim.cpu_adam_module import CPUAdamModule
from op_builder.ops.optim.tensor_lists import Pass, TensorLists

OPTIONS = Options().listed()
MANY = 1200


class Odd(RuntimeError):
    """No error of anybody else's."""


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


def prepared_list(module: CPUAdamModule, lists: TensorLists) -> tuple[int, tuple[object, ...]]:
    """Arguments of an update but for the function's address; the list is forgotten when the process ends."""
    number = module.ops.prepare(*lists.positional(), [torch.zeros(()) for _ in lists.params])
    return (number, list(OPTIONS), *Pass().positional(), module.isa)


def test_the_function_is_called_once_on_the_calling_thread(cpu_adam):
    seen: list[int] = []
    lists = make(Case(torch.float32, torch.float32, AS_PARAM, lengths=(300,) * 4)).lists
    arguments = prepared_list(cpu_adam, lists)
    call_beside(cpu_adam.ops.update_prepared.default, arguments, lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_an_op_that_refuses_does_not_call_it(cpu_adam):
    with pytest.raises(ValueError, match="There is no prepared list 123456789"):
        call_beside(
            cpu_adam.ops.update_prepared.default,
            (123456789, list(OPTIONS), *Pass().positional(), cpu_adam.isa),
            lambda: pytest.fail("it ran"),
        )


def test_autograd_is_told_in_any_case(monkeypatch):
    """Also where the function beside the op fails, of which ctypes only prints the error."""
    params = make_params()
    optimizer = CPUAdam(params)
    optimizer.step()
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    monkeypatch.setattr(beside, "map", lambda *_: failing(), raising=False)
    before = [param._version for param in params]
    optimizer.step()
    assert len(dropped) == 1
    assert all(param._version > version for param, version in zip(params, before, strict=True))


def failing() -> Iterator[None]:
    raise Odd
    yield


def fail() -> int:
    raise Odd


@pytest.mark.parametrize("answer", [lambda: 6, fail])
def test_where_the_answer_is_not_yes_nothing_is_changed(cpu_adam, monkeypatch, answer):
    """Also where there is none: what ctypes finds in its place may be the answer before."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    lists = make(Case(torch.float32, torch.float32, AS_PARAM, lengths=(300,) * 4)).lists
    steps = [torch.zeros(()) for _ in lists.params]
    number = cpu_adam.ops.prepare(*lists.positional(), steps)
    arguments = (number, list(OPTIONS), *Pass().positional(), cpu_adam.isa)
    op = cpu_adam.ops.update_prepared.default
    before = [param.clone() for param in lists.params]
    for yes in (7, 8):
        assert call_beside(op, arguments, question=Question(lambda: yes, yes))  # noqa: B023
    after = [param.clone() for param in lists.params]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not call_beside(op, arguments, lambda: pytest.fail("it ran"), Question(answer, 9))
    assert all(torch.equal(one, other) for one, other in zip(lists.params, after, strict=True))
    assert [step.item() for step in steps] == [2.0] * 4
    assert call_beside(op, arguments, question=Question(lambda: 9, 9))
    assert [step.item() for step in steps] == [3.0] * 4


def test_no_two_questions_have_one_answer():
    params = [[torch.nn.Parameter(torch.zeros(1)) for _ in range(3)], [torch.zeros(1)]]
    grads = [[torch.ones(1), None, torch.ones(1)], [None]]
    for param, grad in zip(params[0], grads[0], strict=True):
        param.grad = grad
    answers = set()
    for _ in range(3):
        question = beside.whether_grads_are(params, grads)
        assert question is not None
        assert question.function() == question.yes
        answers.add(question.yes)
        other = beside.whether_grads_are(params, [[*grads[0][:2], torch.ones(1)], [None]])
        assert other is not None
        assert other.function() == other.yes - 1
        answers.add(other.yes - 1)
    assert len(answers) == 6


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="since Python 3.12 a collection waits for Python code")
def test_no_collection_of_garbage_begins_beside_an_op():
    params = [make_params(), make_params()]
    grads = [[param.grad for param in group] for group in params]
    told: list[None] = []

    def ask() -> functools.partial[int]:
        question = beside.whether_grads_are(params, grads)
        assert question is not None
        return question.function

    def tell() -> functools.partial[None]:
        return functools.partial(told.extend, beside._tells_autograd(params[0]))

    ran: list[str] = []

    def see(phase: str, _: object) -> None:
        ran.append(phase)

    thresholds = gc.get_threshold()
    gc.callbacks.append(see)
    try:
        for make_function, collects in ((ask, False), (tell, False), (lambda: functools.partial(iter, []), True)):
            function = make_function()
            held = [[0] for _ in range(10)]
            gc.set_threshold(gc.get_count()[0])  # the next container would be one too many
            before = len(ran)
            made = function()
            after = len(ran)
            gc.set_threshold(*thresholds)
            assert (after > before) == collects
            del held, made
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(see)
    assert told


class Described(torch.nn.Parameter):
    """A parameter of a class of its own."""


class Counting(torch.overrides.TorchFunctionMode):
    """A mode that sees each attribute of a tensor that is read."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        return function(*arguments, **(keywords or {}))


def stepped(optimizer: torch.optim.Optimizer, monkeypatch) -> bool:
    """Whether a step read gradients in Python."""
    groups = optimizer._groups
    seen: list[object] = []
    current = groups.current
    with monkeypatch.context() as patched:
        patched.setattr(groups, "current", lambda *given, **options: seen.append(1) or current(*given, **options))
        optimizer.step()
    return bool(seen)


@pytest.mark.parametrize("kind", [CPUAdam, CPULamb, CPUSGD])
def test_an_op_asks_whether_gradients_are_the_last_steps(kind, monkeypatch):
    params, same = make_params(), make_params()
    optimizer, reference = kind(params, lr=0.1), kind(same[:900], lr=0.1)
    reference.add_param_group({"params": same[900:]})  # of fewer tensors, nothing is asked
    assert [stepped(optimizer, monkeypatch) for _ in range(4)] == [True, True, False, False]
    for grad in (torch.full((5,), 3.0), None):
        params[700].grad = grad
        assert stepped(optimizer, monkeypatch)
    params[700].grad = torch.ones(5)
    assert [stepped(optimizer, monkeypatch) for _ in range(3)] == [True, True, False]
    for step in range(9):
        same[700].grad = torch.full((5,), 3.0) if step == 4 else None if step == 5 else torch.ones(5)
        reference.step()
    for one, other in zip(params, same, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=0, atol=0)


def test_python_code_that_reading_a_gradient_runs_is_not_run_beside_an_op(monkeypatch):
    plain, own = CPUAdam(make_params()), CPUAdam(make_params(Described))
    for _ in range(3):
        plain.step()
        own.step()
    assert stepped(own, monkeypatch)
    assert not stepped(plain, monkeypatch)
    with Counting():
        assert stepped(plain, monkeypatch)
    assert not stepped(plain, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.Parameter, "grad", property(torch._C.TensorBase.grad.__get__), raising=False)
        assert stepped(plain, monkeypatch)
    assert not stepped(plain, monkeypatch)


def test_what_has_to_be_known_before_an_update_is_read_before_it(monkeypatch):
    measured, scaled = CPUAdam(make_params(), max_grad_norm=1.0), CPUAdam(make_params())
    for _ in range(4):
        assert stepped(measured, monkeypatch)
        scaled.grad_scale = torch.tensor(2.0)
        assert stepped(scaled, monkeypatch)
    assert measured.grad_norm == pytest.approx((5 * MANY) ** 0.5)
    del scaled.grad_scale
    assert not stepped(scaled, monkeypatch)
    scaled.found_inf = torch.tensor(1.0)
    before = scaled.param_groups[0]["params"][0].detach().clone()
    assert stepped(scaled, monkeypatch)
    assert scaled.skipped
    del scaled.found_inf
    assert not stepped(scaled, monkeypatch)
    assert not scaled.skipped
    assert not torch.equal(scaled.param_groups[0]["params"][0], before)


def test_gradients_that_two_groups_share_are_refused_before_they_are_zeroed(monkeypatch):
    params = make_params()
    optimizer = CPUAdam([{"params": params[:500]}, {"params": params[500:]}])
    for _ in range(3):
        optimizer.step()
    assert not stepped(optimizer, monkeypatch)
    params[3].grad.data = params[700].grad.data
    assert not stepped(optimizer, monkeypatch)  # they are only read
    optimizer.zero_grads = True
    before = [param.detach().clone() for param in params]
    with pytest.raises(OpArgumentError, match="shares memory"):
        optimizer.step()
    assert all(torch.equal(param, was) for param, was in zip(params, before, strict=True))
    params[3].grad.data = torch.ones(5)
    optimizer.step()
    assert not stepped(optimizer, monkeypatch)


def test_no_handler_of_signals_sees_tensors_half_updated():
    """Python runs one between two bytecodes, and there is none while an op is at work."""
    params = [torch.nn.Parameter(torch.zeros(512)) for _ in range(6 * MANY)]
    for param in params:
        param.grad = torch.ones(512)
    optimizer = CPUAdam(params, lr=1.0, weight_decay=0.0)
    optimizer.step()
    torn: list[bool] = []

    def handle(*_: object) -> None:
        now = torch.stack([param.detach()[0] for param in params[::60]])
        torn.append(bool((now != now[0]).any()))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for turn in range(100):
            signal.setitimer(signal.ITIMER_REAL, 1e-3 + turn % 50 * 2e-4)
            optimizer.step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(torn) > 20
    assert not any(torn)


def test_tensors_that_a_handler_of_signals_moves_are_not_written_where_they_were():
    params = [torch.nn.Parameter(torch.zeros(5)) for _ in range(6 * MANY)]
    for param in params:
        param.grad = torch.ones(5)
    optimizer = CPUAdam(params)
    optimizer.step()
    left: list[tuple[torch.Tensor, torch.Tensor]] = []

    def handle(*_: object) -> None:
        for param in params[::600]:
            left.append((param.data, param.data.clone()))
            param.data = param.data.clone()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for turn in range(200):
            signal.setitimer(signal.ITIMER_REAL, 2e-4 + turn % 50 * 1e-4)
            optimizer.step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(left) > 200
    assert all(torch.equal(old, as_it_was) for old, as_it_was in left)


class Stubborn(torch.Tensor):
    """A gradient of a class that takes part in no op of ours."""

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        if "accel" in str(function):
            raise Odd(str(function))
        with torch._C._DisableTorchDispatch():
            return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("kind", [CPUAdam, FusedAdam])
def test_what_a_gradients_class_raises_comes_out(kind):
    params = [torch.nn.Parameter(torch.zeros(5)) for _ in range(3)]
    optimizer = kind(params)
    for turn in range(2):
        for param in params:
            param.grad = torch.ones(5)
        if turn:
            params[1].grad = torch.ones(5).as_subclass(Stubborn)
            with pytest.raises(Odd, match="replace_grads"):
                optimizer.step()
        else:
            optimizer.step()


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

    call_beside(cpu_adam.ops.update_prepared.default, prepared_list(cpu_adam, lists), wait)
    assert all(now != then for now, then in zip(seen, before, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_element_is_updated_once_whoever_does_it(cpu_adam: CPUAdamModule, threads):
    case = Case(torch.float32, torch.float32, AS_PARAM, lengths=(300, 70_000, 0, 1) * 25)
    kept, anew = make(case).lists, make(case).lists
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        arguments = prepared_list(cpu_adam, kept)
        for step in range(1, 4):
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


def test_tensors_of_several_groups_are_followed():
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
