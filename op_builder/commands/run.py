"""``accel-ops run``: run a program on this engine, or list the compilers that it starts."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import site
import sys
import threading
from collections.abc import Sequence

from op_builder import env
from op_builder.command_line import run_main
from op_builder.compiles.starts import preloading
from op_builder.compiles.watching import MODES, Ledger, new_ledger
from op_builder.integrations.torch_extensions import START_FILE
from op_builder.system.interpreter import python

_OWN_OPTIONS = ("--compiles", "--json")
# Those that a supervisor sends to end a program or to notify it.
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m op_builder.commands.run") -> int:
    """Replace this process by Python with the program; with ``--compiles``, run it and return its exit status."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run a Python program in which torch.utils.cpp_extension.load() and load_inline() build with the "
        "engine and the cache of accel-ops. Child processes do the same. The arguments are those of Python. With "
        "--compiles, the program runs unchanged, and a table lists the compilers that it and its children start; the "
        "program may then also be a command of another language.",
        epilog=f"Examples: '{prog} train.py', '{prog} --compiles report -- -m my.train'.",
        usage=f"{prog} [-h] [--compiles {{{','.join(MODES)}}} [--json FILE] --] "
        "[OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    parser.add_argument(
        "--compiles",
        choices=MODES,
        help="list the compilers at the end (report), also warn at each start (warn), or fail at the first (raise: the "
        "exit status is then never 0)",
    )
    parser.add_argument("--json", metavar="FILE", help="with --compiles, also write the list to FILE")
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = 0
    while own < len(given) and given[own].partition("=")[0] in _OWN_OPTIONS:
        own += 1 if "=" in given[own] else 2
    options = parser.parse_args(given[:1] if given[:1] in (["-h"], ["--help"]) else given[:own])
    program = given[own:][1:] if given[own : own + 1] == ["--"] else given[own:]
    if not program:
        parser.error("name a script, or a module after -m")
    if options.json is not None and options.compiles is None:
        parser.error("--json needs --compiles")
    directories = [*site.getsitepackages(), site.getusersitepackages()]
    is_installed = any(os.path.exists(os.path.join(directory, START_FILE)) for directory in directories)
    if options.compiles is not None:
        if not is_installed:
            print(f"Who asks for a compiler is not seen, because {sys.prefix} lacks {START_FILE}.", file=sys.stderr)
        return _watched(program, options.compiles, options.json)
    if is_installed:
        sys.stdout.flush()
        interpreter = python()
        os.execve(interpreter, [interpreter, *program], env.child_environment(**{env.ACCEL_CPP_EXTENSION.name: "1"}))
    reason = f"Programs would keep torch's functions, because {sys.prefix} lacks the file {START_FILE}."
    print(f"{reason}\n  Remedy: Install accel-ops there with pip.", file=sys.stderr)
    return 2


def _watched(program: Sequence[str], mode: str, json_file: str | None) -> int:
    """Run a program with a ledger; its exit status, or 1 if ``raise`` was broken and the program ended with 0."""
    interpreter = python()
    words = [*program] if _is_command(program[0]) else [interpreter, *program]
    if json_file is not None:
        try:
            open(json_file, "a", encoding="utf-8").close()
        except OSError as error:
            print(f"--json: {json_file} cannot be written: {error.strerror}.", file=sys.stderr)
            return 2
    with new_ledger() as ledger:
        # A run inside another one, or in a program that watches itself, allows nothing that is forbidden there.
        return _run_in(ledger, words, "raise" if ledger.outer_mode == "raise" else mode, json_file)


def _run_in(ledger: Ledger, words: list[str], mode: str, json_file: str | None) -> int:
    ended = threading.Event()
    follower = threading.Thread(target=ledger.follow, args=(ended, _print), daemon=True)
    try:
        child = _start(words, mode, ledger)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}.", file=sys.stderr)
        return 127
    if mode == "warn":
        follower.start()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = status if status >= 0 else 128 - status  # as shells report a signal
    ended.set()
    if mode == "warn":
        follower.join()
    # Those that a part of the program with a mode of its own has let through count, too.
    forbidden = ledger.compiled() if mode == "raise" else []
    status = status or int(bool(forbidden))
    print(f"\n{ledger.table()}", file=sys.stderr)
    if forbidden:
        first = forbidden[0]
        stack = "".join(f"\n  {frame}" for frame in first.stack.splitlines())
        name = "The first refused compiler" if first.is_refused else "The first compiler"
        print(f"\n{name}: {' '.join(first.command)}{stack}", file=sys.stderr)
    if json_file is not None:
        try:
            ledger.write_json(json_file, program=words, mode=mode, exit_status=status)
        except OSError as error:
            print(f"--json: {json_file} cannot be written: {error.strerror}.", file=sys.stderr)
            status = status or 2
    return status


def _is_command(word: str) -> bool:
    return not word.startswith("-") and not word.endswith(".py") and shutil.which(word) is not None


def _print(text: str) -> None:
    print(f"accel-ops: {text}", file=sys.stderr, flush=True)


def _start(words: list[str], mode: str, ledger: Ledger) -> int:
    """Start the program in this process's group, and forward signals to it; its process number."""
    sys.stdout.flush()
    changes = {env.ACCEL_COMPILES.name: f"{mode}:{ledger.file}", **preloading(str(ledger.file))}
    ignored_by_python = [signal.SIGPIPE, signal.SIGXFSZ]
    forwarded = [getattr(signal, name) for name in _FORWARDED]
    # A signal that arrives before there are handlers and a child waits.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)

    def forward(number: int, _frame: object) -> None:
        # The terminal sends Ctrl-C to the whole group.
        if number != signal.SIGINT or not _is_in_foreground():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    try:
        environment = env.child_environment(**changes)
        child = os.posix_spawnp(words[0], words, environment, setsigdef=ignored_by_python, setsigmask=mask)
        for number in forwarded:  # not before the spawn: the child inherits those that are ignored (nohup)
            signal.signal(number, forward)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child


def _is_in_foreground() -> bool:
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


if __name__ == "__main__":
    run_main(main)
