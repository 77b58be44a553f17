"""Which compilers a program and its children start: ``accel-ops run --compiles`` and ``op_builder.compiles``."""

from __future__ import annotations

import json
import logging
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from op_builder import compiles, env
from op_builder.commands.caches import CACHES, variables
from op_builder.compiles.compilers import compiles as is_compiling
from op_builder.compiles.compilers import is_compiler
from op_builder.compiles.ledger_rows import Reader
from op_builder.compiles.starts import preloading
from op_builder.compiles.watching import Ledger, new_ledger
from op_builder.engine import Binding, Recipe, build_library
from op_builder.errors import ArgumentError, CompileError, CompilerRefused
from tests.support.compilers import needs_gxx, program, require_program
from tests.support.foreign_package import ROOT, python, write_package
from tests.support.jit_programs import EXTENSION, PARTS, PROGRAM
from tests.support.waiting import wait_until

pytestmark = [needs_gxx, pytest.mark.skipif(sys.platform != "linux", reason="the recorder is for Linux")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory with a source."""
    monkeypatch.chdir(tmp_path)
    Path("a.c").write_text("int four(void) { return 4; }\n")
    return tmp_path


COMMAND = ["gcc", "-c", "a.c", "-o", "a.o"]


def command_of(mode: str, *words: str) -> list[str]:
    return ["-m", "op_builder", "run", "--compiles", mode, "--json", "ledger.json", "--", *words]


def run(mode: str, *words: str, **variables: str | None) -> subprocess.CompletedProcess[str]:
    return python(*command_of(mode, *words), **variables)


def ledger() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("ledger.json").read_text())
    return found


def compiled(text: str, mode: str = "report", **variables: str | None) -> list[dict[str, Any]]:
    """What a program with this text compiled."""
    Path("program.py").write_text(text)
    done = run(mode, "program.py", **variables)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = ledger()["compiled"]
    return rows


START = f"""
import ctypes, os, subprocess, sys, threading
command = {COMMAND!r}
path = {{shutil}}
def work():
    {{body}}
work()
assert os.path.exists("a.o")
"""

STARTS = {
    "list": "subprocess.run(command, check=True)",
    "path": "subprocess.run([path, *command[1:]], check=True)",
    "shell": "subprocess.run(' '.join(command), shell=True, check=True)",
    "system": "os.system('true; ' + ' '.join(command))",
    "spawn": "os.waitpid(os.posix_spawn(path, command, os.environ), 0)",
    "exec": "pid = os.fork(); pid or os.execvp(command[0], command); os.waitpid(pid, 0)",
    "thread": "it = threading.Thread(target=subprocess.run, args=(command,)); it.start(); it.join()",
    "bytes": "subprocess.run([os.fsencode(word) for word in command], check=True)",
    "grandchild": "subprocess.run(['sh', '-c', 'sh -c \"$0 $*; true\"; true', *command], check=True)",
    "changed PATH": "os.environ['PATH'] = os.path.dirname(path); subprocess.run(command, check=True)",
    "fork": "pid = os.fork(); pid or (subprocess.run(command), os._exit(0)); os.waitpid(pid, 0)",
    "python": "subprocess.run([sys.executable, '-c', 'import subprocess; subprocess.run(%r)' % command], check=True)",
}


@pytest.mark.parametrize("way", STARTS)
def test_a_compiler_is_seen_however_python_starts_it(way: str) -> None:
    (row,) = compiled(START.format(shutil=repr(shutil.which("gcc")), body=STARTS[way]))
    assert (row["what"], row["cache"], row["is_refused"]) == ("a.c", "no cache", False)
    assert row["compiler"] == os.path.realpath(require_program("gcc"))
    assert row["seconds"] >= row["cpu_seconds"] > 0
    assert row["program"].endswith("<string>:1 in <module>" if way == "python" else "program.py:6 in work"), row


def test_a_compiler_that_c_code_starts_is_seen_without_frames() -> None:
    (row,) = compiled(START.format(shutil=None, body="ctypes.CDLL(None).system(' '.join(command).encode())"))
    assert (row["what"], row["program"]) == ("a.c", "")
    assert "gcc -c a.c" in row["library"]


def test_a_compiler_that_starts_while_python_ends_is_seen_and_works() -> None:
    command = [require_program("gcc"), *COMMAND[1:]]
    last = f"def __del__(self, run=__import__('subprocess').run): run({command!r}, check=True)"
    (row,) = compiled(f"class Last:\n    {last}\nlast = Last()")
    assert (row["what"], Path("a.o").exists()) == ("a.c", True)


def test_a_launcher_may_replace_the_preloaded_libraries() -> None:
    child = [sys.executable, "-c", START.format(shutil=None, body=STARTS["list"])]
    (row,) = compiled(f"import os, subprocess\nos.environ['LD_PRELOAD'] = ''\nsubprocess.run({child!r}, check=True)")
    assert row["cpu_seconds"] > 0


def test_a_watched_python_that_starts_no_program_imports_little() -> None:
    assert (
        compiled(
            "import sys\nassert 'op_builder.compiles.hooks' in sys.modules\nassert 'op_builder.env' not in sys.modules"
        )
        == []
    )


def test_a_compiler_with_another_environment_is_seen_without_its_times() -> None:
    Path("program.py").write_text(START.format(shutil=None, body="subprocess.run(command, env={'PATH': '/usr/bin'})"))
    done = run("report", "program.py")
    (row,) = ledger()["compiled"]
    assert (row["what"], row["seconds"], ledger()["cpu_seconds"]) == ("a.c", None, None)
    assert row["program"].endswith("program.py:6 in work")
    assert "1 compiler compiled: -, CPU - (no cache 1)." in done.stderr
    assert "      -       -  no cache       a.c" in done.stderr


def test_a_compiler_behind_a_wrapper_or_another_compiler_counts_once(place: Path) -> None:
    program(place / "bin" / "g++", f'exec {require_program("g++")} "$@"')
    program(place / "bin" / "ccache", '"$@"')
    text = "import os; os.system('bin/ccache bin/g++ a.c -o a.out'); os.system('bin/g++ --version')"
    (row,) = compiled(text)
    assert row["compiler"] == os.path.realpath(require_program("g++"))
    assert [query["what"] for query in ledger()["queries"]] == ["--version"]


def test_a_compiler_that_becomes_another_by_exec_has_its_times(place: Path) -> None:
    shutil.copy(require_program("env"), place / "clang")
    (row,) = compiled(f"import subprocess; subprocess.run(['./clang', *{COMMAND!r}], check=True)")
    assert row["compiler"] == str(place / "clang")
    assert row["seconds"] >= row["cpu_seconds"] > 0


def test_long_commands_that_are_no_compilers_are_kept_in_part() -> None:
    words = ["sh", "-c", f"gcc -c a.c; : {'x' * 1000}", *map(str, range(20))]
    (row,) = compiled(f"import subprocess; subprocess.run({words!r}, check=True)")
    assert row["program"].endswith("program.py:1 in <module>")


def test_a_full_disk_changes_neither_programs_nor_their_status() -> None:
    Path("program.py").write_text(f"import subprocess; subprocess.run({COMMAND!r}, check=True); raise SystemExit(3)")
    with new_ledger() as made:
        done = python("program.py", ACCEL_COMPILES="report:/dev/full", **preloading(str(made.file)))
    assert (done.returncode, done.stderr) == (3, "")


def test_a_run_leaves_only_the_recorder_which_is_in_the_cache_for_children_of_a_daemon(place: Path) -> None:
    with env.scope(ACCEL_CACHE_DIR=str(place / "cache"), TMPDIR=str(place)):
        preloaded = run("report", "-c", "import os; print(os.environ['LD_PRELOAD'])").stdout.split(":")[-1].strip()
    assert Path(preloaded).is_relative_to(place / "cache")
    assert Path(preloaded).exists()
    assert not list(place.glob("accel-compiles-*"))


def test_a_recorder_in_a_cache_whose_path_has_blanks_is_copied(place: Path) -> None:
    with env.scope(ACCEL_CACHE_DIR=str(place / "a cache"), TMPDIR=str(place)):
        rows = compiled(f"import subprocess; subprocess.run(['sh', '-c', {' '.join(COMMAND)!r}], check=True)")
    assert [row["what"] for row in rows] == ["a.c"]
    assert not list(place.glob("accel-compiles-*"))


def test_programs_are_named_once_the_cache_has_lost_the_recorder(place: Path) -> None:
    text = f"import shutil, subprocess; shutil.rmtree({str(place / 'lost')!r}); subprocess.run(['sh', '-c', 'true'])"
    with env.scope(ACCEL_CACHE_DIR=str(place / "lost")):
        assert compiled(text) == []
    assert ledger()["unwatched"] == [os.path.realpath(require_program("sh"))]


def test_a_program_that_cannot_be_watched_is_named() -> None:
    assert compiled("import subprocess; subprocess.run(['sh', '-c', 'gcc -c a.c'], env={'PATH': '/usr/bin'})") == []
    (name,) = ledger()["unwatched"]
    assert name == os.path.realpath(require_program("sh"))


@pytest.mark.parametrize("call", ["['/usr']", "['true'], cwd='missing'"])
def test_what_could_not_start_is_no_program_that_was_not_watched(call: str) -> None:
    assert compiled(f"import contextlib, subprocess\nwith contextlib.suppress(OSError): subprocess.run({call})") == []
    assert ledger()["unwatched"] == []


def test_scripts_by_any_name_are_watched(place: Path) -> None:
    program(place / "bin" / "my_script", "exec env true")
    text = """
import os, subprocess
os.environ["PATH"] += ":bin"
for words in (["my_script"], ["bin/my_script"], ["./bin/my_script", "a", "b"]):
    subprocess.run(words, check=True)
os.system("my_script")
"""
    assert compiled(text) == []
    assert ledger()["unwatched"] == []


def test_the_separator_that_system_passes_to_the_shell_does_not_count(place: Path) -> None:
    """glibc 2.38 and newer start ``sh -c -- COMMAND``."""
    records = [
        ["ask", "1", "7", "no cache", "", "program.py:1", "", "", "/bin/sh", "sh", "-c", "gcc -c a.c"],
        ["start", "2", "8", "7", "/bin/sh", "sh", "-c", "--", "gcc -c a.c"],
        ["start", "3", "9", "8", "/usr/bin/gcc", "gcc", "-c", "a.c"],
    ]
    (place / "ledger").write_text(
        "".join("\x1e" + "".join(f"{word}\x1f" for word in each) + "\x1e" for each in records)
    )
    reader = Reader(place / "ledger")
    reader.read()
    assert [start.program for start in reader.starts()] == ["program.py:1"]
    assert reader.unwatched(0.0) == []


def test_damaged_records_are_left_out() -> None:
    start = "\x1estart\x1f1500000\x1f7\x1f1\x1f/bin/gcc\x1fgcc\x1fa.c\x1f\x1e"
    damaged = (
        "\x1estart\x1f16",
        "\x1estart\x1f1600000\x1f8\x1f\x1e",
        "\x1eend\x1f1700000\x1f7\x1fx\x1f\x1e",
        "x\x1fy\x1fz\x1f",
    )
    Path("ledger").write_text(
        "".join(text + start.replace("\x1f7", f"\x1f{at + 20}") for at, text in enumerate(damaged))
    )
    assert [each.what for each in Ledger(Path("ledger"), 0).compiled()] == ["a.c"] * len(damaged)


def test_a_command_keeps_its_streams_name_and_status() -> None:
    text = """
import subprocess
commands = ["g++", "--version"], ["gcc", "-E", "-x", "c", "-"], ["gcc", "-c", "none.c"], ["sh", "-c", "kill $$"]
for command in commands:
    print(subprocess.run(command, input=b"#define A\\n__FILE__ A\\n", capture_output=True))
print(subprocess.run(["-bash", "-c", "echo $0"], executable="/bin/sh", capture_output=True))
"""
    Path("program.py").write_text(text)
    assert run("report", "program.py").stdout == python("program.py").stdout != ""


def test_arguments_with_any_character_are_kept() -> None:
    words = ["gcc", "-c", "a.c", "-o", "a.o", "-DX=\n\x1e\x1f\udcff\"'"]
    (row,) = compiled(f"import os, subprocess; subprocess.run([os.fsencode(w) for w in {words!r}], check=True)")
    assert "-DX=\n??\udcff" in row["command"]


COMPILING = [
    *(f"{name} a.c" for name in ("gcc", "x86_64-linux-gnu-g++-12", "clang++-18", "c++", "aarch64-conda-g++")),
    *(f"g++ {words}" for words in ("-", "-v a.c", "-MD a.c", "@words", "a.o -o a.so", "-Xlinker -E a.o -o b")),
    *(f"g++ {words}" for words in ("-o --version a.c", "-dumpdir d a.c", "-x c++ -")),
    *("zig cc a.c", "zig c++ -target x a.c", "zig build-exe a.zig", "flang-new-18 a.f90"),
    *(f"{name} --create a b" for name in ("cc1", "cc1plus", "nvlink", "fatbinary", "cicc", "ptxas")),
]
OTHERS = [
    *(f"{name} a.c" for name in ("ccache", "gccgo-x", "g++-", "collect2", "ld", "clang-tidy", "12-g")),
    *(f"g++ {words}" for words in ("", "--version", "-v", "-E a.c", "-print-prog-name=as", "-M a", "-x c++ -v")),
    *(f"g++ {words}" for words in ("-o x --version", "-I a -dumpmachine", "a.c --help=warnings")),
    *("zig c++ -target x86_64-linux-gnu -idirafter /usr/include --version", "zig cc -target x -v", "zig version"),
    *("clang -target x --version", "clang -isystem a -Xclang -b -print-resource-dir", "cc1plus -E a.c"),
]


@pytest.mark.parametrize("command", [*COMPILING, *OTHERS])
def test_python_and_the_recorder_agree_on_what_compiles(place: Path, command: str) -> None:
    name, *words = command.split()
    file = shutil.copy(require_program("true"), place / name)
    with new_ledger() as made:
        environment = env.child_environment(ACCEL_COMPILES=f"raise:{made.file}", **preloading(str(made.file)))
        done = subprocess.run([file, *words], env=environment, capture_output=True, check=False)
    expected = command in COMPILING
    assert (is_compiler(name) and is_compiling([name, *words]), done.returncode) == (expected, int(expected))


def test_raise_fails_at_the_place_with_the_stack_and_the_status() -> None:
    Path("program.py").write_text(START.format(shutil=None, body=STARTS["list"]))
    done = run("raise", "program.py")
    assert done.returncode == 1
    assert "CompilerRefused: No compiler may start here" in done.stderr
    assert "program.py:6 in work" in done.stderr.partition("The first refused compiler: gcc -c a.c")[2]
    assert not Path("a.o").exists()
    assert (ledger()["exit_status"], [row["is_refused"] for row in ledger()["compiled"]]) == (1, [True])
    assert ledger()["seconds"] == 0


@pytest.mark.parametrize("way", ["shell", "grandchild", "system"])
def test_raise_refuses_what_another_program_starts_though_the_program_goes_on(way: str) -> None:
    body = STARTS[way].replace("check=True", "check=False")
    Path("program.py").write_text(START.format(shutil=None, body=body).replace("assert", "print('end') #"))
    done = run("raise", "program.py")
    assert (done.returncode, done.stdout) == (1, "end\n")
    assert not Path("a.o").exists()
    (row,) = ledger()["compiled"]
    assert row["is_refused"]
    assert row["program"].endswith("program.py:6 in work")


def test_a_run_inside_another_has_its_ledger_and_cannot_allow_what_it_forbids() -> None:
    inner = [sys.executable, *command_of("report", *COMMAND)]
    rows = compiled(f"import subprocess; subprocess.run({inner!r}, check=True)")
    assert [row["what"] for row in rows] == ["a.c"]
    Path("a.o").unlink()
    done = run("raise", *inner)
    assert done.returncode != 0
    assert not Path("a.o").exists()


def test_raise_fails_where_a_part_of_the_program_has_allowed_a_compiler() -> None:
    Path("program.py").write_text(
        "import subprocess\nfrom op_builder import compiles\n"
        f"with compiles.watched('report'):\n    subprocess.run({COMMAND!r}, check=True)"
    )
    done = run("raise", "program.py")
    assert done.returncode == 1
    assert "The first compiler: gcc" in done.stderr


def test_raise_allows_a_program_that_only_asks_a_compiler() -> None:
    assert compiled("import subprocess; subprocess.run(['gcc', '--version'], check=True)", "raise") == []
    assert len(ledger()["queries"]) == 1


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("raise SystemExit(5)", 5),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import os; os._exit(7)", 7),
    ],
)
def test_a_program_that_fails_keeps_its_status_and_has_its_table(text: str, status: int) -> None:
    Path("program.py").write_text(f"import os; os.system('{' '.join(COMMAND)}')\n{text}")
    done = run("report", "program.py")
    assert (done.returncode, ledger()["exit_status"]) == (status, status)
    assert "1 compiler compiled" in done.stderr


def test_a_program_of_another_language_is_run_and_warned_about() -> None:
    done = run("warn", "sh", "-c", "gcc -c a.c; exit 3")
    assert done.returncode == 3
    assert "compiles a.c" in done.stderr


@pytest.mark.parametrize(
    "words", [["--compiles", "never", "--", "a.py"], ["--json", "x", "a.py"], ["--compiles", "report"], ["--compiles"]]
)
def test_wrong_options_are_an_error_of_usage(words: list[str]) -> None:
    done = python("-m", "op_builder", "run", *words)
    assert (done.returncode, "usage:" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "status"), [(["--json", "/none/x", "--", "true"], 2), (["--", "./none"], 2), (["--", "sh", "none"], 2)]
)
def test_what_cannot_be_run_or_written_is_one_line(words: list[str], status: int) -> None:
    done = python("-m", "op_builder", "run", "--compiles", "report", *words)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


SLEEPER = """
import sys, time
try:
    print("ready", flush=True)
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(0.2)  # a second one would end this
    sys.exit(9)
"""


def test_a_signal_reaches_the_program() -> None:
    Path("program.py").write_text(SLEEPER)
    command = [sys.executable, *command_of("report", "program.py")]
    environment = env.child_environment(PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n"
    assert (process.returncode, ledger()["exit_status"]) == (9, 9)


def test_ignored_and_blocked_signals_are_inherited() -> None:
    text = "import signal as s; print(s.getsignal(s.SIGHUP).name, s.pthread_sigmask(s.SIG_BLOCK, []))"
    command = f"trap '' HUP; exec {sys.executable} -m op_builder run --compiles report -- -c \"{text}\""
    environment = env.child_environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "SIG_IGN set()\n"


def test_ctrl_c_at_a_terminal_reaches_the_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("program.py").write_text(SLEEPER)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, *command_of("report", "program.py")])
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"Nothing was compiled" not in output:
        output += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    os.close(terminal)
    assert b"interrupted" in output


def test_without_a_compiler_a_program_fails_as_without_the_ledger(place: Path) -> None:
    Path("program.py").write_text(START.format(shutil=None, body=STARTS["list"]))
    done = run("report", "program.py", PATH=str(place), CXX=None)
    assert done.returncode == 1
    assert "FileNotFoundError: [Errno 2] No such file or directory: 'gcc'" in done.stderr
    assert ledger()["compiled"] == []


BUILD = """
import sys
from op_builder.engine import Binding, Recipe, build_library
print(build_library(Recipe("mine", Binding.C, ("a.c",), cxx_flags=tuple(sys.argv[1:]))).is_cached)
"""


def test_our_cache_has_the_same_keys_with_and_without_a_ledger_and_gives_its_reasons(place: Path) -> None:
    Path("program.py").write_text(BUILD)
    with env.scope(ACCEL_CACHE_DIR=str(place / "cache")):
        assert run("report", "program.py").stdout == "False\n"
        rows = ledger()["compiled"]
        assert [(row["cache"], row["what"], row["reason"]) for row in rows] == [
            ("accel-ops", "a.c", "mine: the cache contains no 'mine'"),
            ("accel-ops", "link mine.so", "mine: the cache contains no 'mine'"),
        ]
        assert rows[0]["program"].endswith("program.py:4 in <module>")
        assert python("program.py").stdout == "True\n"
        assert python("program.py", "-DA").stdout == "False\n"
        done = run("raise", "program.py", "-DA")
        assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
        assert run("report", "program.py", "-DB").returncode == 0
        assert "+'-DB'" in ledger()["compiled"][0]["reason"]


def test_a_part_of_a_program_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    before = env.ACCEL_COMPILES.raw(), env.LD_PRELOAD.raw()
    with compiles.watched() as outer:
        subprocess.run(COMMAND, check=True)
        with compiles.watched("warn") as inner:
            subprocess.run([*COMMAND[:-1], "b.o"], check=True)
            subprocess.run(["gcc", "--version"], check=True, capture_output=True)
            wait_until(lambda: "compiles a.c, started by" in caplog.text)
        with pytest.raises(CompilerRefused, match="No compiler"), compiles.watched("raise"):
            subprocess.run(COMMAND, check=True)
        with pytest.raises(CompilerRefused, match="compiles"), compiles.watched("raise"):
            assert os.system("gcc -c a.c") != 0
    subprocess.run(COMMAND, check=True)
    assert (env.ACCEL_COMPILES.raw(), env.LD_PRELOAD.raw()) == before
    assert [start.command[-1] for start in inner.compiled()] == ["b.o"]
    assert [start.is_refused for start in outer.compiled()] == [False, False, True, True]
    assert f"{Path(__file__).name}:" in outer.table()
    assert not outer.file.exists()
    assert caplog.records[0].levelno == logging.WARNING


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ArgumentError, match="mode"):
        compiles.watch("never")


def test_a_server_forbids_compilers_from_its_start_on_and_a_forked_child_keeps_the_ledger() -> None:
    text = """
import os, subprocess, sys
from op_builder import compiles
ledger = compiles.watch("raise")
if os.fork() == 0:
    sys.exit(0)  # runs what atexit has
os.wait()
print(ledger.file.exists())
os.system("gcc -c a.c")
if sys.argv[1:]:
    subprocess.run(["gcc", "a.c"])
"""
    done = python("-c", text)
    assert (done.stdout, done.returncode, "Traceback" in done.stderr) == ("True\n", 0, False)
    assert "Compilers that were refused: 1" in done.stderr
    done = python("-c", text, "again")
    assert (done.stdout, done.returncode) == ("True\n", 1)
    assert "CompilerRefused: No compiler may start here" in done.stderr


def test_what_triton_compiles_in_the_process_is_noted_and_its_own_listener_kept(place: Path) -> None:
    """A stand-in with Triton's names. Only the real one proves that they are right."""
    knobs = "class compilation:\n    listener = None\n"
    write_package(place, "triton", {"knobs.py": knobs})
    text = """
import types, triton.knobs
times = types.SimpleNamespace(total=2_000)
for hit in (True, False):
    triton.knobs.compilation.listener(
        src=None, metadata={"name": f"add_{hit}"}, metadata_group={}, times=times, cache_hit=hit
    )
"""
    (row,) = compiled(text, PYTHONPATH=os.pathsep.join([str(ROOT), str(place)]))
    assert (row["what"], row["seconds"]) == ("add_False", 0.002)


@pytest.mark.slow
@pytest.mark.parametrize(("part", "cache"), PARTS.items())
def test_caches_are_named_and_a_second_start_compiles_nothing_nor_one_with_a_copy_where_the_table_says_so(
    place: Path, part: str, cache: str
) -> None:
    row = next(each for each in CACHES if each.name == cache)
    assert row.is_tested
    if part == "ffi":
        pytest.importorskip("tvm_ffi")
    Path("program.py").write_text(PROGRAM)
    Path("plain.cpp").write_text(EXTENSION)
    # Precompiled headers are not in the cache that the variable names, but in TMPDIR.
    with env.scope(TMPDIR=str(place), **variables(place / "first")):
        assert run("raise", "program.py", part).returncode == 1
        assert any(row["is_refused"] for row in ledger()["compiled"])
        done = run("report", "program.py", part)
        assert done.returncode == 0, done.stderr
        rows = ledger()["compiled"]
        assert {row["cache"] for row in rows} == {cache}
        assert all("program.py:" in row["program"] and row["library"] and row["seconds"] for row in rows)
        libraries = set(place.rglob("*.so"))
        assert python("program.py", part).returncode == 0
        assert set(place.rglob("*.so")) == libraries
        done = run("raise", "program.py", part)
        assert (done.returncode, ledger()["compiled"]) == (0, []), done.stderr
    assert Path(variables(place)[row.variable]).name in os.listdir("first")
    shutil.copytree("first", "second", symlinks=True)
    with env.scope(TMPDIR=str(place), **variables(place / "second")):
        assert (run("raise", "program.py", part).returncode == 0) == row.copied.startswith("hits")


def test_a_build_of_ours_can_be_refused(place: Path) -> None:
    recipe = Recipe("refused", Binding.C, ("a.c",))
    with (
        env.scope(ACCEL_CACHE_DIR=str(place / "cache")),
        pytest.raises(CompilerRefused, match="for accel-ops"),
        compiles.watched("raise"),
        pytest.raises(CompileError, match=r"First error: .*no compiler may start here[^|]*Remedy: To fill a cache"),
    ):
        build_library(recipe)
