"""``python -m op_builder.tune_aio``, which prints a line when it measures."""

from __future__ import annotations

from op_builder import tune_aio

_search = tune_aio.search


def _announced(*arguments: object) -> object:
    print("measuring", flush=True)
    return _search(*arguments)  # type: ignore[arg-type]


tune_aio.search = _announced  # type: ignore[assignment]
tune_aio.run_main(tune_aio.main)
