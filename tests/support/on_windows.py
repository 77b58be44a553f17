"""A program that imports and calls everything without the modules and names of Python that Windows does not have."""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import subprocess  # noqa: F401 - these look at sys.platform when they are imported
import sys
import sysconfig
import tempfile  # noqa: F401

import filelock  # noqa: F401
import psutil  # noqa: F401
import rich.console
import rich.progress
import rich.table  # noqa: F401
import torch._dynamo
import torch.distributed.run  # noqa: F401

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
NAMES = (
    *("fork", "geteuid", "getuid", "killpg", "memfd_create", "register_at_fork", "sched_getaffinity", "statvfs"),
    *("uname", "wait4", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "RTLD_GLOBAL", "WNOHANG"),
)
SIGNALS = ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGPIPE")


def pretend() -> None:
    sysconfig.get_config_vars()
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in NAMES:
        delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
    sys.platform = "win32"


def main() -> None:
    from accelerator import get_accelerator
    from op_builder.errors import IncompatibleOpError

    assert get_accelerator().device_name()
    assert get_accelerator().communication_backend_name()
    builder = get_accelerator().create_op_builder("CPUAdamBuilder")
    assert not builder.is_compatible()
    try:
        builder.load()
    except IncompatibleOpError as error:
        print(error)
    from accelerator.launch import command_line
    from op_builder.report import __main__ as report

    assert report.main([]) == 2
    assert command_line.main(["program.py"]) == 2
    for package in ("accelerator", "op_builder"):
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            if module.name != "op_builder.integrations.deepspeed":  # which is to raise without DeepSpeed
                importlib.import_module(module.name)


if __name__ == "__main__":
    pretend()
    main()
