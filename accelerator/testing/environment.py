"""Environment variables, visible devices and the compile backend."""

from __future__ import annotations

import subprocess
import sys

import torch

from accelerator.testing.model import (
    Ability,
    Subject,
    UnmetExpectationError,
    does_not_apply,
    expect,
    expect_equal,
    expect_type,
    needs,
)
from op_builder import env

_CHILD_TIMEOUT_S = 300
_ABSENT_BACKEND = "no_such_backend"


def variable_names_are_told(subject: Subject) -> str:
    """export_envs() and visible_devices_envs() are lists of names that belong to the caller."""
    for name in ("export_envs", "visible_devices_envs"):
        ask = getattr(subject.accelerator, name)
        names = ask()
        expect_type(f"{name}()", names, list)
        expect(all(isinstance(each, str) and each for each in names), f"{name}() of strings", names)
        names.append("CONFORMANCE")
        expect("CONFORMANCE" not in ask(), f"a list of its own from each {name}()", "the same list")
    return ", ".join(subject.accelerator.visible_devices_envs())


def visible_devices_are_written(subject: Subject) -> None:
    """set_visible_devices_envs() writes the ids into all its variables of the given mapping, and nothing else."""
    accelerator, before = subject.accelerator, env.child_environment()
    given = {"HOME": "/home/someone"}
    accelerator.set_visible_devices_envs(given, [1, 0])
    wanted = {"HOME": "/home/someone", **dict.fromkeys(accelerator.visible_devices_envs(), "1,0")}
    expect_equal("the mapping", given, wanted)
    expect(env.child_environment() == before, "this process's environment unchanged", "it changed")


@needs(Ability.CHILD_PROCESSES)
def visible_devices_are_honoured(subject: Subject) -> str:
    """A child process sees only the devices that set_visible_devices_envs() left to it."""
    if subject.ignores_indices():
        does_not_apply("set_device() takes any number and changes nothing: there is nothing to hide")
    count = subject.accelerator.device_count()
    seen = _devices_of_child(subject, [count - 1])
    expect_equal("device_count() of a child that was left one device", seen, 1)
    if count > 1:
        return f"1 of {count}"
    if _devices_of_child(subject, []) != 0:
        does_not_apply("there is one device, and an empty variable does not hide it")
    return "0 of 1"


def _devices_of_child(subject: Subject, ids: list[int]) -> int:
    cls = type(subject.accelerator)
    if cls.__module__ == "__main__" or "<" in cls.__qualname__:
        does_not_apply(f"a child process cannot import {cls.__module__}.{cls.__qualname__}")
    environment = env.child_environment()
    subject.accelerator.set_visible_devices_envs(environment, ids)
    # The constructor may refuse where no device is left: that is no device seen, too.
    program = (
        "import functools, importlib\n"
        "from accelerator.errors import AcceleratorUnavailableError\n"
        f"cls = functools.reduce(getattr, {cls.__qualname__!r}.split('.'), "
        f"importlib.import_module({cls.__module__!r}))\n"
        "try:\n"
        "    accelerator = cls()\n"
        "    print('devices:', accelerator.device_count() if accelerator.is_available() else 0)\n"
        "except AcceleratorUnavailableError:\n"
        "    print('devices: 0')\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S
    )
    for line in child.stdout.splitlines():
        if line.startswith("devices: "):
            return int(line.removeprefix("devices: "))
    raise UnmetExpectationError(f"a child process that was left devices {ids} failed: {child.stderr.strip()[-300:]}")


def compile_backend_is_known(subject: Subject) -> str:
    """get_compile_backend() is a torch.compile backend, and set_compile_backend() takes another one."""
    accelerator = subject.accelerator
    former, known = accelerator.get_compile_backend(), torch.compiler.list_backends(exclude_tags=())
    expect(former in known, f"one of {', '.join(known)}", former)
    try:
        accelerator.set_compile_backend("eager")
        expect_equal("get_compile_backend()", accelerator.get_compile_backend(), "eager")
    finally:
        accelerator.set_compile_backend(former)
    return str(former)


def wrong_compile_backend_is_refused(subject: Subject) -> None:
    """set_compile_backend() of an unknown name is a ValueError that names the supported ones, and changes nothing."""
    accelerator = subject.accelerator
    former = accelerator.get_compile_backend()
    try:
        accelerator.set_compile_backend(_ABSENT_BACKEND)
    except ValueError as error:
        expect("inductor" in str(error), "the supported backends in the message", str(error))
    else:
        accelerator._compile_backend = former
        raise UnmetExpectationError("expected a ValueError, found none")
    expect_equal("get_compile_backend()", accelerator.get_compile_backend(), former)


CHECKS = (
    variable_names_are_told,
    visible_devices_are_written,
    visible_devices_are_honoured,
    compile_backend_is_known,
    wrong_compile_backend_is_refused,
)
