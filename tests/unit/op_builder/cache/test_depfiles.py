"""What a finished build read, from its depfiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from op_builder.cache.depfiles import read_headers
from op_builder.plan import Binding, BuildPlan, Language, Source


@pytest.mark.parametrize("flag", ['-DX=asm(".incbin \\"/x\\"")', '-DX=__has_embed("x")', '-DX=__has_include("x")'])
def test_a_flag_that_reads_a_file_is_an_input_that_no_tool_lists(tmp_path: Path, flag: str) -> None:
    for name, text in {"op.cpp": "", "op.d": f"op.o: {tmp_path}/op.cpp\n"}.items():
        (tmp_path / name).write_text(text)
    source = Source(tmp_path / "op.cpp", "op.cpp", Language.CXX)
    plan = BuildPlan("op", "op", Binding.C, (source,), (), (), (), ())
    headers = read_headers(plan, [tmp_path / "op.d"], [], [["/usr/include"]], flags=[flag])[0]
    assert [(each.root, each.path) for each in headers] == [("unlisted", flag)]


def test_the_texts_of_an_environment_inside_the_project_are_not_examined(tmp_path: Path) -> None:
    header = tmp_path / ".venv" / "include" / "torch.h"
    texts = {"op.cpp": "#include <torch.h>\n", ".venv/include/torch.h": "#if __has_include(NAMED_BY_A_MACRO)\n#endif\n"}
    header.parent.mkdir(parents=True)
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    depfile = tmp_path / "staging" / "op.d"
    depfile.parent.mkdir()
    depfile.write_text(f"op.o: {tmp_path}/op.cpp {header}\n")
    source = Source(tmp_path / "op.cpp", "op.cpp", Language.CXX)
    plan = BuildPlan("op", "op", Binding.C, (source,), (), (), (), ())

    def read(stamped: list[str]) -> list[tuple[str, str]]:
        return [(each.root, each.path) for each in read_headers(plan, [depfile], stamped, [[str(header.parent)]])[0]]

    assert read([str(header.parent)]) == []
    # A header of the project's own with such a look-up is an input that no tool lists.
    assert sorted(read([])) == [
        ("source0", ".venv/include/torch.h"),
        ("unlisted", "__has_include(NAMED_BY_A_MACRO in torch.h"),
    ]
