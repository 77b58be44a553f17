"""A trainer of test_zenflow.py that is killed while its worker runs."""

from __future__ import annotations

import os

import torch
import torch.multiprocessing

from op_builder.cpu import CPUAdamBuilder
from tests.integration.ops.optim.test_zenflow import WAIT_S, make_group, new_control, run_worker, submit

if __name__ == "__main__":
    adam = CPUAdamBuilder().load()
    control = new_control(adam, 1)
    arguments = ([make_group(torch.float32, 8)], control, [])
    torch.multiprocessing.get_context("fork").Process(target=run_worker, args=arguments).start()
    submit(adam, control, 0, 1, 1)
    assert adam.zenflow_adam_wait(control.data_ptr(), WAIT_S)
    os._exit(0)
