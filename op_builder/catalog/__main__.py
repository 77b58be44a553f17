"""``python -m op_builder.catalog``: print the lines with switches for pyproject.toml."""

from __future__ import annotations

from op_builder.catalog.index import cache_keys

if __name__ == "__main__":
    print(cache_keys(), end="")
