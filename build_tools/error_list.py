"""The messages and remedies of this project, read from its sources, for the page "Troubleshooting"."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("accelerator", "op_builder")
# A check that fails has these instead of an error class: load() and the report show them.
REJECTIONS = ("Rejection", "Failed")


class Entry(NamedTuple):
    """A message of an error class and what to do, in which "…" stands for what is known only when it is raised."""

    error: str
    message: str
    remedy: str


def error_classes() -> dict[str, str]:
    """The first line of the docstring of each error class, by its name."""
    bases = {"AccelError": "Base class of all."}
    definitions = [node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in range(4):  # a class may be defined before its base is known
        for node in definitions:
            if {base.id for base in node.bases if isinstance(base, ast.Name)} & bases.keys():
                bases[node.name] = (ast.get_docstring(node) or "").partition("\n")[0]
    return bases


@functools.cache
def entries() -> list[Entry]:
    """Each message with its remedy, once, sorted."""
    classes, trees = error_classes(), _trees()
    found = set()
    calls = [(node, tree) for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node, tree in calls:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in classes and name not in REJECTIONS:
            continue
        constants = _constants(tree)
        texts = [_text(argument, constants) for argument in node.args]
        texts += [_text(keyword.value, constants) for keyword in node.keywords if keyword.arg == "remedy"]
        if len(texts) >= 2:
            message, remedy = texts[-2:] if name in REJECTIONS else texts[:2]
            # What consists of parts that are known only later identifies nothing.
            if len(re.findall(r"[a-z]{2,}", message)) > 1 and re.search("[a-z]{2,}", remedy):
                found.add(Entry("" if name in REJECTIONS else name, message, remedy))
    return sorted(found)


def markdown() -> str:
    """A table for each error class that has messages, and one for checks."""
    classes, listed = error_classes(), entries()
    parts = []
    for name in dict.fromkeys(entry.error for entry in listed):
        title = f"## `{name}`\n\n{classes[name]}" if name else "## Checks of `load()` and the report"
        rows = [f"| {_cell(entry.message)} | {_cell(entry.remedy)} |" for entry in listed if entry.error == name]
        parts.append("\n".join([title, "", "| message | what to do |", "|---|---|", *rows]))
    return "\n\n".join(parts)


@functools.cache
def _trees() -> dict[str, ast.Module]:
    """The modules by their names."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in zip(names, files, strict=True)}


@functools.cache
def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """The texts that a module names or imports."""
    imported = {
        alias.name: _trees()[node.module]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in _trees()
        for alias in node.names
        if alias.name.isupper()
    }
    texts = {name: _constants(module)[name] for name, module in imported.items() if name in _constants(module)}
    return texts | {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.JoinedStr))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _text(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub("…+", "…", "".join(_text(value, constants) for value in node.values))
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], {})
    return "…"


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))
