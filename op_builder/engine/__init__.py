"""The build engine: a plan becomes commands, a ninja file, a checked binary, a cache entry.

The names here are for other projects, and work without torch; docs/embedding.md has examples.
"""

from op_builder.cache.layout import user_cache_dir
from op_builder.engine.public import BuiltLibrary, build_library
from op_builder.plan import Binding, ForeignLibrary
from op_builder.recipe import Recipe
from op_builder.toolchains.jobs import JobBudget

__all__ = [
    "Binding",
    "BuiltLibrary",
    "ForeignLibrary",
    "JobBudget",
    "Recipe",
    "build_library",
    "user_cache_dir",
]
