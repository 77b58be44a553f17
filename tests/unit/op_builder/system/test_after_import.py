"""A function that is called after a module's import."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from op_builder.system.after_import import AfterImport


def test_only_the_named_module_counts_where_one_loader_serves_a_whole_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for name in ("called_after", "not_called_after"):
            opened.writestr(f"{name}.py", "VALUE = 1\n")
    called: list[str] = []
    monkeypatch.syspath_prepend(archive)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    sys.meta_path.insert(0, AfterImport("called_after", lambda module: called.append(module.__name__)))
    for name in ("called_after", "not_called_after"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        assert importlib.import_module(name).VALUE == 1
    assert called == ["called_after"]
