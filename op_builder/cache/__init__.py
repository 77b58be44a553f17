"""The content-addressed cache of built ops."""

from op_builder.cache.store import Cache, Entry, Manifest, default_cache_dir

__all__ = ["Cache", "Entry", "Manifest", "default_cache_dir"]
