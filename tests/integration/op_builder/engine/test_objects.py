"""Objects of earlier builds: an edit compiles what it concerns, and a failed build resumes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.engine.objects import Objects
from op_builder.errors import CompileError, LoadError
from tests.support.builds import built_by_command, cached_or_built, lookup
from tests.support.compilers import needs_gxx, program
from tests.support.small_ops import SmallBuilder, added, replace_content

FILES = ("one", "two", "three")


@pytest.fixture
def many(small: SmallBuilder) -> SmallBuilder:
    """An op of four files, of which two include a header of their own."""
    (small.directory / "include" / "shared.h").write_text("#define SHARED 1\n")
    for name in FILES:
        include = '#include "shared.h"\n' if name != "three" else ""
        (small.directory / f"{name}.cpp").write_text(f"{include}int {name}() {{ return 1; }}\n")
        small.files.append(f"{name}.cpp")
    return small


@pytest.fixture
def compiled(tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """A function that returns the files compiled since its last call, sorted."""
    log = tmp_path / "compiled.log"
    log.touch()
    note = f'case "$*" in *-MD*) for word; do case "$word" in *.cpp) echo "${{word##*/}}" >>{log} ;; esac; done ;; esac'
    compiler = program(tmp_path / "logging-g++", f'{note}\nexec g++ "$@"')

    def names() -> list[str]:
        found = sorted(log.read_text().split())
        log.write_text("")
        return found

    with env.scope(CXX=str(compiler)):
        yield names


def edit(builder: SmallBuilder, name: str, text: str) -> None:
    path = builder.directory / name
    replace_content(path, (path.read_text() + text).encode())


@needs_gxx
def test_an_edit_compiles_the_files_that_it_concerns_and_force_all(
    many: SmallBuilder, compiled: Callable[[], list[str]]
) -> None:
    many.load()
    assert compiled() == ["one.cpp", "small.cpp", "three.cpp", "two.cpp"]
    edit(many, "two.cpp", "int two_more() { return 2; }\n")
    many.load()
    assert compiled() == ["two.cpp"]
    edit(many, "include/shared.h", "// changed\n")
    many.load()
    assert compiled() == ["one.cpp", "two.cpp"]
    edit(many, "include/nested.h", "#undef NESTED\n#define NESTED 4.0f\n")
    assert added(many.load()) == 5.0
    assert compiled() == ["small.cpp"]
    many.flags.append("-DMORE")
    many.load()
    assert compiled() == ["one.cpp", "small.cpp", "three.cpp", "two.cpp"]
    many.link.append("-Wl,-O1")
    many.load()
    assert compiled() == []
    many.files.reverse()
    many.load()
    assert compiled() == []
    built_by_command([many], [many.name], force=True)
    assert len(compiled()) == 4


def test_an_entry_of_reused_objects_is_that_of_a_whole_build(many: SmallBuilder, tmp_path: Path) -> None:
    cached_or_built(many)
    edit(many, "two.cpp", "int two_more() { return 2; }\n")
    reused = cached_or_built(many)
    many.cache = Cache(tmp_path / "other")  # type: ignore[misc]
    whole = cached_or_built(many)
    assert reused.digest == whole.digest
    assert reused.manifest.sha256 == whole.manifest.sha256
    assert reused.manifest.headers == whole.manifest.headers


@needs_gxx
def test_a_failed_build_resumes(many: SmallBuilder, compiled: Callable[[], list[str]]) -> None:
    edit(many, "two.cpp", "wrong\n")
    with env.scope(ACCEL_MAX_JOBS="1"), pytest.raises(CompileError, match=r"two\.cpp"):
        many.load()
    before = compiled()
    (many.directory / "two.cpp").write_text("int two() { return 1; }\n")
    many.load()
    assert sorted([*before, *compiled()]) == ["one.cpp", "small.cpp", "three.cpp", "two.cpp", "two.cpp"]


def damage(paths: list[Path]) -> None:
    for number, path in enumerate(paths):
        content = path.read_bytes()
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
        path.write_bytes([b"", content[:middle], flipped, flipped][number])


def give_away(paths: list[Path]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files to other users")
    for path in paths:
        os.chown(path, 12345, -1)


@needs_gxx
@pytest.mark.parametrize(("spoil", "warning"), [(damage, ""), (give_away, r"objects/\S+ is owned by user 12345")])
def test_an_object_that_is_damaged_or_of_another_user_is_compiled_again(
    many: SmallBuilder,
    compiled: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[list[Path]], None],
    warning: str,
) -> None:
    many.load()
    compiled()
    spoil(sorted((many.cache.home / "objects").iterdir()))
    edit(many, "two.cpp", "int two_more() { return 2; }\n")
    assert added(many.load()) == 1.0
    assert len(compiled()) == 4
    assert re.search(warning, caplog.text)


@needs_gxx
def test_no_damage_of_an_object_ends_a_build(many: SmallBuilder, tmp_path: Path) -> None:
    many.load()
    plan, key, toolset = lookup(many).to_build()
    objects = Objects(many.cache, plan, toolset)
    (tmp_path / "staging").mkdir()
    assert len(objects.restore(key, tmp_path / "staging")) == 4
    path = min((many.cache.home / "objects").iterdir())
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 300)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        assert len(objects.restore(key, tmp_path / "staging")) >= 3


@needs_gxx
def test_a_binary_that_cannot_be_opened_costs_only_its_link_again(
    many: SmallBuilder, compiled: Callable[[], list[str]]
) -> None:
    edit(many, "two.cpp", "int missing(); int calls() { return missing(); }\n")
    with pytest.raises(LoadError, match="missing"):
        many.load()
    compiled()
    (many.directory / "four.cpp").write_text("int missing() { return 1; }\n")
    many.files.append("four.cpp")
    many.load()
    assert compiled() == ["four.cpp"]
