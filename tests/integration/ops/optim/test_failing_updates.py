"""An update that fails changes nothing, and no tensor without memory is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from op_builder.errors import OpArgumentError
from op_builder.ops import CPUSGD, CPUAdam, FusedAdam
from tests.support import changed_models, shared_list_program
from tests.support.files import freed
from tests.support.foreign_package import output_of
from tests.support.optimizer_cases import FUSED, HOST, assert_equal, contents, make_params, run, set_grads

Params = list[torch.nn.Parameter]

COUNT = 80_000  #: the states of so many elements have storages of their own, which can be freed


def step(optimizer: Any, params: Params) -> None:  # noqa: ARG001
    optimizer.step()


def one_by_one(optimizer: Any, params: Params) -> None:
    for index, param in enumerate(params):
        optimizer.update_one(param, 0, index)


@pytest.mark.parametrize(
    ("optimizer", "update"), [*((each, step) for each in (*HOST, *FUSED)), *((each, one_by_one) for each in HOST)]
)
def test_states_that_were_loaded_in_inference_mode_are_updated(optimizer: Any, update: Callable[..., None]) -> None:
    results = []
    for mode in (torch.inference_mode(False), torch.inference_mode()):
        params = make_params()
        made = optimizer(params)
        run(made, params, 1)
        with mode:
            made.load_state_dict(made.state_dict())
        set_grads(params, 2)
        update(made, params)
        results.append(contents(made, params))
    assert_equal(*results)


def test_gradients_that_were_made_in_inference_mode_are_zeroed() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUSGD([param], lr=1, zero_grads=True)
    with torch.inference_mode():
        param.grad = torch.ones(8)[::2]
    optimizer.step()
    assert_equal([param, param.grad], [torch.zeros(4)] * 2)


def test_a_gradient_whose_elements_share_memory_is_read_and_rejected_where_it_is_zeroed() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUSGD([param], lr=1, zero_grads=True)
    param.grad = torch.ones(1).expand(4)
    for _ in range(2):
        with pytest.raises(OpArgumentError, match="share memory"):
            optimizer.step()
        assert param.tolist() == [1] * 4
    optimizer.zero_grads = False
    optimizer.step()
    assert param.tolist() == [0] * 4


@pytest.mark.parametrize("update", [step, one_by_one])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
def test_a_counter_of_another_type_is_converted(dtype: torch.dtype, update: Callable[..., None]) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUAdam([param])
    run(optimizer, [param], 1)
    optimizer.state[param]["step"] = torch.ones((), dtype=dtype)
    set_grads([param], 2)
    update(optimizer, [param])
    assert optimizer.state[param]["step"].item() == 2


GRADS = [lambda: torch.ones(COUNT), lambda: torch.ones(2 * COUNT)[::2], lambda: torch._neg_view(torch.ones(COUNT))]


@pytest.mark.parametrize("make", GRADS)
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(("optimizer", "update"), [(CPUAdam, step), (CPUAdam, one_by_one), (FusedAdam, step)])
def test_a_gradient_without_memory_is_rejected(optimizer: Any, update: Any, steps: int, make: Any) -> None:
    param = torch.nn.Parameter(torch.ones(COUNT))
    made = optimizer([param])
    run(made, [param], steps)
    before = param.detach().clone()
    param.grad = freed(make())
    with pytest.raises(OpArgumentError, match="storage"):
        update(made, [param])
    assert torch.equal(param, before)


@pytest.mark.parametrize("states", ["float32", "8bit"])
def test_a_state_without_memory_is_rejected(states: str) -> None:
    param = torch.nn.Parameter(torch.ones(COUNT))
    optimizer = CPUAdam([param], states=states)
    run(optimizer, [param], 1)
    entry = optimizer.state[param]
    freed(entry["exp_avg"])
    for call in (optimizer.step, lambda: optimizer.load_state_dict(optimizer.state_dict())):
        with pytest.raises(OpArgumentError, match="storage"):
            call()
    del entry["exp_avg_sq"]
    with pytest.raises(OpArgumentError):
        optimizer.step()


def test_a_number_without_memory_is_rejected() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUAdam([param])
    run(optimizer, [param], 1)
    with pytest.raises(OpArgumentError, match="storage"):
        optimizer.step(grad_scale=freed(torch.ones(1)))
    optimizer.state[param]["step"] = freed(torch.ones(1))
    with pytest.raises(OpArgumentError, match="storage"):
        optimizer.update_one(param, 0, 0)
    for option in ("lr", "seed", "amsgrad"):
        with pytest.raises(OpArgumentError, match="storage"):
            CPUAdam([param], **{option: freed(torch.ones(1))})


def defaults(optimizer: Any) -> dict[str, Any]:
    """The defaults of all arguments of an optimizer."""
    arguments = inspect.signature(optimizer).parameters.values()
    given = {each.name: each.default for each in arguments if each.default is not each.empty}
    settings = {"maximize": False, "max_grad_norm": 1.0, "zero_grads": False, "seed": 3, "in_backward": False}
    return given | (settings if optimizer in HOST else {})


def options(optimizer: Any, arguments: dict[str, Any]) -> list[Any]:
    """All options of an optimizer, with their types."""
    made = optimizer(make_params(), **arguments)
    values = [(name, value) for name, value in made.param_groups[0].items() if name != "params"]
    values += [(name, getattr(made, name)) for name in arguments if hasattr(made, name)]
    return [(name, value, type(value), [*map(type, value)] if type(value) is tuple else None) for name, value in values]


@pytest.mark.parametrize("optimizer", [*HOST, *FUSED])
def test_numbers_and_switches_of_other_types_become_pythons(optimizer: Any) -> None:
    known = defaults(optimizer)
    expected = options(optimizer, known)
    for form in (numpy.array, lambda value: numpy.array([value]), torch.tensor):
        # Learning rates and the like that are tensors stay, because schedulers change them in place.
        kinds = (bool,) if form is torch.tensor else (bool, int, float)
        given = {name: form(value) if isinstance(value, kinds) else value for name, value in known.items()}
        assert options(optimizer, given) == expected
    betas = {"betas": list(map(numpy.float64, known["betas"]))} if "betas" in known else {}
    assert options(optimizer, known | betas) == expected


@pytest.mark.parametrize("optimizer", [*HOST, *FUSED])
@pytest.mark.parametrize(
    "value", ["no", None, 2, torch.ones(2), numpy.array([False, False]), numpy.array("no")], ids=str
)
def test_a_switch_is_true_or_false(optimizer: Any, value: object) -> None:
    for option in (name for name, default in defaults(optimizer).items() if isinstance(default, bool)):
        with pytest.raises(OpArgumentError, match="True or False"):
            optimizer(make_params(), **{option: value})


def test_threads_may_share_a_list() -> None:
    output_of("-m", shared_list_program.__name__)


@pytest.mark.parametrize(
    ("states", "count"),
    [("8bit", 20), *(pytest.param(each, 200, marks=pytest.mark.slow) for each in ("8bit", "float32"))],
)
def test_no_change_of_a_model_between_steps_ends_the_process(states: str, count: int) -> None:
    output = output_of("-m", changed_models.__name__, "0", str(count), states)
    assert "'step'" in output, "some steps succeeded"
    assert "OpArgumentError" in output, "some changes were refused"


SPOILS: dict[str, Callable[[torch.nn.Parameter, Any], Any]] = {
    "freed parameter": lambda param, _: param.untyped_storage().resize_(0),
    "freed state": lambda _, state: state["exp_avg"].untyped_storage().resize_(0),
    "empty counter": lambda _, state: state["step"].set_(torch.zeros(0)),
    "counter without a number": lambda _, state: state["step"].fill_(torch.nan),
    "negative counter": lambda _, state: state["step"].fill_(-1),
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize(
    ("optimizer", "states"), [(CPUAdam, "float32"), (CPUAdam, "bfloat16"), (CPUAdam, "8bit"), (FusedAdam, "float32")]
)
def test_a_tensor_that_no_longer_fits_leaves_all_groups_unchanged(spoil: Any, optimizer: Any, states: str) -> None:
    params = [torch.nn.Parameter(torch.ones(COUNT)) for _ in range(2)]
    optimizer = optimizer([{"params": [param]} for param in params], states=states)
    run(optimizer, params, 2)
    before = params[0].detach().clone()
    set_grads(params, 3)
    with torch.no_grad():
        spoil(params[1], optimizer.state[params[1]])
    with pytest.raises(OpArgumentError):
        optimizer.step()
    assert torch.equal(params[0], before)
    assert optimizer.state[params[0]]["step"].item() == 2


@pytest.mark.parametrize("make", [lambda: torch.ones(1).to_sparse()[0], lambda: torch.ones((), requires_grad=True)])
def test_a_counter_that_cannot_be_advanced_is_replaced_before_an_update_in_backward(make: Any) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUAdam([param], in_backward=True)
    param.sum().backward()
    optimizer.state[param]["step"] = make()
    param.sum().backward()
    assert optimizer.state[param]["step"].item() == 2


def test_a_missing_option_is_named() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUAdam([param])
    run(optimizer, [param], 1)
    del optimizer.param_groups[0]["eps"]
    with pytest.raises(OpArgumentError, match="option eps"):
        optimizer.step()


def test_options_that_an_update_does_not_need_may_be_missing() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUAdam([param])
    optimizer.defaults["lookahead_k"] = 5  # as wrappers of optimizers do
    del optimizer.param_groups[0]["differentiable"]
    run(optimizer, [param], 1)
    assert (param < 1).all()


UNFIT_COPIES: list[Callable[[Any, Any], Any]] = [
    lambda *_: torch.zeros(5),
    lambda *_: torch.zeros(4, dtype=torch.float64),
    lambda *_: torch.zeros(8)[::2],
    lambda *_: torch.zeros(4, device="meta"),
    lambda *_: torch.zeros(4).to_sparse(),
    lambda *_: freed(torch.zeros(4)),
    lambda *_: "text",
    lambda param, _: param.detach(),
    lambda param, _: param.grad,
    lambda param, optimizer: optimizer.state[param]["exp_avg"],
]


@pytest.mark.parametrize("make", UNFIT_COPIES)
def test_an_unfit_copy_is_refused_at_once(make: Any) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = CPUAdam([param])
    run(optimizer, [param], 1)
    set_grads([param], 2)
    copy = torch.zeros(4)
    optimizer.write_copies({param: copy})
    with pytest.raises(OpArgumentError, match=r"[Cc]opy"):
        optimizer.write_copies({param: make(param, optimizer)})
    optimizer.step()
    assert torch.equal(copy, param)


def test_a_gradient_claims_only_the_memory_that_it_has() -> None:
    param = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = CPUAdam([param])
    buffer = torch.ones(16)
    param.grad = buffer[:1].expand(4, 2)
    copy = buffer[1:9].view(4, 2)
    optimizer.write_copies({param: copy})
    optimizer.step()
    assert torch.equal(copy, param)
    param.grad = buffer[:16].view(8, 2)[::2]
    with pytest.raises(OpArgumentError, match="shares memory"):
        optimizer.write_copies({param: buffer[8:].view(4, 2)})
