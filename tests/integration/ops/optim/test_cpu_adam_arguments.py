"""Bad input of CPU Adam: a clear error, the tensors untouched, the op usable afterwards."""

from __future__ import annotations

import math

import pytest
import torch

from op_builder import env
from op_builder.errors import AccelError, EnvironmentValueError, OpArgumentError
from op_builder.ops.optim.host_op import HostOp
from op_builder.ops.optim.tensor_lists import TensorLists
from tests.support.adam_reference import Options, random_tensors

NAN = math.nan
SETTINGS = {
    "optimizer_id": 0,
    "step": 1,
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "bias_correction": True,
}
ROLES = ("param", "grad", "exp_avg", "exp_avg_sq")
OPTIONS = (1e-3, 0.9, 0.999, 1e-8, 0.0, True, True)


@pytest.fixture
def adam(cpu_adam):
    module = HostOp(cpu_adam.ops)
    module.create_adam(0)
    return module


def good_tensors() -> dict[str, torch.Tensor]:
    return dict(zip(ROLES, random_tensors(24), strict=True))


def as_lists(params, grads, exp_avgs, exp_avg_sqs) -> TensorLists:
    return TensorLists(params, grads, [exp_avgs, exp_avg_sqs])


BAD_SETTINGS = [
    ("optimizer_id", 7, "no Adam optimizer with id 7"),
    ("optimizer_id", [], "optimizer_id is \\[\\], which is not an int"),
    ("step", 0, "step is 0"),
    ("step", -3, "step is -3"),
    ("step", 1.5, "step is 1.5"),
    ("step", "1", "not an int"),
    ("step", None, "not an int"),
    ("step", True, "step is True"),
    ("lr", NAN, "lr is nan"),
    ("lr", math.inf, "lr is inf"),
    ("lr", -1e-3, "lr is -0.001"),
    ("lr", "fast", "not a number"),
    ("lr", torch.ones(2), "not a number"),
    ("beta1", NAN, "beta1 is nan"),
    ("beta1", 1.0, "beta1 is 1.0"),
    ("beta1", -0.1, "beta1 is -0.1"),
    ("beta2", NAN, "beta2 is nan"),
    ("beta2", 1.5, "beta2 is 1.5"),
    ("eps", NAN, "eps is nan"),
    ("eps", -1e-8, "eps is -1e-08"),
    ("weight_decay", NAN, "weight_decay is nan"),
    ("weight_decay", -0.1, "weight_decay is -0.1"),
    ("weight_decay", math.inf, "weight_decay is inf"),
]

BAD_TENSORS = [
    *((role, lambda x: x.to("meta"), f"{role} of tensor 0 is on device meta") for role in ROLES),
    *((role, lambda x: x.to_sparse(), f"{role} of tensor 0 has layout torch.sparse_coo") for role in ROLES),
    *((role, lambda x: x.repeat(2)[::2], f"{role} of tensor 0 is not contiguous") for role in ROLES),
    *((role, lambda x: x.double(), f"{role} of tensor 0 is of type Double") for role in ROLES),
    *((role, lambda x: x.to(torch.int32), f"{role} of tensor 0 is of type Int") for role in ROLES),
    *((role, lambda x: x.tolist(), f"{role} of tensor 0 is of type list") for role in ROLES),
    *((role, lambda x: None, f"{role} of tensor 0 is of type NoneType") for role in ROLES),  # noqa: ARG005
    *((role, lambda x: x[:-1].clone(), f"{role} of tensor 0 has 23 elements; 24 are needed") for role in ROLES[1:]),
    ("param", lambda x: x[:-1].clone(), "grad of tensor 0 has 24 elements; 23 are needed for a parameter of 23"),
    ("exp_avg", lambda x: x.bfloat16(), "a state is of float32 or of its parameter's type"),
    ("exp_avg_sq", lambda x: x.half(), "a state is of float32 or of its parameter's type"),
]


@pytest.mark.parametrize(("name", "value", "text"), BAD_SETTINGS, ids=lambda value: str(value)[:20])
def test_bad_settings_are_refused_before_anything_is_written(adam, name, value, text):
    tensors = good_tensors()
    before = {role: tensor.clone() for role, tensor in tensors.items()}
    for call in (adam.adam_update, adam.adam_rollback):
        with pytest.raises(OpArgumentError, match=text) as caught:
            call(**{**SETTINGS, name: value}, **tensors)
        assert caught.value.remedy
    assert all(torch.equal(tensors[role], before[role]) for role in ROLES)
    adam.adam_update(**SETTINGS, **tensors)


@pytest.mark.parametrize(
    ("role", "spoil", "text"), BAD_TENSORS, ids=lambda value: value[-30:] if isinstance(value, str) else ""
)
def test_bad_tensors_are_refused_before_anything_is_written(adam, role, spoil, text):
    tensors = good_tensors()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    spoiled = {**tensors, role: spoil(tensors[role])}
    with pytest.raises(OpArgumentError, match=text) as caught:
        adam.adam_update(**SETTINGS, **spoiled)
    assert caught.value.remedy
    with pytest.raises(OpArgumentError):
        adam.adam_rollback(**SETTINGS, **spoiled)
    assert all(torch.equal(tensors[name], before[name]) for name in ROLES)
    adam.adam_update(**SETTINGS, **tensors)


@pytest.mark.parametrize(("one", "other"), [(a, b) for i, a in enumerate(ROLES) for b in ROLES[:i]])
def test_tensors_that_share_memory_are_refused(adam, one, other):
    tensors = good_tensors()
    storage = torch.rand(40)
    tensors[one], tensors[other] = storage[:24], storage[16:]
    before = storage.clone()
    with pytest.raises(OpArgumentError, match=f"{one} of tensor 0 shares memory with its {other}"):
        adam.adam_update(**SETTINGS, **tensors)
    assert torch.equal(storage, before)


def test_neighbours_in_one_storage_are_accepted(adam):
    storage = torch.rand(4 * 24)
    adam.adam_update(**SETTINGS, **dict(zip(ROLES, storage.chunk(4), strict=True)))


def test_moments_of_two_types_are_refused(adam):
    tensors = good_tensors()
    tensors["param"] = tensors["param"].bfloat16()
    tensors["exp_avg"] = tensors["exp_avg"].bfloat16()
    with pytest.raises(OpArgumentError, match="exp_avg and exp_avg_sq of tensor 0 are of different types"):
        adam.adam_update(**SETTINGS, **tensors)


def test_one_bad_tensor_in_a_list_leaves_all_others_untouched(adam):
    lists = {role: [good_tensors()[role] for _ in range(5)] for role in ROLES}
    lists["exp_avg"][4] = lists["exp_avg"][4].double()
    before = {role: [tensor.clone() for tensor in members] for role, members in lists.items()}
    with pytest.raises(OpArgumentError, match="exp_avg of tensor 4"):
        adam.update_list(as_lists(*lists.values()), 1, OPTIONS)
    for role in ROLES:
        assert all(torch.equal(now, then) for now, then in zip(lists[role], before[role], strict=True))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("count", [0, 2])
def test_lists_of_unequal_length_are_refused(adam, role, count):
    lists = {name: [tensor] for name, tensor in good_tensors().items()}
    lists[role] = [good_tensors()[role] for _ in range(count)]
    with pytest.raises(OpArgumentError, match=r"\d parameters came with \d \w+ tensors"):
        adam.update_list(as_lists(*lists.values()), 1, OPTIONS)


def test_one_state_too_many_does_not_stand_in_for_another(adam):
    tensors = good_tensors()
    spare = torch.ones(24)
    lists = TensorLists([tensors["param"]], [tensors["grad"]], [[tensors["exp_avg"], spare], []])
    before = tensors["param"].clone()
    with pytest.raises(OpArgumentError, match="1 parameters came with 2 exp_avg tensors"):
        adam.update_list(lists, 1, OPTIONS)
    assert torch.equal(tensors["param"], before)
    assert (spare == 1).all()


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        (TensorLists([], [], [[]]), "1 lists of states were given"),
        (TensorLists([], [], []), "0 lists of states were given"),
        (TensorLists([], [], [[], []], scales=[[]]), "1 lists of scales were given"),
    ],
)
def test_every_state_has_a_list(adam, lists, text):
    with pytest.raises(OpArgumentError, match=text) as caught:
        adam.update_list(lists, 1, OPTIONS)
    assert caught.value.remedy == "Pass 2: exp_avg, exp_avg_sq."


@pytest.mark.parametrize("count", [6, 8])
def test_an_option_too_few_or_too_many_is_refused(adam, count):
    tensors = good_tensors()
    before = tensors["param"].clone()
    with pytest.raises(OpArgumentError, match=f"{count} options were given"):
        adam.update_list(as_lists(*([tensor] for tensor in tensors.values())), 1, (*OPTIONS, 0.0)[:count])
    assert torch.equal(tensors["param"], before)


def test_empty_lists_and_empty_tensors_do_nothing(adam):
    adam.update_list(as_lists([], [], [], []), 1, OPTIONS)
    adam.adam_update(**SETTINGS, **{role: torch.empty(0) for role in ROLES})


def test_an_id_is_used_once_and_free_after_destroy(adam):
    with pytest.raises(OpArgumentError, match="id 0 is in use"):
        adam.create_adam(0)
    adam.destroy_adam(0)
    with pytest.raises(OpArgumentError, match="no Adam optimizer with id 0"):
        adam.destroy_adam(0)
    with pytest.raises(OpArgumentError, match="no Adam optimizer with id 0"):
        adam.adam_update(**SETTINGS, **good_tensors())
    adam.create_adam(0, adamw_mode=False)
    adam.adam_update(**SETTINGS, **good_tensors())


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", NAN), ("beta1", 1.0), ("beta2", -1.0), ("eps", math.inf), ("weight_decay", -1)]
)
def test_create_checks_its_values_and_registers_nothing(adam, name, value):
    with pytest.raises(OpArgumentError):
        adam.create_adam(1, **{name: value})
    adam.create_adam(1)


@pytest.mark.parametrize("value", [True, "1", None, 1.0, []])
def test_an_id_is_an_int(adam, value):
    for method in (adam.create_adam, adam.destroy_adam):
        with pytest.raises(OpArgumentError) as caught:
            method(value)
        assert f"optimizer_id is {value!r}, which is not an int" in str(caught.value)


def test_create_and_update_take_their_arguments_by_position(adam):
    adam.create_adam(5, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    tensors = random_tensors(8)
    adam.adam_update(5, *Options().positional(), *tensors)
    adam.adam_rollback(5, *Options().positional(), *tensors)


def test_create_logs_only_when_asked(adam, caplog):
    with caplog.at_level("INFO", logger="op_builder"):
        adam.create_adam(1)
        assert not caplog.records
        adam.create_adam(2, should_log=True)
    assert "lr=0.001" in caplog.text


def test_errors_are_of_the_family_and_value_errors(adam):
    with pytest.raises(AccelError):
        adam.destroy_adam(99)
    with pytest.raises(ValueError):
        adam.destroy_adam(99)


def test_the_lr_may_be_a_tensor_of_one_element(adam):
    tensors, same = random_tensors(30), random_tensors(30)
    adam.adam_update(**{**SETTINGS, "lr": torch.tensor(0.25)}, **dict(zip(ROLES, tensors, strict=True)))
    adam.adam_update(**{**SETTINGS, "lr": 0.25}, **dict(zip(ROLES, same, strict=True)))
    assert torch.equal(tensors.param, same.param)


@pytest.mark.parametrize("name", ["sse9", "AVX2 ", "neon,avx2"])
def test_an_unknown_instruction_set_is_refused_with_the_allowed_ones(cpu_adam, name):
    with (
        env.scope(ACCEL_CPU_ISA=name),
        pytest.raises(EnvironmentValueError, match=r"ACCEL_CPU_ISA.*baseline"),
    ):
        HostOp(cpu_adam.ops)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("left", "begin"), [(0, 0), (0, 3), (95, 0), (11 * 4, 8), (4, 24)])
def test_memory_that_was_freed_or_shrunk_is_refused(adam, role, left, begin):
    """Sizes of tensors stay when their storage is resized."""
    tensors = good_tensors()
    whole = torch.cat([torch.zeros(begin), tensors[role]])
    tensors[role] = whole[begin:]
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    whole.untyped_storage().resize_(left)
    lists = as_lists(*([tensors[name]] for name in ROLES))
    end = (begin + 24) * 4
    for call in (
        lambda: adam.adam_update(**SETTINGS, **tensors),
        lambda: adam.adam_rollback(**SETTINGS, **tensors),
        lambda: adam.update_list(lists, 1, OPTIONS),
        lambda: adam.norm([tensors[role]]),
    ):
        with pytest.raises(OpArgumentError, match=f"reaches to byte {end} of its storage, which has {left} bytes") as e:
            call()
        assert "llocate it again" in e.value.remedy
        assert f"resize_({end})" in e.value.remedy
    whole.untyped_storage().resize_(end)
    tensors[role].copy_(before[role])
    assert all(torch.equal(tensors[name], before[name]) for name in ROLES)
    adam.adam_update(**SETTINGS, **tensors)


def test_what_is_behind_the_end_of_a_shrunk_storage_may_be_gone(adam):
    """The tensor itself is whole."""
    tensors = good_tensors()
    whole = torch.cat([tensors["param"], torch.zeros(100)])
    tensors["param"] = whole[:24]
    whole.untyped_storage().resize_(24 * 4)
    adam.adam_update(**SETTINGS, **tensors)
    empty = {role: torch.zeros(9)[5:5] for role in ROLES}
    for tensor in empty.values():
        tensor.untyped_storage().resize_(0)
    adam.adam_update(**SETTINGS, **empty)


def test_a_sum_without_memory_is_refused(adam):
    total = torch.zeros(1, dtype=torch.float64)
    total.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="sum of tensor 0 reaches to byte 8"):
        adam.ops.sum_of_squares([torch.ones(3)], total, adam.isa)
