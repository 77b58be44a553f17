"""Communicators of oneCCL: failures that only a stand-in for it can produce, and what is given back."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from op_builder.errors import CommunicationError
from op_builder.ops.comm.ccl_comm import CCLCommModule
from op_builder.ops.comm.ccl_communicator import ADDRESS_BYTES


def test_a_work_that_has_failed_is_completed() -> None:
    ops = mock.Mock()
    ops.connect.return_value = (1, 1)
    ccl = CCLCommModule(ops)
    ccl.initialize(2, 0, [1] * ADDRESS_BYTES)
    ops.wait.side_effect = RuntimeError("oneCCL: a peer is gone")
    work = ccl.all_reduce(torch.zeros(1), dist.ReduceOp.SUM, 0, True)
    assert work.is_completed()
    with pytest.raises(CommunicationError, match="a peer is gone"):
        work.wait()


def test_communicators_of_repeated_and_failed_meetings_are_given_back() -> None:
    ops = mock.Mock()  # numbers the communicators
    ops.connect.side_effect = ((number, number) for number in itertools.count(1))
    ccl, address = CCLCommModule(ops), [1] * ADDRESS_BYTES
    for _ in range(2):
        ccl.initialize(2, 0, address, timeout_s=0.01)
    for _ in range(2):
        ccl.initialize_sub_comm(2, 0, address, [1, 0])
    ops.wait.return_value = False
    with pytest.raises(CommunicationError, match="did not finish"):
        ccl.initialize(2, 0, address, timeout_s=0.01)
    assert ops.disconnect.call_args_list == [mock.call(number) for number in (1, 3, 5)]
