"""Query a C++ compiler and its linker by running them.

A module of its own because a warm load has the answers in the memo.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from op_builder import env
from op_builder.errors import ToolchainError
from op_builder.system.file_contents import file_status
from op_builder.system.process import run
from op_builder.toolchains.flags import TOOL_FLAGS, contents_of, flags_of, names_in

_START_BYTES = 1 << 16
_SCRIPT_BYTES = 1 << 20
_MOST_FILES = 100
_MOST_ROUNDS = 3
_DIGEST_DIGITS = 16
_OF_THE_KERNEL = ("/proc/", "/dev/", "/sys/")
_PATH = r"/[^\s\"'`;|&<>()$,{}\[\]*]+"
_ABSOLUTE_PATH = re.compile(rf"(?<![\w.~}}*/]){_PATH}")
# >FILE, 2>>FILE, tee FILE, and open(FILE, "a").
_WRITTEN = re.compile(
    rf"(?:(?<![=-])>[>|&]?|\btee\b(?:\s+-\w+)*)[\s\"',]*({_PATH})|({_PATH})[\"']\s*,\s*(?:mode\s*=\s*)?[\"'][awx]"
)
_OWN_FILE = r"\"?(?:\$0|\$\{?BASH_SOURCE(?:\[0\]\})?|\$\((?:readlink -f|realpath)[^)]*\))\"?"
_HOME = re.compile(r"(?<![\w/~])~(?=/)")
_OWN_DIRECTORY = re.compile(rf"\$\(\s*dirname\s+(?:--\s+)?{_OWN_FILE}\s*\)|\$\{{0%/\*\}}")
_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=[\"']?([^\s\"';]+)", re.MULTILINE)
# $NAME, ${NAME}, ${NAME:-default}
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?")
_EXECUTED = re.compile(r"\bexec\s+([\w.+-]+)")
# Files that a shell, Python or Perl reads, in the rest of the line.
_READ = re.compile(r"(?:\b(?:source|import|from|require|do|use)|(?:^|[\s;&(])\.)[ \t]+(.+)")
_EXPANDED = re.compile(r"\$\{?\w+\}?")
_FILE = re.compile(r"[\w./+-]+")
_PROGRAM = re.compile(r"[\w.+-]+")
# Any word of a script may be the name of a variable, whatever its language.
_NAME = re.compile(r"[A-Za-z]\w*|_\w+", re.ASCII)
# They are not part of the key: they differ between users, directories and terminals, so that each would build again. No
# property of a name or a value separates them from flags, so they are listed. What PATH selects is part of the key.
_OF_THE_USER = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOST", "HOSTNAME", "LANG", "LC_ALL", "TMPDIR", "TMP", "TEMP", "PWD"),
    *("OLDPWD", "PYENV_DIR", "SHLVL", "TERM", "COLUMNS", "LINES", "DISPLAY", "PS1", "PROMPT_COMMAND"),
}
# Programs that directories of -B and COMPILER_PATH may replace.
_SELECTABLE = ("as", "ld", "cc1", "cc1plus", "collect2", "lto-wrapper", "lto1")
_OLDEST_SYSTEM = re.compile(r"(-linux-gnu|-macos)\.[\d.]+$")
_VERSION_MACRO = re.compile(r'^#define __VERSION__ ".*?(\d+(?:\.\d+)+)', re.MULTILINE)
_SEARCH_LIST = re.compile(r'^#include "\.\.\." search starts here:\n(.*?)^End of search list', re.MULTILINE | re.DOTALL)
_SEARCH_DIRECTORY = re.compile(r'SEARCH_DIR\("=?([^"]+)"\)')

# The linker's own depfile (GNU ld 2.35, lld 12).
LINKED_FLAG = "--dependency-file"


def ask_compiler(
    command: tuple[str, ...], programs: list[str], selections: Iterable[tuple[str, ...]] = ()
) -> tuple[dict[str, Any], list[str]]:
    """The version and target that a compiler reports, and the files that the answer depends on.

    Args:
        programs: the words of ``command`` that are programs, resolved.
        selections: TOOL_FLAGS that other flags select programs with.

    Raises:
        ToolchainError: it does not answer.
    """
    # zig's target may name a version of glibc or macOS; zig answers only without it.
    query = [_OLDEST_SYSTEM.sub(r"\1", word) for word in command]
    ask = partial(run, environment=env.compiler_environment(is_for_target=False))  # it answers in English
    version = ask([*query, "--version"])
    target = ask([*query, "-dumpmachine"])
    if not version.ok or not target.ok:
        answer = (version.errors or target.errors or version.output).strip().splitlines()
        raise ToolchainError(
            f"{shlex.join(command)} does not answer --version and -dumpmachine as a C++ compiler does"
            + (f"; it printed: {answer[0].rstrip('.')}." if answer else "."),
            "Set CXX to a working g++ or clang++.",
        )
    _require_list_of_headers(command)
    backend = "clang" if "clang" in version.output else "cc1plus"
    backend_path = ask([*query, f"-print-prog-name={backend}"]).last_line
    tools = [ask([*query, f"-print-prog-name={name}"]).last_line for name in ("as", "ld")]
    selected = [flags for flags in dict.fromkeys([flags_of(TOOL_FLAGS, command), *selections]) if flags]
    named_by_flags = [name for flags in selected for name in names_in(flags)]
    selectable = [*_SELECTABLE, *(name for name in named_by_flags if "/" not in name)]
    tools += [ask([*query, *flags, f"-print-prog-name={name}"]).last_line for flags in selected for name in selectable]
    found = [path for name in (backend_path, *tools) if os.path.isabs(path := shutil.which(name) or name)]
    places = dict.fromkeys([*env.program_places(), *filter(os.path.isabs, named_by_flags)])
    # -B/x/y- selects the program /x/y-as.
    replacing = [f"{place}{end}{name}" for place in places for end in ("/", "") for name in (*selectable, "specs")]
    found += filter(shutil.which, [*named_by_flags, *replacing])
    named, variables = wrapper_facts(programs, found)
    configured = re.findall(r"^Configuration file: (/.+)$", version.output, re.MULTILINE)  # clang's
    files = [*map(os.path.realpath, [*programs, *found]), *named, *configured, *replacing]
    macros = predefined_macros(command)
    is_gcc = "__GNUC__" in macros and "__clang__" not in macros and "__INTEL" not in macros
    line = version_line(version.output.strip() or version.errors.strip(), macros)
    line = " ".join([line, *contents_of(configured)])
    fact = {"version": line, "target": target.last_line, "is_gcc": is_gcc, "variables": variables}
    return {**fact, "digest": digest_of_programs(files)}, files


def _require_list_of_headers(command: tuple[str, ...]) -> None:
    listed = [*command, "-E", "-MD", "-MF", "/dev/stdout", "-include", "new", "-x", "c++", os.devnull, "-o", os.devnull]
    answer = run(listed, environment=env.compiler_environment(is_for_target=False))
    if answer.ok and ": " in answer.output and "/new" not in answer.output:
        raise ToolchainError(
            f"{shlex.join(command)} omits the system's headers from its list of headers, so changes of these would not "
            "be noticed.",
            "Remove -MMD, -MM and -MF from the script or configuration of the compiler.",
        )


def digest_of_programs(files: Iterable[str]) -> str:
    """A digest of the contents of those files that exist: a compiler may change behind its version."""
    programs = [name for name in dict.fromkeys(files) if os.path.isfile(name)]
    return hashlib.sha256(" ".join(contents_of(programs)).encode()).hexdigest()[:_DIGEST_DIGITS]


def predefined_macros(command: tuple[str, ...]) -> str:
    """The macros that a compiler defines, as #define lines; empty where it does not list them."""
    environment = env.compiler_environment(is_for_target=False)
    return run([*command, "-dM", "-E", "-x", "c++", os.devnull], environment=environment).output


def version_line(answer: str, macros: str) -> str:
    """The line of ``--version``'s answer with the compiler's version; all of the answer where no line has it.

    The first line may be that of a wrapper, which stays when the compiler behind it changes.
    """
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    number = _VERSION_MACRO.search(macros)
    matching = [line for line in lines if number is not None and number[1] in line]
    return matching[0] if matching else " ".join([*lines, *(number.groups() if number is not None else ())])


def binutil(name: str, command: tuple[str, ...]) -> str:
    """The path or name of the program ``name`` (``c++filt``) that belongs to a compiler's ``command``."""
    return run([*command, f"-print-prog-name={name}"]).last_line or name


def demangled(symbols: Sequence[str], program: str = "c++filt") -> dict[str, str]:
    """The C++ names of symbols, by symbol; empty where the program of binutils is missing."""
    try:
        return dict(zip(symbols, run([program, *symbols]).output.splitlines(), strict=False)) if symbols else {}
    except ToolchainError:
        return {}


def wrapper_facts(programs: Iterable[str], tools: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """The files that wrapper scripts run or read, and all words in them that may name variables.

    The names of files are not resolved, so that a switched link is noticed. Missing files are among them, because they
    may appear. Files that a wrapper writes, such as logs, are not: they change with every call.

    Args:
        programs: the words of the compiler's command that are programs.
        tools: other programs that the compiler starts.
    """
    files: dict[str, None] = {}
    variables: set[str] = set()
    data: set[str] = set()
    programs = list(programs)
    waiting = [*programs, *tools]
    while waiting and len(files) < _MOST_FILES:
        program, *waiting = waiting
        text = _script(program)
        places = dict.fromkeys((program, os.path.realpath(program)))
        expanded = "\n".join(_expanded(place, text) for place in places)
        executed = set(_EXECUTED.findall(text))
        on_path = ((name, shutil.which(name)) for name in dict.fromkeys(_PROGRAM.findall(text)))
        named = [path for name, path in on_path if path and (name in executed or _script(path))]
        absolute = _ABSOLUTE_PATH.findall(expanded)
        run_or_read = [*_sourced(program, expanded), *filter(_is_program, (*named, *absolute))]
        new = [name for name in dict.fromkeys(run_or_read) if name not in files and _is_kept(name)]
        files.update(dict.fromkeys(new))
        waiting += new
        variables.update(_NAME.findall(text))
        written = {name for names in _WRITTEN.findall(expanded) for name in names}
        data |= {name for name in absolute if name not in written and _is_data(name)}
        data.update(name for place in places for name in _data_in_directory(place, text))
    read = dict.fromkeys(name for name in (*files, *sorted(data)[:_MOST_FILES]) if not _is_program(name))
    run_or_unwritten = [*filter(_is_program, files), *_unwritten(programs, list(read))]
    return run_or_unwritten, sorted(variables - _OF_THE_USER)


def _expanded(program: str, text: str) -> str:
    """The text of a script with the values of variables that it sets or gets, and of its own directory."""
    text = _OWN_DIRECTORY.sub(lambda _: os.path.dirname(program), text)
    text = _HOME.sub(lambda _: os.path.expanduser("~"), text)
    values = dict(_ASSIGNED.findall(text))
    for _ in range(_MOST_ROUNDS):
        text = _VARIABLE.sub(
            lambda found: values.get(found[1]) or env.of_another_program(found[1]) or found[2] or found[0], text
        )
    return text


def _is_program(path: str) -> bool:
    return os.access(path, os.X_OK)


def _is_data(path: str) -> bool:
    """Whether a script may read it as text: a small file, or one that is missing from an existing directory."""
    if _is_program(path) or path.startswith(_OF_THE_KERNEL):
        return False
    try:
        return os.path.getsize(path) < _SCRIPT_BYTES and os.path.isfile(path)
    except (OSError, ValueError):
        return os.path.isdir(os.path.dirname(path))


def _unwritten(programs: list[str], files: list[str]) -> list[str]:
    """Those ``files`` that ``programs`` leave unchanged when they compile and link."""
    before = {name: file_status(name) for name in files}
    if files:
        with tempfile.TemporaryDirectory() as directory:
            run([*programs, "-x", "c++", "-c", os.devnull, "-o", f"{directory}/x.o"], cwd=Path(directory))
            run([*programs, "-shared", f"{directory}/x.o", "-o", f"{directory}/x.so"], cwd=Path(directory))
    return [name for name, status in before.items() if file_status(name) == status]


def _is_kept(path: str) -> bool:
    """Whether it is a file on a disk: those of the kernel have other contents in each process."""
    return os.path.isfile(path) and not path.startswith(_OF_THE_KERNEL)


def _sourced(program: str, text: str) -> Iterator[str]:
    """The files that a script includes, from its own directory or by absolute paths."""
    directory = os.path.dirname(os.path.realpath(program))
    for name in (name for rest in _READ.findall(text) for name in _FILE.findall(_EXPANDED.sub("", rest))):
        # "$here/flags.sh" leaves /flags.sh.
        module = name.replace(".", "/")
        for place in (name, f"{directory}/{name}", f"{directory}/{module}.py", f"{directory}/{name}.pm"):
            if os.path.isabs(place) and os.path.isfile(place):
                yield os.path.normpath(place)


def _data_in_directory(program: str, text: str) -> Iterator[str]:
    """The data in a script's own directory whose names are words of the script, however it finds the directory."""
    directory = os.path.dirname(program)
    for name in dict.fromkeys(_FILE.findall(_EXPANDED.sub("", text))):
        place = os.path.normpath(f"{directory}/{name}")
        if os.path.isfile(place) and _is_data(place):
            yield place


def _script(path: str) -> str:
    """The start of a text; of a script that ends with data, the text; empty for a binary or what cannot be read."""
    try:
        with open(path, "rb") as file:
            text = file.read(_START_BYTES)
            if b"\0" not in text:
                text += file.read(_SCRIPT_BYTES - len(text))
    except OSError:
        return ""
    script, nul, _ = text.partition(b"\0")
    return "" if nul and not text.startswith(b"#!") else os.fsdecode(script)


@lru_cache(maxsize=256)
def searched_directories(
    command: tuple[str, ...], language: str, is_for_target: bool, _tools: tuple[tuple[str, str], ...]
) -> tuple[str, ...]:
    """The directories in which a compiler with its flags searches for headers, in order; empty if it lists none.

    It lists those that it omits, because they are missing or double, without their places: they come first.

    Args:
        language: in the compiler's words.
        _tools: the identities of the tools, with the variables that they read.
    """
    lists = ["-Xcompiler", "-v"] if language == "cu" else ["-v"]
    environment = env.compiler_environment(is_for_target=is_for_target)
    answer = run([*command, "-E", *lists, "-x", language, os.devnull], environment=environment).errors
    listed = [name for part in _SEARCH_LIST.findall(answer) for name in re.findall(r"^ (/.*)$", part, re.MULTILINE)]
    omitted = re.findall(r'^ignoring .* directory "(/.+)"$', answer, re.MULTILINE)
    return tuple(dict.fromkeys([*omitted, *listed])) if listed else ()


def library_directories(command: tuple[str, ...]) -> list[str]:
    """The directories in which the linker of a compiler's ``command`` looks for libraries, flags or not."""
    environment = env.compiler_environment(is_for_target=False)  # in English
    driver = run([*command, "-print-search-dirs"], environment=environment).output.partition("libraries: =")[2]
    linker = run([*command, "-Wl,--verbose", "-o", os.devnull], environment=environment).output
    found = [*driver.partition("\n")[0].split(":"), *_SEARCH_DIRECTORY.findall(linker)]
    return list(filter(os.path.isabs, found))


def lists_linked(command: tuple[str, ...]) -> bool:
    """Whether the linker of a compiler's ``command`` supports LINKED_FLAG; checked each time, as PATH may select it."""
    try:
        return LINKED_FLAG in run([*command, "-Wl,--help"]).output
    except ToolchainError:
        return False
