"""An op builder of this project."""

from _main import main, parts

from op_builder import CPUOpBuilder


class TortureBuilder(CPUOpBuilder):
    NAME = "torture"

    def __init__(self, directory, flags):
        super().__init__()
        self.directory, self.flags = directory, flags

    def sources(self):
        return [str(self.directory / "op.cpp"), *parts(self.directory)]

    def include_paths(self):
        return [str(self.directory / "first"), str(self.directory)]

    def cxx_args(self):
        return [*super().cxx_args(), *self.flags]


def load_op(sources, flags):
    return TortureBuilder(sources, flags).load().value


main(load_op)
