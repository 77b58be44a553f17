"""``python -m op_builder.catalog``: print the table of ops for README.md and the lines for pyproject.toml."""

from __future__ import annotations

from op_builder.catalog.index import cache_keys, markdown_table

if __name__ == "__main__":
    print(markdown_table())
    print(cache_keys(), end="")
