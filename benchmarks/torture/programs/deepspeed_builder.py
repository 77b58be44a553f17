"""An op builder of DeepSpeed."""

import os

from _main import main, parts
from deepspeed.ops.op_builder.cpu.builder import CPUOpBuilder


class TortureBuilder(CPUOpBuilder):
    BUILD_VAR = "DS_BUILD_TORTURE"
    NAME = "torture"

    def __init__(self, directory, flags):
        super().__init__(name=self.NAME)
        self.directory, self.flags = directory, flags

    def absolute_name(self):
        return "deepspeed.ops.torture_op"

    def sources(self):
        return [str(self.directory / "op.cpp"), *parts(self.directory)]

    def include_paths(self):
        return [str(self.directory / "first"), str(self.directory)]

    def cxx_args(self):
        return self.flags

    def extra_ldflags(self):
        return []

    def is_compatible(self, verbose=False):  # noqa: ARG002
        return True


def load_op(sources, flags):
    return TortureBuilder(sources, flags).load(verbose="TORTURE_LOG" in os.environ).value


main(load_op)
