"""A hook of mkdocs: generated pages, and links out of ``docs/``, which the site does not contain."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
from op_builder.catalog.index import markdown_table  # noqa: E402

LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(((?:\.\./)+[^)\s]+)\)")

IN_SOURCES_ONLY = re.compile(r"^In a checkout, `make docs` .*\n", re.MULTILINE)
HELP = re.compile(r"<!-- generated: help ([\w -]+) -->")
CELL, TEXT = re.compile(r"<td.*?</td>", re.DOTALL), re.compile(r"(?<=>)[^<]+")
BREAK = re.compile(r"(?<=[./(=])(?=\w{4})|(?<=\w{8}_)(?=\w{8})")  # where a line in a table may end
NARROW_BREAK = re.compile(r"(?<=\w{3}_)(?=\w{3})|(?<=\w)(?=Builder\b)")  # where it may end on a phone
BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:[mµn]?s|[KMGT]i?B)\b)")  # where it may not end
ROLE = re.compile(r":(?:class|func|meth|data|mod|attr|exc|obj):(<code>)~?")


def on_files(files: Files, config: Any) -> Files:
    """Add the page of benchmarks, whose source is ``benchmarks/RESULTS.md``."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").replace("](../docs/", "](")
    files.append(File.generated(config, "benchmarks.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in generated text; turn links to files of the repository into their paths."""
    if page.file.src_uri == "conformance.md":
        markdown = markdown.replace("<!-- generated: conformance checks -->", conformance_checks())
    if page.file.src_uri == "reference/ops.md":
        markdown = markdown.replace("<!-- generated: ops -->", markdown_table())
    markdown = IN_SOURCES_ONLY.sub("", markdown)
    markdown = HELP.sub(lambda command: command_help(command[1]), markdown)
    return LINK.sub(lambda link: repository_link(link, page.file.src_uri), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the roles of Sphinx, which docstrings contain and this site does not interpret; let long names wrap."""
    return CELL.sub(wrapping, ROLE.sub(r"\1", html))


def wrapping(cell: re.Match[str]) -> str:
    """A table's cell, in which long names may wrap, and a number stays beside its unit."""
    joined = TEXT.sub(lambda text: BEFORE_UNIT.sub("&nbsp;", text[0]), cell[0])
    return TEXT.sub(lambda text: NARROW_BREAK.sub('<wbr class="narrow">', BREAK.sub("<wbr>", text[0])), joined)


def repository_link(link: re.Match[str], page: str) -> str:
    """A link out of ``docs/`` as the path that it names; every other link unchanged."""
    text, target = link.groups()
    path = (ROOT / "docs" / page).parent.joinpath(target.partition("#")[0]).resolve()
    if path.is_relative_to(ROOT / "docs"):
        return link[0]
    if not path.exists():
        raise FileNotFoundError(f"docs/{page} links to {target}, which does not exist")
    name = path.relative_to(ROOT).as_posix()
    if name == "benchmarks/RESULTS.md":
        return f"[{text}]({'../' * page.count('/')}benchmarks.md)"
    return f"`{name}`" if name.endswith(text) else f"{text} (`{name}`)"


def command_help(command: str) -> str:
    """What ``accel-ops`` prints about a command."""
    words = [sys.executable, "-m", "op_builder", *command.split(), "--help"]
    environment = {**os.environ, "COLUMNS": "90", "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return f"```text\n{done.stdout}```"


def conformance_checks() -> str:
    """The table of the conformance suite's tests."""
    rows = ["| file | test | proves |", "|---|---|---|"]
    for file in sorted((ROOT / "accelerator" / "testing").glob("test_*.py")):
        for item in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(item, ast.FunctionDef) and item.name.startswith("test_"):
                rows.append(f"| `{file.name}` | `{item.name}` | {ast.get_docstring(item)} |")
    return "\n".join(rows)
