"""Failures made on purpose, and what their errors must say."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from op_builder import Binding, CUDAOpBuilder, env
from op_builder.cache.store import Cache
from op_builder.errors import AccelError, CompileError
from op_builder.system.outcomes import CheckOutcome
from tests.support.small_ops import SmallBuilder, TorchBuilder

# What makes a library one of Binding.STABLE, without the second that torch's headers take.
ENTRY = """
extern "C" __attribute__((visibility("default"))) int accel_register_library(const char*, char*, unsigned long) {
  return 0;
}
"""
# The builder of such an op in another package.
OWN_BUILDER = """
from op_builder import Binding, OpBuilder
class OwnBuilder(OpBuilder):
    NAME = "own"
    BINDING = Binding.STABLE
    def sources(self):
        return ["own.cpp"]
"""
# A Python module, of which the body of its init function is to be filled in.
MODULE = '#include <Python.h>\nextern "C" PyObject* PyInit_small() {\n  %s\n}\n'


class KernelBuilder(CUDAOpBuilder, SmallBuilder):
    """An op with a kernel that is only to be compiled: it asks for no device."""

    NAME = "kernel"

    def sources(self) -> list[str]:
        return [str(self.directory / "kernel.cu")]

    def load_checks(self) -> list[CheckOutcome]:
        return []


class TorchKernelBuilder(KernelBuilder):
    BINDING = Binding.TORCH


@dataclass(frozen=True)
class Seed:
    """A failure, and what its error must say.

    Attributes:
        files: of the op's directory, whose name stands for ``$HERE`` in all texts; the sources are those that end
            in .cpp, and what begins with ``#!`` is made a program.
        cause: texts of the error.
        remedy: part of it; empty where none is known.
    """

    files: Mapping[str, str]
    cause: tuple[str, ...] = ()
    remedy: str = ""
    raises: type[AccelError] = CompileError
    flags: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    binding: Binding = Binding.STABLE
    environment: Mapping[str, str] = field(default_factory=dict)

    def builder(self, directory: Path, cache: Cache) -> SmallBuilder:
        """The builder of the op, whose files are written."""
        self.write(directory)
        builder = (TorchBuilder if self.binding is Binding.TORCH else SmallBuilder)(directory, cache)
        builder.files = [name for name in self.files if name.endswith(".cpp")]
        builder.flags = list(self.flags)
        builder.link = [flag.replace("$HERE", str(directory)) for flag in self.link]
        return builder

    def write(self, directory: Path) -> None:
        for name, text in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("$HERE", str(directory)))
            path.chmod(0o755 if text.startswith("#!") else 0o644)
        (directory / "include").mkdir(exist_ok=True)

    def surroundings(self, directory: Path) -> AbstractContextManager[None]:
        """The environment of the failure; the expected texts are those of g++."""
        variables = {"CXX": "g++", "TORCH_CUDA_ARCH_LIST": "9.0", **self.environment}
        return env.scope(**{name: text.replace("$HERE", str(directory)) for name, text in variables.items()})


def table(seeds: Mapping[str, Seed]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("seed", [pytest.param(seed, id=name) for name, seed in seeds.items()])


def end_of_traceback(error: BaseException) -> str:
    """What a user has before the eyes: the last ten lines."""
    return "\n".join("".join(traceback.format_exception(error)).splitlines()[-10:])


def fails(seed: Seed, builder: SmallBuilder | KernelBuilder) -> AccelError:
    """Let ``builder`` load: it must fail as ``seed`` wants it, say so in the last ten lines, and keep nothing."""
    with seed.surroundings(builder.directory), pytest.raises(seed.raises) as caught:
        builder.load()
    seen = end_of_traceback(caught.value)
    for text in (*seed.cause, seed.remedy):
        assert text in seen
    assert bool(caught.value.remedy) is bool(seed.remedy), "a remedy where none is known leads astray"
    assert builder.cache.entries() == []
    if isinstance(caught.value, CompileError):
        assert f"Command: {caught.value.command}\n" in seen
        assert f"Full log: {caught.value.log_path}" in seen
        assert caught.value.command in Path(caught.value.log_path).read_text(errors="replace")
    return caught.value
