"""``accel-ops doctor FILE``: it agrees with the loader."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from op_builder import env
from op_builder.cache.manifest import MANIFEST
from op_builder.cache.store import Cache
from op_builder.report import doctor
from tests.support.compilers import needs_gxx, shared_library
from tests.support.foreign_package import ROOT, output_of
from tests.support.small_ops import make_small

TORCH_LIBRARIES = Path(torch.__file__).parent / "lib"
WITH_TORCH = (f"-L{TORCH_LIBRARIES}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10")
IN_LIBTORCH_PYTHON = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
# A file: its name, its source, what the linker gets, and the words that explain why it does not load here.
FILES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "plain.so": ("int f() { return 1; }", (), ""),
    "stable.so": ('extern "C" void torch_call_dispatcher(); void f() { torch_call_dispatcher(); }', WITH_TORCH, ""),
    "unlinked.so": ('extern "C" void torch_call_dispatcher(); void f() { torch_call_dispatcher(); }', (), "DT_NEEDED"),
    "wrong.so": (f'void g() __asm__("{IN_LIBTORCH_PYTHON}"); void f() {{ g(); }}', WITH_TORCH, "DT_NEEDED"),
    "newer.so": (
        'extern "C" void torch_of_tomorrow(); void f() { torch_of_tomorrow(); }',
        WITH_TORCH,
        "torch_of_tomor",
    ),
    "acme.so": ("void acme(); void f() { acme(); }", (), "acme()"),
    "old_abi.so": ('void f() __asm__("_ZN3c103fooERKSs"); void g() { f(); }', WITH_TORCH, "_GLIBCXX_USE_CXX11_ABI=0"),
    "weak.so": ("__attribute__((weak)) void acme(); void f() { if (acme) acme(); }", (), ""),
    "level.so": ("int f() { return 1; }", ("-Wl,-z,x86-64-v4",), "x86-64-v4"),
    "libnear.so": ("void near_by() {}", (), ""),
    "near.so": ("void near_by(); void f() { near_by(); }", ("-L{}", "-l:libnear.so"), "libnear.so: not found"),
    "origin.so": ("void near_by(); void f() { near_by(); }", ("-L{}", "-l:libnear.so", "-Wl,-rpath,$ORIGIN"), ""),
    "python.so": ('extern "C" void* PyList_New(long); void* f() { return PyList_New(0); }', (), ""),
    "by_path.so": ("void near_by(); void f() { near_by(); }", ("{}/libnear.so",), ""),
    "lost.so": ("void near_by(); void f() { near_by(); }", ("{}/libgone.so",), "libgone.so: not found"),
    "relr.so": (
        'static int x; int* y = &x; extern "C" int puts(char*); void f() { puts(nullptr); }',
        ("-Wl,-z,pack-relative-relocs",),
        "",
    ),
    "stack.so": ("int f() { return 1; }", ("-Wl,-z,execstack",), "up to 2.40"),
    "object.so": ("int f() { return 1; }", ("-c",), "it is an object file"),
    "program.so": ("int main() {}", ("-no-pie",), "it is a program"),
    "pie.so": ("int main() {}", ("-pie",), "it is a program"),
    "closed.so": ("int f() { return 1; }", ("-Wl,-z,nodlopen",), "nodlopen"),
    "newer_version.so": (
        "void near_by(); void f() { near_by(); }",
        ("-L{}/versions", "-lversioned", "-Wl,-rpath,$ORIGIN/versions"),
        "libversioned.so has no version NEW",
    ),
    "filter.so": ("int f() { return 1; }", ("-Wl,-F,libgone.so",), "libgone.so: not found"),
    "m.cpython-39-x86_64-linux-gnu.so": ('extern "C" void* PyInit_m() { return 0; }', (), "this Python is"),
}


def compiled(place: Path, name: str, source: str, link: tuple[str, ...] = ()) -> Path:
    return shared_library(place / name, source, *(flag.format(place) for flag in link))


@needs_gxx
def test_it_agrees_with_the_loader_also_without_section_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(compiled(tmp_path, "libnear.so", *FILES["libnear.so"][:2]), "libgone.so")
    (tmp_path / "versions").mkdir()
    for version in ("NEW", "OLD"):  # newer_version.so is linked with the first, and finds the second
        (tmp_path / "script").write_text(f"{version} {{ global: *; }};")
        versioned = ("-Wl,--version-script={}/script", "-Wl,-soname,libversioned.so")
        compiled(tmp_path, "versions/libversioned.so", FILES["libnear.so"][0], versioned)
        for name, (source, link, _) in FILES.items() if version == "NEW" else ():
            compiled(tmp_path, name, source, link)
    (tmp_path / "libgone.so").unlink()
    for has_sections in (True, False):
        if not has_sections:
            for name in FILES:
                content = bytearray((tmp_path / name).read_bytes())
                content[40:48], content[58:64] = bytes(8), bytes(6)  # e_shoff; e_shentsize, e_shnum, e_shstrndx
                (tmp_path / name).write_bytes(content)
        output = output_of(ROOT / "tests" / "support" / "loadable_libraries.py", tmp_path, *FILES)
        for name, loads in json.loads(output).items():
            assert doctor.main([str(tmp_path / name)]) == (0 if loads else 1), name
            words = FILES[name][2]
            if name not in ("level.so", "stack.so"):  # they depend on the CPU and on the C library
                assert loads == (not words), name
            assert words in capsys.readouterr().out, name


@needs_gxx
@pytest.mark.parametrize("search", ["$ORIGIN/new", "$ORIGIN/old", "$ORIGIN", "/nowhere"])
@pytest.mark.parametrize("tag", ["--enable-new-dtags", "--disable-new-dtags"])
def test_libraries_are_searched_in_the_loaders_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str, tag: str
) -> None:
    for version, place in (("NEW", "new"), ("OLD", "old"), ("OLD", ".")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / "script").write_text(f"{version} {{ global: *; }};")
        versioned = ("-Wl,--version-script={}/script", "-Wl,-soname,libversioned.so")
        compiled(tmp_path, f"{place}/libversioned.so", FILES["libnear.so"][0], versioned)
    link = ("-L{}/new", "-lversioned", f"-Wl,{tag},-rpath,{search}")
    file = compiled(tmp_path, "file.so", FILES["newer_version.so"][0], link)
    foreign = bytearray((tmp_path / "new" / "libversioned.so").read_bytes())
    foreign[18] ^= 1  # e_machine
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "libversioned.so").write_bytes(foreign)
    monkeypatch.chdir(tmp_path / "new")
    load = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(file)!r})"]
    for places in ("new", "old", "old:new", "new;old", "foreign:new", "absent", ":", ""):
        directories = re.sub(r"\w+", lambda name: str(tmp_path / name[0]), places)
        with env.scope(LD_LIBRARY_PATH=directories):
            loads = subprocess.run(load, stderr=subprocess.DEVNULL, check=False).returncode == 0
            assert doctor.main([str(file)]) == (0 if loads else 1), places


@needs_gxx
@pytest.mark.parametrize(
    ("tag", "members", "summary", "status"),
    [
        ("linux", {"x/near.so": "near.so", "y/libnear.so": "libnear.so"}, "2 of 2 libraries load here", 0),
        ("linux", {"x/near.so": "near.so"}, "does not load here", 1),
        ("linux", {"x.libs/libnear.so": "libnear.so"}, "loads here", 0),
        ("any", {"x/libnear.so": "libnear.so"}, "loads here; its tag does not fit", 1),
        ("any", {"x.py": "near.so"}, "it has no libraries and loads wherever its Python code does", 0),
    ],
)
def test_a_wheels_summary_and_the_exit_status_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tag: str, members: dict[str, str], summary: str, status: int
) -> None:
    for name in ("libnear.so", "near.so"):
        compiled(tmp_path, name, *FILES[name][:2])
    platform = f"linux_{os.uname().machine}" if tag == "linux" else tag
    with zipfile.ZipFile(tmp_path / f"x-1-py3-none-{platform}.whl", "w") as wheel:
        for name, source in members.items():
            wheel.write(tmp_path / source, name)
    assert doctor.main([str(wheel.filename)]) == status
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == f"x-1-py3-none-{platform}.whl: {summary}"
    assert ("its package must open libnear.so" in shown) == ("y/libnear.so" in members)


@needs_gxx
@pytest.mark.parametrize("manifest", ["[" * 100_000, '{"key_parts": ' * 100_000, "[]", '{"key_parts": []}', "\xff"])
def test_a_manifest_of_another_program_does_not_matter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str
) -> None:
    """Neither next to a library nor in a wheel, however it is nested."""
    library = compiled(tmp_path, "libnear.so", *FILES["libnear.so"][:2])
    content = manifest.encode("latin-1")
    (tmp_path / MANIFEST).write_bytes(content)
    with zipfile.ZipFile(tmp_path / f"x-1-py3-none-linux_{os.uname().machine}.whl", "w") as wheel:
        wheel.write(library, "x/libnear.so")
        wheel.writestr(f"x/{MANIFEST}", content)
    for file in (str(library), str(wheel.filename)):
        assert doctor.main([file]) == 0
        assert "loads here" in capsys.readouterr().out


def test_a_built_op_is_judged_without_torch_or_a_load(tmp_path: Path, cache: Cache) -> None:
    make_small(tmp_path, cache).load()
    (entry,) = cache.entries("small")
    code = (
        "import sys\nfrom op_builder.report.doctor import main\n"
        "status = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules\n"
        "assert sys.argv[1] not in open('/proc/self/maps').read()\n"
        "sys.exit(status)"
    )
    output = output_of("-c", code, entry.artifact)
    assert "torch      2.10 and newer (known up to " in output
    assert "accel-ops built it for every CPU of the architecture" in output


def test_two_files_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        doctor.main(["a.so", "b.so"])
    assert ended.value.code == 2
    assert "only one file" in capsys.readouterr().err
