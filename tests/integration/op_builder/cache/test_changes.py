"""What can change the binary is a miss that names the difference; what cannot is a hit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from op_builder import env
from op_builder.cache.store import Cache
from op_builder.errors import AccelError
from op_builder.plan import Language, Source
from op_builder.toolchains.toolset import find_toolset
from tests.support.builds import compile_op, explained, find_cached, lookup
from tests.support.compilers import needs_gxx, program, require_program
from tests.support.foreign_package import python
from tests.support.small_ops import ENTRY, KernelBuilder, SmallBuilder, replace_content

MAIN = f"""
#include "nested.h"
#include "outer.h"
#include <platform.h>
#include <torch/headeronly/macros/Export.h>
#include "odd.h"
asm(".pushsection .rodata\\n.incbin \\"" TREE "/number\\"\\n.popsection");
#if __has_include("optional.h") || __has_include("looked_for.h")
#endif
int part();
int chosen();
int both() {{ return part() + chosen(); }}
{ENTRY}"""
# In bytes that are no UTF-8, with what make escapes.
ODD = os.fsdecode("two words$#:é".encode() + b"\xff")
FILES = {
    "op/main.cpp": MAIN,
    "op/part.cpp": "int part() { return 1; }\n",
    "op/chosen.cpp": "int chosen() { return 1; }\n",
    "op/kernel.cu": '#include "kernel.h"\n__global__ void kernel(int* x) { *x = KERNEL; }\n',
    "op/first/unread.h": "",
    "op/include/looked_for.h": "",
    "op/include/kernel.h": "#define KERNEL 1\n",
    "op/include/nested.h": "",
    "op/include/outer-1.h": "",
    "op/include/outer-2.h": "#define OUTER 2\n",
    "op/include/unread.h": "",
    f"op/{ODD}/odd.h": "",
    # Outside the op's own directories.
    "platform/platform.h": "",
    "another/platform.h": "#define PLATFORM 2\n",
    "empty/unread.h": "",
    "number": "1",
    "flags.rsp": "@{tree}/inner.rsp",
    "inner.rsp": "-DDEFINED=1",
    "symbols.map": "{};",
}


class ChangedBuilder(SmallBuilder):
    """An op with every kind of input; its files are in ``tree``."""

    def __init__(self, tree: Path, cache: Cache) -> None:
        super().__init__(tree / "op", cache)
        self.files = ["main.cpp", "part.cpp"]
        self.flags += [f'-DTREE="{tree}"', f"-I{tree}/empty", f"@{tree}/flags.rsp"]
        self.link = [f"-Wl,--version-script={tree}/symbols.map", f"-L{tree}", "-lchosen", f"{tree}/named.a"]

    def include_paths(self) -> list[str]:
        return [str(self.directory / name) for name in ("first", "include", ODD)]


def written(directory: Path) -> Path:
    """All files, and the tools: ``cxx`` is a script that runs a program of PATH."""
    for name, text in FILES.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text.replace("{tree}", str(directory)))
    (directory / "op" / "include" / "outer.h").symlink_to("outer-1.h")
    archives = "g++ -fPIC -c op/chosen.cpp -o chosen.o && ar rcs behind.a chosen.o && cp behind.a named.a"
    assert os.system(f"cd '{directory}' && {archives}") == 0
    (directory / "libchosen.so").write_text(f"INPUT({directory}/behind.a)\n")
    proper = directory / "cc1plus"
    proper.write_text("the compiler proper\n")
    answers = f'*-print-prog-name=cc1plus) echo "{proper}";; *--version) echo "g++ 98.0";;'
    program(directory / "behind-g++", f'case "$*" in {answers} *) exec {require_program("g++")} "$@";; esac')
    program(directory / "cxx", 'exec behind-g++ "$@"')
    return directory


def variables(tree: Path) -> dict[str, str]:
    path = f"{os.environ['PATH']}:{tree}"
    return {"PATH": path, "CXX": f"{tree}/cxx", "CPATH": f"{tree}/platform", "TORCH_CUDA_ARCH_LIST": "9.0"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files of the op, and a cache in which it is built."""
    place = tmp_path_factory.mktemp("changes")
    tree = written(place / "tree")
    with env.scope(**variables(tree)):
        compile_op(ChangedBuilder(tree, Cache(place / "cache")))
    shutil.copytree(tree, place / "as it was", symlinks=True)
    return place


@pytest.fixture
def builder(place: Path) -> Iterator[ChangedBuilder]:
    """The built op, whose files a test may change: they are restored, with other inodes and times."""
    with env.scope(**variables(place / "tree")):
        yield ChangedBuilder(place / "tree", Cache(place / "cache"))
    shutil.rmtree(place / "tree")
    shutil.copytree(place / "as it was", place / "tree", symlinks=True, copy_function=shutil.copy)


def misses(builder: SmallBuilder) -> list[str] | None:
    """The differences from the nearest entry; None if the op is in the cache."""
    builder.cache = Cache(builder.cache.root)  # type: ignore[misc]
    miss = explained(builder)["miss"]
    assert miss is None or miss["nearest"]
    return None if miss is None else miss["differences"]


FILE_CHANGES = {
    "op/part.cpp": "part.cpp changed",
    "op/include/nested.h": "nested.h changed",
    f"op/{ODD}/odd.h": "odd.h changed",
    "another.cpp": "another.cpp is new",
    # Headers that come before others of their name, or that __has_include looked for.
    "empty/outer.h": "outer.h is new",
    "op/outer.h": "outer.h is new",
    "op/first/optional.h": "optional.h is new",
    "op/include/looked_for.h": "looked_for.h changed",
    # Inputs that no depfile of a compiler lists.
    "flags.rsp": "c++ flags: -'-DDEFINED=1', +'2'",
    "inner.rsp": "c++ flags: -'-DDEFINED=1', +'2'",
    "symbols.map": "symbols.map:",
    "number": "number changed",
    "libchosen.so": "system headers changed",
    "behind.a": "system headers changed",
    "named.a": "named.a:",
}


@needs_gxx
@pytest.mark.parametrize("name", FILE_CHANGES)
def test_a_changed_or_new_file_is_a_miss_that_names_it(builder: ChangedBuilder, name: str) -> None:
    assert misses(builder) is None
    replace_content(builder.directory.parent / name, b"2")
    if name == "another.cpp":
        builder.files.append("../another.cpp")
    differences = misses(builder) or []
    assert FILE_CHANGES[name] in differences[0]
    assert len(differences) == 1 + (name in ("named.a", "symbols.map")), "the linker lists it, too"


@needs_gxx
@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        ("--include-directory={}/a -I{}/b", {}),
        ("-isystem {}/b", {"CPATH": "{}/a"}),
        ("-idirafter {}/b", {"CPLUS_INCLUDE_PATH": "{}/a"}),
        ("-iprefix {}/ -iwithprefixbefore a -isystem{}/b", {}),
        ("", {"CPATH": "{}/a:{}/b"}),
    ],
)
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_new_header_in_an_earlier_directory_counts(
    small: SmallBuilder, tmp_path: Path, flags: str, variables: dict[str, str], is_missing: bool
) -> None:
    for name in ("b", "c") if is_missing else ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "found.h").touch()
    (small.directory / "small.cpp").write_text(f"#include <stdlib.h>\n#include <found.h>\n{ENTRY}")
    small.flags += [*flags.replace("{}", str(tmp_path)).split(), "-idirafter", f"{tmp_path}/c"]
    with env.scope(**{name: value.replace("{}", str(tmp_path)) for name, value in variables.items()}):
        compile_op(small)
        (tmp_path / "c" / "found.h").touch()
        assert find_cached(small) is not None, "a later directory does not count"
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / "found.h").touch()
        assert misses(small) == [f"../a{'' if is_missing else '/found.h'} is new"]


@needs_gxx
@pytest.mark.parametrize(
    ("text", "is_listed"),
    [
        ('#if defined(__has_include) && __has_include("asked.h")', True),
        ("/* don't */ // \"\n%:if __has_include/**/(\\\n<asked.h>)", True),
        ("#if __has_include_next(<asked.h>)", True),
        ('#include "nested/by_macro.h"\n#if 1', True),
        ('const char *raw = R"(a"b /* c)";\n#if __has_include("asked.h") // */', True),
        ("#if __has_include(<.//asked.h>)", True),
        ('// __has_include\n#if __has_include("asked.h")', True),
        ('#define LOOKS __has_include\n#if LOOKS("asked.h")', False),
        ('#define IS_THERE __has_include("asked.h")\n#if IS_THERE', False),
        ("#if IN_A_FLAG", False),
    ],
)
def test_a_file_that_was_looked_for_in_vain_counts(small: SmallBuilder, text: str, is_listed: bool) -> None:
    (small.directory / "small.cpp").write_text(f"{text}\n#endif\n{ENTRY}")
    for name, content in {"nested/by_macro.h": "#include NESTED\n", "asked_for.h": ""}.items():
        place = small.directory / "include" / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(content)
    small.flags += ['-DNESTED="asked_for.h"']
    small.flags += ["-DIN_A_FLAG=__has_include(<asked.h>)"] if "IN_A_FLAG" in text else []
    entry = compile_op(small)
    assert bool(entry.manifest.key.unlisted) is not is_listed
    assert misses(small) is None
    new = "nested/asked_for.h" if "by_macro" in text else "asked.h"
    (small.directory / "include" / new).touch()
    assert not is_listed or misses(small) == [f"{new} is new"]


@pytest.fixture
def system_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A header, to be written, of what the machine has installed; ``#include <system.h>`` finds it."""
    monkeypatch.setattr("op_builder.cache.key._own_prefix", lambda: str(tmp_path))
    monkeypatch.setattr("op_builder.cache.key._shared_directories", lambda: {str(tmp_path)})
    (tmp_path / "system").mkdir()
    with env.scope(CPATH=str(tmp_path / "system")):
        yield tmp_path / "system" / "system.h"


@needs_gxx
def test_a_file_that_a_header_of_the_system_looked_for_counts(small: SmallBuilder, system_header: Path) -> None:
    system_header.write_text('#if __has_include("asked.h")\n#endif')
    (small.directory / "small.cpp").write_text(f"#include <system.h>\n{ENTRY}")
    entry = compile_op(small)
    assert str(system_header) in entry.manifest.key.system.paths
    assert misses(small) is None
    (small.directory / "include" / "asked.h").touch()
    assert misses(small) == ["asked.h is new"]


@needs_gxx
def test_a_macro_of_a_systems_header_looks_next_to_its_user(small: SmallBuilder, system_header: Path) -> None:
    system_header.write_text('#define IS_THERE __has_include("asked.h")\n')
    (small.directory / "small.cpp").write_text(f"#include <system.h>\n#if IS_THERE\n#endif\n{ENTRY}")
    assert compile_op(small).manifest.key.unlisted == ["__has_include in a macro of system.h"]


@needs_gxx
def test_a_new_precompiled_header_of_clang_counts(small: SmallBuilder, tmp_path: Path) -> None:
    (tmp_path / "forced.h").touch()
    small.flags += ["-include", f"{tmp_path}/forced.h"]
    with env.scope(CXX=require_program("clang++")):
        compile_op(small)
        assert misses(small) is None
        (tmp_path / "forced.h.pch").touch()
        assert misses(small) == ["../forced.h.pch is new"]


@needs_gxx
def test_a_new_header_that_precedes_one_of_the_system_counts(small: SmallBuilder) -> None:
    (small.directory / "small.cpp").write_text(f"#include <stdlib.h>\n#include <vector>\n{ENTRY}")
    compile_op(small)
    for name in ("stdlib.h", "vector"):
        (small.directory / "include" / name).touch()
        assert misses(small) == [f"{name} is new"]
        (small.directory / "include" / name).unlink()
    assert misses(small) is None


@needs_gxx
@pytest.mark.parametrize(
    ("flags", "variables", "new"),
    [
        ("-lfoo", {"LIBRARY_PATH": "{}/a:{}/b"}, "a/libfoo.a"),
        ("--library-directory={}/a -L{}/b -lfoo", {}, "a/libfoo.so"),
        ("-Wl,-L,{}/a -Wl,-L{}/b -Wl,-lfoo", {}, "a/libfoo.a"),
        ("-L{}/b -lfoo", {}, "b/libfoo.so"),
        ("--sysroot={} -L{}/b -lfoo", {}, "lib/libfoo.a"),
    ],
)
def test_a_new_library_that_the_linker_may_take_counts(
    small: SmallBuilder, tmp_path: Path, flags: str, variables: dict[str, str], new: str
) -> None:
    for name in ("a", "b", "lib"):
        (tmp_path / name).mkdir()
    if "sysroot" in flags:
        for place in ("lib64", "usr", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"):
            (tmp_path / place).symlink_to(f"/{place}")
    archive = "echo 'int foo() { return 1; }' >f.cpp && g++ -fPIC -c f.cpp -o f.o && ar rcs b/libfoo.a f.o"
    assert os.system(f"cd '{tmp_path}' && {archive}") == 0
    (small.directory / "small.cpp").write_text(f"int foo();\nint bar() {{ return foo(); }}\n{ENTRY}")
    small.link = flags.replace("{}", str(tmp_path)).split()
    with env.scope(**{name: value.replace("{}", str(tmp_path)) for name, value in variables.items()}):
        compile_op(small)
        (tmp_path / "b" / "libother.so").touch()
        assert misses(small) is None
        shutil.copy(tmp_path / "b" / "libfoo.a", tmp_path / new)
        assert f"../{new} is new" in (misses(small) or [])


def shared(directory: Path, name: str = "libfoo.so.1", version: str = "") -> None:
    """Make ``libfoo.so``, with the SONAME ``name``, and a version of its symbols."""
    (directory / "foo.c").write_text("int foo() { return 1; }\n")
    (directory / "foo.map").write_text(version and f"{version} {{ global: *; }};")
    flags = f"-Wl,-soname,{name}" + (" -Wl,--version-script=foo.map" if version else "")
    assert (
        os.system(f"cd '{directory}' && g++ -x c -shared -fPIC foo.c -o libfoo.so {flags} && cp libfoo.so {name}") == 0
    )


@needs_gxx
@pytest.mark.parametrize("change", [{"name": "libfoo.so.2"}, {"version": "FOO_1"}])
@pytest.mark.parametrize(
    ("flags", "variables"), [("-L{} -lfoo", {}), ("{}/libfoo.so", {}), ("-lfoo", {"LIBRARY_PATH": "{}"})]
)
def test_a_linked_library_with_other_names_counts(
    small: SmallBuilder, tmp_path: Path, change: dict[str, str], flags: str, variables: dict[str, str]
) -> None:
    shared(tmp_path)
    (small.directory / "small.cpp").write_text(f'extern "C" int foo();\nint bar() {{ return foo(); }}\n{ENTRY}')
    small.link = [f"-Wl,-rpath,{tmp_path}", *flags.replace("{}", str(tmp_path)).split()]
    with env.scope(**{name: value.replace("{}", str(tmp_path)) for name, value in variables.items()}):
        compile_op(small)
        assert misses(small) is None
        shared(tmp_path, **change)
        (difference,) = misses(small) or [""]
        assert "libfoo.so changed" in difference or "system headers changed" in difference


@needs_gxx
def test_a_new_library_in_one_of_the_linkers_own_directories_counts(small: SmallBuilder, tmp_path: Path) -> None:
    for name in ("own", "named"):
        (tmp_path / name).mkdir()
    shared(tmp_path / "named")
    gxx = require_program("g++")
    answers = f'*-print-search-dirs) echo "libraries: =/usr/lib:{tmp_path}/own"; exit;;'
    compiler = program(tmp_path / "g++", f'case "$*" in {answers} esac\nexec {gxx} "$@"')
    small.link = [f"-L{tmp_path}/named", "-lfoo", f"-Wl,-rpath,{tmp_path}/named"]
    with env.scope(CXX=str(compiler)):
        compile_op(small)
        assert misses(small) is None
        shared(tmp_path / "own")
        assert misses(small) == ["libfoo.so is new"] or "own/libfoo.so is new" in (misses(small) or [""])[0]


def removed_header(builder: SmallBuilder) -> None:
    (builder.directory / "include" / "nested.h").unlink()


def switched_link(builder: SmallBuilder) -> None:
    (builder.directory / "include" / "outer.h").unlink()
    (builder.directory / "include" / "outer.h").symlink_to("outer-2.h")


def flag_of_a_source(builder: SmallBuilder) -> None:
    builder.source_args = lambda source: ["-O1"] * ("main" in source)  # type: ignore[method-assign]


def other_order(builder: SmallBuilder) -> None:
    builder.files.reverse()


def upgrade_behind_the_wrapper(builder: SmallBuilder) -> None:
    tool = builder.directory.parent / "behind-g++"
    replace_content(tool, tool.read_bytes().replace(b"98.0", b"99.0"))
    tool.chmod(0o755)
    replace_content(tool.with_name("cc1plus"), b"the compiler proper, upgraded\n")


@needs_gxx
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (removed_header, "nested.h was removed"),
        (switched_link, "outer.h changed"),
        (lambda builder: builder.flags.append("-DMORE=1"), r"c\+\+ flags: \+'-DMORE=1'"),
        (flag_of_a_source, r"flags of main.cpp: \+'-O1'"),
        (other_order, "the order of the sources changed"),
        (upgrade_behind_the_wrapper, r"c\+\+ compiler: .*g\+\+ 98\.0 .* -> .*g\+\+ 99\.0 .*"),
    ],
)
def test_another_difference_is_named(
    builder: ChangedBuilder, change: Callable[[SmallBuilder], object], line: str
) -> None:
    assert misses(builder) is None
    change(builder)
    (difference,) = misses(builder) or [""]
    assert re.fullmatch(line, difference)


def key(small: SmallBuilder, **variables: str) -> str:
    with env.scope(**variables):
        return lookup(small).planned.key.digest


@needs_gxx
def test_variables_of_the_compiler_count(builder: ChangedBuilder, place: Path) -> None:
    with env.scope(CXX=f"{place}/tree/cxx -DDEFINED=2"):
        assert misses(builder) == ["flags in CXX: none -> -DDEFINED=2"]
    directories = ("CPATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "OBJCPLUS_INCLUDE_PATH")
    values = dict.fromkeys(directories, f"{place}/tree/another") | {
        "SOURCE_DATE_EPOCH": "1"
    }  # of __DATE__ and __TIME__
    for name, value in values.items():
        with env.scope(**{name: value}):
            assert "compiler variables: " in (misses(builder) or [""])[0]


@needs_gxx
@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ('exec {gxx} "$@" $NIX_CFLAGS_COMPILE', "NIX_CFLAGS_COMPILE"),
        ('exec {gxx} "$@" ${{my_flags}}', "my_flags"),
        ('. "{inner}"\nexec {gxx} "$@"', "INNER_FLAGS"),
        ('exec inner "$@"', "INNER_FLAGS"),
        ('exec {gxx} "$@"', "OMPI_CXXFLAGS"),
        ('inner "$@"', "INNER_FLAGS"),
        ('exec {gxx} "$@" $(printenv my_flags)', "my_flags"),
        ('NAME=my_flags; exec {gxx} "$@" ${{!NAME}}', "my_flags"),
        ('exec {gxx} "$@" ${{!NAME}}', "NAMED"),
        ("eval exec {gxx} '\"$@\"' \\$MY_FLAGS_$LANGUAGE", "MY_FLAGS_CXX"),
        ("exec python3 -c \"import os, sys; f = os.getenv('X'); os.execv('{gxx}', sys.argv)\" \"$@\"", "X"),
        ('. "$(dirname "$0")/flags.sh"\nexec {gxx} "$@"', "SOURCED_FLAGS"),
        ('. {inner}.sh\nexec {gxx} "$@"', "SOURCED_FLAGS"),
        ('# perl: $ENV{{perl_flags}}\nexec {gxx} "$@"', "perl_flags"),
        ("# long" * 20_000 + '\nexec {gxx} "$@" $MY_FLAGS', "MY_FLAGS"),
        ('exec {gxx} "$@" $MY_FLAGS\nexit\n\0payload', "MY_FLAGS"),
    ],
)
def test_variables_of_a_wrapper_count(small: SmallBuilder, tmp_path: Path, text: str, variable: str) -> None:
    gxx = require_program("g++")
    inner = program(tmp_path / "inner", f'set -- "$@" $INNER_FLAGS\nexec {gxx} "$@"')
    for place in ("inner.sh", "bin/flags.sh"):
        program(tmp_path / place, 'set -- "$@" $SOURCED_FLAGS')
    compiler = program(tmp_path / "bin" / "g++", text.format(gxx=gxx, inner=inner))
    compiler.write_text(compiler.read_text().replace("#!/bin/sh", f"#!{require_program('bash')}"))
    same = {"CXX": str(compiler), "PATH": f"{tmp_path}:{os.environ['PATH']}", "NAME": "NAMED"}
    first, second = (key(small, **{**same, "TERM": value, variable: value}) for value in ("-DVAL=1", "-DVAL=2"))
    assert first != second


@needs_gxx
@pytest.mark.parametrize(
    "names",
    [
        *(
            "SDKROOT MACOSX_DEPLOYMENT_TARGET DEVELOPER_DIR TOOLCHAINS",
            "SPACK_TARGET_ARGS SPACK_CXX",
            "CRAYPE_LINK_TYPE",
        ),
        "NIX_CFLAGS_COMPILE NIX_CXXSTDLIB_COMPILE NIX_LDFLAGS_BEFORE NIX_HARDENING_ENABLE NIX_ENFORCE_NO_NATIVE",
        "OMPI_CC OMPI_CXX OMPI_CFLAGS OMPI_CPPFLAGS OMPI_CXXFLAGS OMPI_LDFLAGS OMPI_LIBS OPAL_PREFIX",
        "MPICH_CC MPICH_CXX I_MPI_CC I_MPI_CXX I_MPI_COMPILER_CONFIG_DIR",
        "CCACHE_BASEDIR CCACHE_CC CCACHE_COMPILER CCACHE_CONFIGPATH CCACHE_IGNOREOPTIONS CCACHE_PATH CCACHE_PREFIX",
        "CCACHE_SLOPPINESS CCC_OVERRIDE_OPTIONS CLANG_NO_DEFAULT_CONFIG ICPXCFG LDEMULATION GNUTARGET LD_RUN_PATH",
    ],
)
def test_variables_of_wrappers_and_linkers_that_are_no_scripts_count(small: SmallBuilder, names: str) -> None:
    keys = {key(small)}
    for name in names.split():
        keys |= {key(small, **{name: value}) for value in ("1", "2")}
    assert len(keys) == 1 + 2 * len(names.split())
    assert key(small, OMPI_COMM_WORLD_RANK="1", CCACHE_DIR="/x") in keys, "these change no output"


@needs_gxx
@pytest.mark.parametrize("text", ['-march=native "$@"', '"$@" $WRAPPED_FLAGS'])
def test_the_cpu_counts_where_a_wrapper_compiles_for_it(small: SmallBuilder, tmp_path: Path, text: str) -> None:
    compiler = program(tmp_path / "wrapper", f"exec {require_program('g++')} {text}")
    with env.scope(CXX=str(compiler), WRAPPED_FLAGS="-march=native"):
        assert "cpu" in lookup(small).planned.key.parts
    assert "cpu" not in lookup(small).planned.key.parts


@needs_gxx
@pytest.mark.parametrize("name", ["as", "ld"])
def test_binutils_that_path_selects_count(small: SmallBuilder, tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}:{os.environ['PATH']}"
    keys = {key(small, PATH=path)}
    for value in ("1", "2"):
        program(tmp_path / name, f'exec {require_program(name)} "$@"  # {value}')
        keys.add(key(small, PATH=path))
    assert len(keys) == 3


@needs_gxx
@pytest.mark.parametrize(
    ("name", "compile_flags", "link_flags", "variables"),
    [
        ("ld.gold", "", "-fuse-ld=gold", {"PATH": "{}:$PATH"}),
        ("ld.gold", "", "-fuse-ld=gold -B{}", {}),
        ("ld", "", "-B {}/", {}),
        ("collect2", "", "-B{}", {}),
        ("as", "-B {}", "", {}),
        ("specs", "-B{}", "", {}),
        ("ld", "", "", {"COMPILER_PATH": "{}"}),
        ("ld.gold", "", "-fuse-ld=gold", {"COMPILER_PATH": "{}"}),
        ("timed", "-wrapper timed,-v", "", {"PATH": "{}:$PATH"}),
        ("as", "", "-fuse-ld=gold", {"CXX": "g++ -B{}"}),
    ],
)
def test_programs_that_flags_or_variables_select_count(
    small: SmallBuilder, tmp_path: Path, name: str, compile_flags: str, link_flags: str, variables: dict[str, str]
) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    small.flags += compile_flags.replace("{}", str(place)).split()
    small.link = link_flags.replace("{}", str(place)).split()
    path = os.environ["PATH"]
    values = {each: value.replace("{}", str(place)).replace("$PATH", path) for each, value in variables.items()}
    key(small)  # remembers the compiler without the variables
    keys = {key(small, **values)}
    for text in ("1", "2", "$TIMED_FLAGS"):
        program(place / name, f"exec {name} {text}")
        keys.add(key(small, **values))
    assert len(keys) == 4
    assert name == "specs" or key(small, **values, TIMED_FLAGS="3") not in keys, "variables of a script"


@needs_gxx
def test_programs_that_flags_of_one_source_select_count(small: SmallBuilder, tmp_path: Path) -> None:
    """Of two sources with prefixes of their own, both count."""
    (small.directory / "other.cpp").touch()
    prefixes = {name: tmp_path / f"{name}-" for name in ("small", "other")}

    def digest() -> str:
        plan = small.plan()
        (source,) = plan.sources
        other = source._replace(path=small.directory / "other.cpp")
        sources = (
            source._replace(flags=(f"-B{prefixes['small']}",)),
            other._replace(flags=(f"-B{prefixes['other']}",)),
        )
        return find_toolset(plan._replace(sources=sources), small.cache.memo).cxx.digest

    digests = set()
    for number, prefix in enumerate(prefixes.values()):
        program(Path(f"{prefix}as"), f'exec as "$@"  # {number}')
        digests.add(digest())
    program(Path(f"{prefixes['other']}as"), 'exec as "$@"  # 3')
    digests.add(digest())
    assert len(digests) == 3


@needs_gxx
def test_programs_that_variables_of_nvcc_select_count(small: SmallBuilder, tmp_path: Path) -> None:
    require_program("nvcc")
    source = Source(small.directory / "kernel.cu", "kernel.cu", Language.CUDA)
    plan = small.plan()._replace(sources=(source,))
    digests = set()
    with env.scope(NVCC_APPEND_FLAGS=f"-Xcompiler -B{tmp_path}"):
        for number in range(2):
            program(tmp_path / "as", f'exec as "$@"  # {number}')
            digests.add(find_toolset(plan, small.cache.memo).cxx.digest)
    assert len(digests) == 2


INCLUDES_OR_READS = [
    '. "$(dirname "$0")/data.sh"\nexec {gxx} "$@"',
    '. {data}\nexec {gxx} "$@"',
    'here=${{0%/*}}\nsource "$here/../bin/data.sh"\nexec {gxx} "$@"',
    '# import data\nexec {gxx} "$@"',
    'exec {gxx} "$@" $(cat {data})',
    'exec {gxx} "$@" @{data}',
    'DATA=${{CONF}}/data.sh\nexec {gxx} "$@" $(cat "$DATA")',
    '. "$CONF/data.sh"\nexec {gxx} "$@"',
    'here=$(dirname "$0")\nread FLAGS <"$here/data.sh"\nexec {gxx} "$@" $FLAGS',
    'here="$(cd "$(dirname "$0")" && pwd)"\nread FLAGS <"$here/data.sh"\nexec {gxx} "$@" $FLAGS',
    'read FLAGS <~/data.sh\nexec {gxx} "$@" $FLAGS',
    '# import package.data\nexec {gxx} "$@"',
    "exec python3 -c \"import os, sys; os.execv('{gxx}', [*sys.argv, open('{data}').read()])\" \"$@\"",
]


@needs_gxx
@pytest.mark.parametrize(
    ("text", "before"),
    [
        *((text, "-DVAL=1") for text in INCLUDES_OR_READS),
        *((text, None) for text in INCLUDES_OR_READS if "cat" in text),
    ],
)
def test_a_file_that_a_wrapper_includes_or_reads_counts(
    small: SmallBuilder, tmp_path: Path, text: str, before: str | None
) -> None:
    directory = tmp_path / "bin"
    place = tmp_path / "data" if any(word in text for word in ("{data}", "CONF", "~")) else directory
    data = place / ("package/data.py" if "package" in text else "data.py" if text.startswith("# import") else "data.sh")
    data.parent.mkdir(parents=True, exist_ok=True)
    compiler = program(directory / "wrapper", text.format(gxx=require_program("g++"), data=data))
    keys = set()
    for value in (before, "-DVAL=22"):
        if value is not None:
            data.write_text(value)
        keys.add(key(small, CXX=str(compiler), CONF=str(place), HOME=str(place)))
    assert len(keys) == 2


@needs_gxx
@pytest.mark.parametrize(
    "line",
    [
        'echo "$@" >> {log}',
        'echo "$@" 2>{log} >&2',
        'LOG={log}\necho "$@" | tee -a "$LOG" >/dev/null',
        "python3 -c \"open('{log}', 'a').write('x')\"",
        "python3 -c \"import logging; logging.FileHandler(filename='{log}').stream.write('x')\"",
        "case \"$*\" in *-c*) python3 -c \"import os; os.truncate('{log}', os.path.getsize('{log}') + 1)\";; esac",
        'case "$*" in *-shared*) echo "$@" >> {log};; esac',
        'case "$*" in *small.cpp*) echo "$@" >> {log};; esac',
    ],
)
def test_a_file_that_a_wrapper_writes_does_not_count(small: SmallBuilder, tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.touch()
    compiler = program(tmp_path / "wrapper", f'{line.format(log=log)}\nexec {require_program("g++")} "$@"')
    with env.scope(CXX=str(compiler)):
        compile_op(small)
        assert log.stat().st_size > 0 or "2>" in line
        assert misses(small) is None


IDENTITY = """
import sys
from op_builder.system.records import Memo
from op_builder.toolchains.toolset import identify
print(identify((sys.argv[1],), Memo()).digest)
"""


@needs_gxx
def test_the_identity_of_a_wrapper_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    own = '"$(dirname "$0")/first" "$(dirname "$0")/second"'
    wrapper = program(tmp_path / "real" / "wrapper", f'tools={own}\nexec {require_program("g++")} "$@"')
    for directory in ("real", "linked"):
        for name in ("first", "second"):
            program(tmp_path / directory / name, f"# {directory}")
    linked = tmp_path / "linked" / "wrapper"
    linked.symlink_to(wrapper)
    found = {python("-c", IDENTITY, linked, PYTHONHASHSEED=str(seed)).stdout for seed in range(6)}
    assert len(found) == 1


@needs_gxx
def test_a_compiler_that_path_selects_for_a_wrapper_counts(small: SmallBuilder, tmp_path: Path) -> None:
    compiler = program(tmp_path / "wrapper", 'exec_now=selected\n$exec_now "$@"')
    keys = set()
    for value in ("1", "2"):
        program(tmp_path / value / "selected", f'exec {require_program("g++")} "$@" -DVAL={value}')
        keys.add(key(small, CXX=str(compiler), PATH=f"{tmp_path / value}:{os.environ['PATH']}"))
    assert len(keys) == 2


@needs_gxx
@pytest.mark.parametrize("text", ['exec {} "$@" -MMD', 'exec {} -MMD "$@"'])
def test_a_wrapper_that_hides_headers_is_refused(
    small: SmallBuilder, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = program(tmp_path / "bin" / "g++", text.format(require_program("g++")))
    monkeypatch.chdir(tmp_path)
    with env.scope(CXX=str(compiler)), pytest.raises(AccelError, match="list of headers"):
        small.load()
    assert not list(tmp_path.glob("*.d"))


@needs_gxx
def test_variables_that_cxx_sets_count(small: SmallBuilder, tmp_path: Path) -> None:
    assert key(small, CXX=f"env CPATH={tmp_path}/1 g++") != key(small, CXX=f"env CPATH={tmp_path}/2 g++")


@needs_gxx
def test_a_compiler_replaced_in_place_counts(small: SmallBuilder, tmp_path: Path) -> None:
    gxx = require_program("g++")
    keys = set()
    for value in ("1", "2"):  # the same version, path, target, size and time
        compiler = program(tmp_path / "bin" / "g++", f'exec {gxx} "$@" -DVAL={value}')
        os.utime(compiler, (1, 1))
        keys.add(key(small, CXX=str(compiler)))
    assert len(keys) == 2


@needs_gxx
def test_a_build_logs_what_changed(small: SmallBuilder, caplog: pytest.LogCaptureFixture) -> None:
    compile_op(small)
    small.flags.append("-DCHANGED")
    with caplog.at_level("INFO", logger="op_builder"):
        compile_op(small)
    assert any("-DCHANGED" in record.message for record in caplog.records)


@needs_gxx
def test_what_cannot_change_the_binary_is_a_hit(builder: ChangedBuilder, place: Path) -> None:
    for name in ("op/include/unread.h", "op/first/unread.h", "empty/unread.h"):
        (place / "tree" / name).write_text("#define UNREAD 2\n")
    others = {"LANG": "de_DE.UTF-8", "LC_ALL": "C.UTF-8", "MAX_JOBS": "3", "ACCEL_COMPILE_TIMEOUT_S": "600"}
    with env.scope(**others):
        assert misses(builder) is None


def test_an_empty_cache_has_no_nearest_entry(small: SmallBuilder) -> None:
    assert explained(small)["miss"] == {"nearest": None, "differences": []}


@pytest.mark.slow
def test_a_kernels_header_and_what_nvcc_is_given_count(tmp_path: Path) -> None:
    nvcc = require_program("nvcc")
    tree = written(tmp_path / "tree")
    builder = KernelBuilder(tree / "op", Cache(tmp_path / "cache"))
    builder.files = ["kernel.cu"]
    answers = 'case "$1" in --version) echo "Cuda compilation tools, release 13.9, V13.9.9"; exit 0;; esac'
    program(tmp_path / "newer" / "nvcc", f'{answers}\nexec {nvcc} "$@"')

    def line(**changes: str) -> Any:
        with env.scope(**{**variables(tree), **changes}):
            return misses(builder)

    with env.scope(**variables(tree)):
        compile_op(builder)
    assert line() is None
    assert "cuda archs: 9.0 -> 8.0" in line(TORCH_CUDA_ARCH_LIST="8.0")
    assert line(NVCC_APPEND_FLAGS="-lineinfo")[0].startswith("compiler variables: ")
    assert "V13.9.9" in line(PATH=f"{tmp_path / 'newer'}:{os.environ['PATH']}:{tree}")[0]
    replace_content(tree / "op/include/kernel.h", b"#define KERNEL 2\n")
    assert line() == ["kernel.h changed"]
