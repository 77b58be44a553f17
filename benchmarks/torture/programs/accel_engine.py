"""The bare engine of this project, without torch and builders."""

import importlib.util

from _main import main, parts

from op_builder.engine import Binding, Recipe, build_library


def load_op(sources, flags):
    recipe = Recipe(
        "torture",
        Binding.PYTHON,
        sources=(str(sources / "op.cpp"), *parts(sources)),
        include_dirs=(str(sources / "first"), str(sources)),
        cxx_flags=("-DTORCH_EXTENSION_NAME=torture", *flags),
    )
    spec = importlib.util.spec_from_file_location("torture", build_library(recipe).path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.value


main(load_op)
