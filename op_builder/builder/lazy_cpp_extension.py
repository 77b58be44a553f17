"""``torch.utils.cpp_extension`` for builders that use it without importing it."""

import importlib.util
import sys


def offer_cpp_extension() -> None:
    """Let ``torch.utils.cpp_extension`` be used without its import, as existing builders do in ``is_compatible()``.

    Its import takes a tenth of a second and more; the first use of an attribute does it.
    """
    name = "torch.utils.cpp_extension"
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    setattr(sys.modules["torch.utils"], "cpp_extension", module)  # noqa: B010 - mypy knows that it is a module
