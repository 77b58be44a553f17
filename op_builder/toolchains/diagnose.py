"""From the output of a failed build to the one line that matters, and a remedy where it is known."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from op_builder.toolchains.remedies import SHORTAGE, compile_remedy

# The machine had too little of something at that moment; an indented line is quoted source.
_OF_SHORTAGE = rf"^(?!\s|.*\b(?:warning|note): ).*(?:No space left on device|{SHORTAGE})"
# Lines that report a failure: the first of a step is its cause. Warnings, notes and
# consequences of the cause do not match.
_DIAGNOSTICS = tuple(
    map(
        re.compile,
        (
            # gcc, clang, gold and, in capitals, the assembler: file:line:column: error: ...
            r"^[^\s:][^:]*:\d+(?::\d+)?: (?:(?:fatal |internal compiler |[Ff]atal )?error|Error): .+",
            # nvcc: file(line): error: ...; with a number between in some versions
            r"^\S.*?\(\d+\): (?:catastrophic |internal )?error\b.*: .+",
            # a program, without a source line: g++: fatal error: ..., nvcc fatal   : ..., ld.lld: error: ...
            r"^(?:[^\s:]+(?: /\S+, line \d+;)?:? )?"
            r"(?:fatal error|error|fatal|Fatal error|internal compiler error)\s*: .+",
            # ld.bfd, which does not print "error"
            r"^.+: (?:undefined reference to|multiple definition of) .+",
            r"^\S*\bld(?:\.\w+)?:(?!.*(?:\bwarning:|\b(?i:note):|skipping incompatible|: in function )).+",
            _OF_SHORTAGE,  # by any program
            # the shell that ninja starts commands by
            r"^\S*\bsh: .*(?:not found|Permission denied|No such file|cannot execute|too long|[Ee]xec format error).*",
        ),
    )
)
_SUMMARY = re.compile(
    r"^collect2: error: ld returned|^clang\S*: error: linker command failed|^\S+: error: ld returned"
    r"|^ninja: build stopped"
)
_FAILED = re.compile(r"^FAILED: (?:\[code=(\d+)\])?")
_STEP_END = re.compile(r"^(?:\[\d+/\d+\] |FAILED: |ninja: )")
_NINJAS_OWN = re.compile(r"^ninja: (?:error|fatal): ", re.MULTILINE)
_DISK_FULL = re.compile(r"^(?!\s).*No space left on device", re.MULTILINE)
_SHORTAGE = re.compile(rf"{_OF_SHORTAGE}|^Killed$")
_COLOURS = re.compile(r"\x1b(?:\[[\d;]*[A-Za-z]|\].*?(?:\x1b\\|\a))")  # also links, which are written like them
_SIGNAL = 128  # what a shell adds to the number of the signal that ended its command

# Lines before a diagnostic that belong to it, and those after it that no longer do.
_INCLUDED = re.compile(r"^(?:In file included from|\s+from) (.+?:\d+)(?::\d+)?[,:]$")
_REQUIRED = re.compile(r"^(\S.*?:\d+(?::\d+)?):\s+(?:recursively )?required (?:from|by) ")
_CONTEXT = re.compile(r"^\S[^:]*: (?:In|At) .*:$|^\S.*:\s+\[ ?skipping |^\s*\d* \| ")
_NEXT = re.compile(r"^(?:In file included from|\S[^:]*: (?:In|At) .*:$|.*(?::|\)): warning\b|\d+ errors? )")

# Lines after it that show what led to it; of several, the last is nearest to the author's code.
_MACRO = re.compile(r"^(\S.*?:\d+(?::\d+)?): note: in expansion of macro ")
_CLANG_TEMPLATE = re.compile(r"^(\S.*?:\d+(?::\d+)?): note: .*(?:instantiation of|while ).*\bhere$")
_NVCC_TEMPLATE = re.compile(r"^\s+.* at line (\d+)(?: of (.+))?$")
_NVCC_PLACE = re.compile(r"^(\S.*?)\((\d+)\): ")
_IN_FUNCTION = re.compile(r": in function [`'](.+)':$")
_LLD_PLACE = re.compile(r"^>>> (referenced by|defined at) (.+)$")


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a failed build's output.

    Attributes:
        diagnostic: the first real diagnostic; in a second line the place in the author's own code that
            led to it, where the compiler names one.
        command: the command that failed, empty if there was none.
        remedy: what to do, empty if nothing is known.
        disk_full: whether it failed because a disk was full.
        shortage: whether every failed command lacked memory, processes or disk space: fewer at a time may succeed.
    """

    diagnostic: str
    command: str
    remedy: str
    disk_full: bool = False
    shortage: bool = False


@dataclass(frozen=True)
class _Step:
    """One command that failed, its exit status (empty where ninja prints none) and its output."""

    command: str
    code: str
    output: list[str]


def diagnose(log: str) -> Diagnosis:
    """Find the cause in a ninja log, or in the output of one command."""
    log = _COLOURS.sub("", log)
    lines = log.splitlines()
    steps = list(_failed_steps(lines)) or [_Step("ninja" if _NINJAS_OWN.search(log) else "", "", lines)]
    disk_full = _DISK_FULL.search(log) is not None
    shortage = all(map(_is_shortage, steps))
    for step in steps:  # several may have failed, some without a message
        for index, line in enumerate(step.output):
            if _is_diagnostic(line):
                notes = [note for note in _followers(step.output, index) if "note: " in note]
                remedy = compile_remedy("\n".join([line, *notes]), step.command)
                origin = _origin(step.output, index)
                diagnostic = line.strip() + (f"\n    {origin}" if origin else "")
                return Diagnosis(diagnostic, step.command, remedy, disk_full, shortage)
    words = _last_words(steps[0])
    return Diagnosis(words, steps[0].command, compile_remedy(words, steps[0].command), disk_full, shortage)


def _failed_steps(lines: list[str]) -> Iterator[_Step]:
    for index, line in enumerate(lines):
        failed = _FAILED.match(line)
        if failed:
            rest = lines[index + 1 :]
            end = next((at for at, text in enumerate(rest) if at and _STEP_END.match(text)), len(rest))
            yield _Step(rest[0] if rest else "", failed[1] or "", rest[1:end])


def _is_shortage(step: _Step) -> bool:
    return step.code == str(_SIGNAL + signal.SIGKILL) or any(map(_SHORTAGE.match, step.output))


def _is_diagnostic(line: str) -> bool:
    return not _SUMMARY.match(line) and any(pattern.match(line) for pattern in _DIAGNOSTICS)


def _last_words(step: _Step) -> str:
    """For an output without a diagnostic: how the command ended, and the output's end."""
    words = " | ".join([line.strip() for line in step.output if line.strip() and not _SUMMARY.match(line)][-3:])
    code = int(step.code or 0)
    if not code:
        return words or "the compiler printed nothing"
    ended = f"ended with status {code}"
    if code > _SIGNAL:
        ended = f"was ended by signal {code - _SIGNAL} ({signal.strsignal(code - _SIGNAL)})"
    return f"the command {ended} and reported no cause" + (f"; its output ends: {words}" if words else "")


def _followers(lines: list[str], index: int) -> Iterator[str]:
    """The lines behind the diagnostic that still belong to it."""
    for line in lines[index + 1 :]:
        if _is_diagnostic(line) or _NEXT.match(line) or not line.strip():
            return
        yield line


def _origin(lines: list[str], index: int) -> str:
    """How the author's code led to the diagnostic: by a template, a macro, an include or a call."""
    before: list[str] = []
    for line in reversed(lines[:index]):
        if not (_INCLUDED.match(line) or _REQUIRED.match(line) or _CONTEXT.match(line)):
            break
        before.insert(0, line)
    after = list(_followers(lines, index))

    required = [found[1] for line in before if (found := _REQUIRED.match(line))]
    required += [found[1] for line in after if (found := _CLANG_TEMPLATE.match(line))]
    place = _NVCC_PLACE.match(lines[index])
    if place:
        # nvcc leaves out the file where it is the diagnostic's own.
        ways = [found for line in after if (found := _NVCC_TEMPLATE.match(line))]
        required += [f"{found[2] or place[1]}({found[1]})" for found in ways]
    if required:
        return f"required from {required[-1]}"
    macros = [found[1] for line in after if (found := _MACRO.match(line))]
    if macros:
        return f"in a macro used at {macros[-1]}"
    included = [found[1] for line in before if (found := _INCLUDED.match(line))]
    if included:
        # gcc lists the files from the header outwards, in one sentence; clang inwards, in a sentence each.
        sentences = sum(line.startswith("In file") for line in before)
        return f"included from {included[0 if sentences > 1 else -1]}"
    function = _IN_FUNCTION.search(lines[index - 1]) if index else None
    if function:
        return f"in function {function[1]}"
    places = [found for line in after if (found := _LLD_PLACE.match(line))]
    return f"{places[0][1]} {' and '.join(found[2] for found in places)}" if places else ""
