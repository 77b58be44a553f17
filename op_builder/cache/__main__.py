"""``python -m op_builder.cache``: the command line, which stands above the layer of this package."""

import runpy

if __name__ == "__main__":
    runpy.run_module("op_builder.commands.cache", run_name="__main__")
