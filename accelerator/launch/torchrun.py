"""The ranks of this host, by torch's elastic agent: it starts them, meets the other hosts, restarts, ends.

Ranks bind themselves and report failures (:mod:`accelerator.launch.rank`). This module adds the grace period, the first
failure, and the end of what a failed launch leaves behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from accelerator.launch.errors import LaunchError
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.output import Failure, exit_status
from accelerator.launch.plan import plural
from accelerator.launch.processes import END_SIGNALS, VARIABLE, end_processes_of, heeded_signals, log, small_process
from op_builder import env

_LOGGERS = ("torch.distributed.elastic.agent.server.api", "torch.distributed.elastic.multiprocessing.api")
# Torch logs the end of ranks, too; this launcher's messages have rank, host and cause.
_REPEATED = ("failed (exitcode", "Sending process", "Unable to shutdown process", "Received %s death signal")
_NETWORK_ERRORS = (RendezvousError, DistError, TimeoutError)
_RENDEZVOUS_TIMEOUT_S = 900
_RESOLVE_S = 15.0  # a name may become known only when its host has started
_MARGIN_S = 2.0


def run(job: Job) -> int:
    """Run the ranks of this host to their end; the exit status.

    That is the first failing rank's, 128 and the signal's number where a signal ended it or this launcher, and 1
    where the hosts did not meet.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(lambda record: not str(record.msg).startswith(_REPEATED))
    env.set_for_libraries({**job.variables, VARIABLE: job.part})  # the agent's processes inherit them
    # Torch's error files. The name is chosen before the directory is made: no signal falls between that and `try`.
    directory = os.path.join(tempfile.gettempdir(), f"accel-launch-{secrets.token_hex(8)}")
    signals = _Signals()
    agent, result, stopped = None, None, None
    try:
        os.mkdir(directory, 0o700)
        _end_in_time(job, signals, directory)
        try:
            signals.raise_first()
            if job.has_driver:
                _obey_standard_input()  # a signal may be waiting there
            _resolve(job)
            agent = _Agent(job, signals, directory)
            result = agent.run()
            signals.ignore()
        except (SignalException, LaunchError, *_NETWORK_ERRORS) as error:
            signals.ignore()
            stopped = error
        if result is not None and not result.is_failed():
            return 0
        if agent is not None and not isinstance(stopped, SignalException):
            agent.close_rendezvous()
        end_processes_of(job.part, job.grace_s)
        return _log_end(job, _first(result), stopped)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Signals:
    """How this process takes the signals that end a launch, while torch's agent runs in it."""

    def __init__(self) -> None:
        self._heeded = heeded_signals()
        self._is_ending = False
        self.has_ranks = False

    def raise_first(self) -> None:
        """Have the first one raise an exception; those that were ignored from the start stay ignored.

        Torch's agent sets handlers that raise each time, whenever it starts ranks.
        """

        def raise_it(number: int, _frame: FrameType | None) -> None:
            self.ignore()
            raise SignalException(f"got signal {number}", signal.Signals(number))

        if not self._is_ending:
            for number in END_SIGNALS:
                signal.signal(number, raise_it if number in self._heeded else signal.SIG_IGN)

    def ignore(self) -> None:
        """The launch is ending. Not by ``SIG_IGN``, which new processes would inherit."""
        self._is_ending = True
        for number in END_SIGNALS:
            signal.signal(number, lambda _number, _frame: None)


def _end_in_time(job: Job, signals: _Signals, directory: str) -> None:
    """End after a signal even where torch waits for other hosts and runs no Python handler."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait() -> None:
        number = os.read(reader, 1)[0]
        time.sleep((2 * job.grace_s if signals.has_ranks else 0) + _MARGIN_S)
        end_processes_of(job.part, job.grace_s)
        log(f"{signal.Signals(number).name}: ended while waiting for other hosts")
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(128 + number)

    threading.Thread(target=wait, daemon=True).start()


def _obey_standard_input() -> None:
    """Take signals from the driver as lines of standard input; its end means that the driver is gone.

    ssh forwards no signal, and the remote side continues when its own end is killed.
    """
    lines = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks must not read them

    def obey() -> None:
        name = "."
        while name:
            name = os.read(lines, 64).decode(errors="replace").strip()
            os.kill(os.getpid(), signal.SIGINT if name == "SIGINT" else signal.SIGTERM)

    threading.Thread(target=obey, daemon=True).start()


def _log_end(job: Job, failure: Failure | None, stopped: Exception | None) -> int:
    """Log why a launch has not succeeded; the exit status."""
    if isinstance(stopped, SignalException):
        log(f"{stopped.sigval.name}: the ranks of {socket.gethostname()} have ended")
        return 128 + stopped.sigval
    if stopped is not None or failure is None:
        unknown = LaunchError("The hosts could not agree on their ranks; see the messages above.")
        log(str(unknown if stopped is None else meeting_error(job, stopped)))
        return 1
    if job.has_driver:
        os.write(2, failure.to_line().encode())
    else:
        log(str(failure))
    return exit_status(failure.exit_code)


class _Agent(LocalElasticAgent):
    """Torch's agent, with a grace period of its own."""

    def __init__(self, job: Job, signals: _Signals, directory: str) -> None:
        command = small_process("rank", job.to_json(), "--", *job.program)
        rendezvous, address, port = make_rendezvous(job)
        spec = WorkerSpec(
            role="rank",
            local_world_size=len(job.hosts[0].chosen),
            rdzv_handler=rendezvous,
            entrypoint=command[0],
            args=tuple(argument.replace("$", "$$") for argument in command[1:]),  # the agent fills in templates
            max_restarts=job.max_restarts,
            master_addr=address,
            master_port=port,
            local_addr=_local_address(job),
        )
        super().__init__(spec, DefaultLogsSpecs(directory))
        self._job = job
        self._signals = signals

    def close_rendezvous(self) -> None:
        """Hosts that wait to meet this one again stop waiting."""
        with contextlib.suppress(*_NETWORK_ERRORS):  # the host with rank 0 may be gone: then nobody waits
            self._rdzv_handler.shutdown()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        process_ids: dict[int, Any] = super()._start_workers(worker_group)
        self._signals.raise_first()
        self._signals.has_ranks = True
        # A rank ends its program after the grace period; the agent would kill the rank after 30 s.
        context: Any = self._pcontext
        close, timeout_s = context.close, self._job.grace_s + _MARGIN_S
        context.close = lambda death_sig=None, timeout=0: close(death_sig, timeout_s)  # noqa: ARG005
        return process_ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        self._last = result
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        failure = _first(self._last)
        cause = "Ranks of other hosts have failed." if failure is None else str(failure)
        log(f"{cause}\nAll ranks are restarted; {plural(self._remaining_restarts, 'restart')} left.")
        super()._restart_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        super()._stop_workers(worker_group)
        end_processes_of(self._job.part, self._job.grace_s)  # the next attempt must not meet what this one left behind


def make_rendezvous(job: Job) -> tuple[RendezvousHandler, str | None, int | None]:
    """How the hosts meet; and MASTER_ADDR and MASTER_PORT, where they are known before."""
    address, port = job.master_addr or "127.0.0.1", job.master_port or DEFAULT_PORT
    endpoint = f"[{address}]:{port}" if ":" in address and not address.startswith("[") else f"{address}:{port}"
    # "static" reads the one, "c10d" the other.
    settings: dict[str, Any] = {"timeout": _RENDEZVOUS_TIMEOUT_S, "join_timeout": _RENDEZVOUS_TIMEOUT_S}
    settings["local_addr"] = _local_address(job)
    backend = "c10d"
    fixed: tuple[str | None, int | None] = (None, None)
    if job.num_nodes == 1 and job.master_port is None:
        endpoint = "localhost:0"  # any free port
    elif job.max_restarts > 0 and job.num_nodes > 1:
        settings["is_host"] = str(job.node_rank == 0)  # with "static" hosts cannot meet again
    else:
        backend, settings["rank"], fixed = "static", job.node_rank, (address, port)
    # Hosts that run the same command have no common name of the launch.
    name = job.launch if job.has_driver or job.num_nodes == 1 else "accel-launch"
    parameters = RendezvousParameters(backend, endpoint, name, job.num_nodes, job.num_nodes, **settings)
    return get_rendezvous_handler(parameters), *fixed


def _resolve(job: Job) -> None:
    """Look up the address of rank 0: torch would try it for 15 minutes, and not report why.

    Raises:
        LaunchError: it is unknown.
    """
    deadline = time.monotonic() + _RESOLVE_S
    while job.master_addr is not None:
        try:
            socket.getaddrinfo(job.master_addr.strip("[]"), job.master_port or DEFAULT_PORT)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                message = f"--master_addr {job.master_addr} cannot be resolved: {error.strerror}."
                raise LaunchError(message, "Give the name or address of the host with rank 0.") from None
        time.sleep(0.5)


def meeting_error(job: Job, error: Exception) -> LaunchError:
    """An error of torch's rendezvous or of its store, explained."""
    if isinstance(error, LaunchError):
        return error
    reason = str(error.__cause__ or error).partition("\n")[0]
    port, here = job.master_port or DEFAULT_PORT, socket.gethostname()
    if isinstance(error, RendezvousClosedError):
        message, remedy = "Another host has given up, so this one does, too.", "See the messages of that host."
    elif "EADDRINUSE" in reason or "already in use" in reason.lower():
        message = f"Port {port} of {here}, where rank 0 would listen, is in use."
        remedy = "Give another --master_port, the same on all hosts, or end its user ('ss -ltnp' lists it)."
    elif job.num_nodes == 1:
        message = f"The ranks of {here} cannot meet: {reason}"
        remedy = "Check that it can connect to itself (127.0.0.1)."
    else:
        message = f"The {job.num_nodes} hosts did not meet at {job.master_addr} port {port}: {reason}"
        remedy = (
            "Check that --master_addr is the host with rank 0, that no firewall closes --master_port to the others, "
            f"and that each host was started within {_RENDEZVOUS_TIMEOUT_S} seconds."
        )
    return LaunchError(message, remedy)


def _local_address(job: Job) -> str | None:
    if job.num_nodes == 1:
        return "127.0.0.1"  # in many containers a host's own name cannot be resolved
    return job.address or (job.master_addr if job.node_rank == 0 else None)


def _first(result: RunResult | None) -> Failure | None:
    """Of the failures that ranks reported the first; where a rank could not report any, what the agent knows."""
    reported, known = [], []
    for rank, failure in (result.failures if result is not None else {}).items():
        details: dict[str, Any] = failure.message.get("extraInfo", {}) if isinstance(failure.message, dict) else {}
        if "failure" in details:
            reported.append(Failure(**details["failure"]))
        host, exit_code = socket.gethostname(), failure.exitcode
        known.append(Failure(rank, failure.local_rank, host, failure.pid, exit_code, failure.timestamp))
    return min(reported or known, key=Failure.when, default=None)
