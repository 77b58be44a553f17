"""Running the ranks of this host with torch's elastic agent, which starts, restarts and ends them.

Ranks bind themselves and report failures (:mod:`accelerator.launch.rank`). This module adds the grace period, reports
the first failure, and ends the processes that a failed launch leaves behind.
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
from datetime import timedelta
from types import FrameType
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from accelerator.errors import LaunchError
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.output import Failure, exit_status
from accelerator.launch.plan import plural
from accelerator.launch.processes import END_SIGNALS, VARIABLE, end_processes_of, handled_signals, helper_process, log
from op_builder import env
from op_builder.system.listener import listen

_LOGGERS = ("torch.distributed.elastic.agent.server.api", "torch.distributed.elastic.multiprocessing.api")
# Messages of torch about the end of ranks; this launcher's have rank, host and cause.
_REPEATED = ("failed (exitcode", "Sending process", "Unable to shutdown process", "Received %s death signal")
_NETWORK_ERRORS = (RendezvousError, DistError, TimeoutError)
_RENDEZVOUS_TIMEOUT = timedelta(minutes=15)
_MARGIN_S = 2.0


def run(job: Job) -> int:
    """Run the ranks of this host; returns the exit status.

    It is the first failing rank's, 128 plus the signal number if a signal ended the rank or this launcher, and 1 if the
    hosts did not connect.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(lambda record: not str(record.msg).startswith(_REPEATED))
    env.set_for_libraries({**job.variables, VARIABLE: job.part})  # the agent's processes inherit them
    # For torch's error files. `try` follows before the directory exists, so no signal can leave it behind.
    directory = os.path.join(tempfile.gettempdir(), f"accel-launch-{secrets.token_hex(8)}")
    signals = _Signals()
    agent, result, stopped = None, None, None
    try:
        os.mkdir(directory, 0o700)
        _end_in_time(job, signals, directory)
        try:
            signals.raise_first()
            if job.has_driver:
                _follow_standard_input()  # a signal may be pending there
            resolve(job)
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
    """The handling of signals that end a launch, while torch's agent runs in this process."""

    def __init__(self) -> None:
        self._handled = handled_signals()
        self._is_ending = False
        self.has_ranks = False

    def raise_first(self) -> None:
        """Raise an exception at the first signal; signals that were ignored at the start stay ignored.

        Whenever torch's agent starts ranks, it sets handlers that raise at every signal.
        """

        def raise_it(number: int, _frame: FrameType | None) -> None:
            self.ignore()
            raise SignalException(f"got signal {number}", signal.Signals(number))

        if not self._is_ending:
            for number in END_SIGNALS:
                signal.signal(number, raise_it if number in self._handled else signal.SIG_IGN)

    def ignore(self) -> None:
        """Ignore signals from now on, without ``SIG_IGN``, which new processes would inherit."""
        self._is_ending = True
        for number in END_SIGNALS:
            signal.signal(number, lambda _number, _frame: None)


def _end_in_time(job: Job, signals: _Signals, directory: str) -> None:
    """End after a signal even if torch waits for other hosts and runs no Python handler."""
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


def _follow_standard_input() -> None:
    """Read signals from the driver as lines of standard input; its end means that the driver has ended.

    ssh does not forward signals, and the remote side continues if the local side is killed.
    """
    lines = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks must not read them

    def follow() -> None:
        name = "."
        while name:
            name = os.read(lines, 64).decode(errors="replace").strip()
            os.kill(os.getpid(), signal.SIGINT if name == "SIGINT" else signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def _log_end(job: Job, failure: Failure | None, stopped: Exception | None) -> int:
    """Log why a launch failed; returns the exit status."""
    if isinstance(stopped, SignalException):
        log(f"{stopped.sigval.name}: the ranks of {socket.gethostname()} have ended")
        return 128 + stopped.sigval
    if stopped is not None or failure is None:
        unknown = LaunchError("The hosts could not agree on their ranks; see the messages above.")
        log(str(unknown if stopped is None else rendezvous_error(job, stopped)))
        return 1
    if job.has_driver:
        os.write(2, failure.to_line().encode())
    else:
        log(str(failure))
    return exit_status(failure.exit_code)


class _Agent(LocalElasticAgent):
    """Torch's agent, with a grace period of its own."""

    def __init__(self, job: Job, signals: _Signals, directory: str) -> None:
        command = helper_process("rank", job.to_json(), "--", *job.program)
        spec = WorkerSpec(
            role="rank",
            local_world_size=len(job.hosts[0].chosen),
            rdzv_handler=make_rendezvous(job),
            entrypoint=command[0],
            args=tuple(argument.replace("$", "$$") for argument in command[1:]),  # the agent fills in templates
            max_restarts=job.max_restarts,
            local_addr=_local_address(job),
        )
        super().__init__(spec, DefaultLogsSpecs(directory))
        self._job = job
        self._signals = signals

    def close_rendezvous(self) -> None:
        """Let hosts stop waiting for this one."""
        with contextlib.suppress(*_NETWORK_ERRORS):  # the host with rank 0 may have ended
            self._rdzv_handler.shutdown()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        process_ids: dict[int, Any] = super()._start_workers(worker_group)
        self._signals.raise_first()
        self._signals.has_ranks = True
        # Ranks end their programs after the grace period; the agent would kill them after 30 s.
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
        log(f"{cause}\nAll ranks are restarted; {plural(self._remaining_restarts, 'restart')} left.", "warning")
        super()._restart_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        super()._stop_workers(worker_group)
        end_processes_of(self._job.part, self._job.grace_s)  # before the next attempt


def make_rendezvous(job: Job) -> RendezvousHandler:
    """The rendezvous of the hosts. It starts when the agent asks for it."""
    if job.max_restarts == 0 or job.num_nodes == 1:
        return _Rendezvous(job)
    # Only torch's own counts the hosts again before a restart.
    store, name = _store(job, _port(job)), _name(job)
    backend, timeout = C10dRendezvousBackend(store, name), RendezvousTimeout(join=_RENDEZVOUS_TIMEOUT)
    handler: RendezvousHandler = DynamicRendezvousHandler.from_backend(
        name, store, backend, job.num_nodes, job.num_nodes, _local_address(job), timeout
    )
    return handler


class _Rendezvous(StaticTCPRendezvous):
    """Hosts whose indices are known meet at a store, which their ranks also use."""

    def __init__(self, job: Job) -> None:
        timeout_s = int(_RENDEZVOUS_TIMEOUT.total_seconds())
        super().__init__(_address(job), _port(job), job.node_rank, job.num_nodes, _name(job), timeout_s)
        self._job = job
        self._rounds = 0
        self._own: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        if self._own is None:
            self._own = _store(self._job, self.master_port)
        self._rounds += 1  # restarted ranks must not find the keys of earlier ones
        store = PrefixStore(f"{self.run_id}/{self._rounds}", self._own)
        place = RendezvousStoreInfo(self.master_addr, self._own.port)
        return RendezvousInfo(store, self.rank, self.world_size, place)


def _store(job: Job, port: int) -> TCPStore:
    """Torch's store, once all hosts have connected to it; the first host serves it, at the named address alone."""
    address, is_server = _address(job), job.node_rank == 0
    own = listen(address, port) if is_server else None
    if own is not None:
        port = own.getsockname()[1]
    descriptor = None if own is None else own.detach()  # torch closes it
    store = TCPStore(address, port, job.num_nodes, is_server, _RENDEZVOUS_TIMEOUT, master_listen_fd=descriptor)
    if is_server and own is None:
        reason = f"{address} is not an address of an interface of this host"
        log(f"Port {port} is open on all interfaces: {reason}.", "warning")
    return store


def _address(job: Job) -> str:
    return (job.master_addr or "127.0.0.1").strip("[]")


def _port(job: Job) -> int:
    is_any_free = job.num_nodes == 1 and job.master_port is None
    return 0 if is_any_free else job.master_port or DEFAULT_PORT


def _name(job: Job) -> str:
    """The rendezvous' name; hosts that were started by hand do not share the launch's id."""
    return job.launch if job.has_driver or job.num_nodes == 1 else "accel-launch"


def resolve(job: Job, timeout_s: float = 15.0) -> None:
    """Resolve the address of rank 0: torch would retry for 15 minutes without a reason.

    Raises:
        LaunchError: the name is still unknown after ``timeout_s``; it may be known only after its host has started.
    """
    deadline = time.monotonic() + timeout_s
    while job.master_addr is not None:
        try:
            socket.getaddrinfo(job.master_addr.strip("[]"), job.master_port or DEFAULT_PORT)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                message = f"--master_addr {job.master_addr} cannot be resolved: {error.strerror}."
                raise LaunchError(message, "Use the name or address of the host with rank 0.") from None
        time.sleep(0.5)


def rendezvous_error(job: Job, error: Exception) -> LaunchError:
    """Convert an error of torch's rendezvous or store."""
    if isinstance(error, LaunchError):
        return error
    reason = str(error.__cause__ or error).partition("\n")[0]
    port, here = job.master_port or DEFAULT_PORT, socket.gethostname()
    if isinstance(error, RendezvousClosedError):
        message, remedy = "Another host has ended the launch.", "See the messages of that host."
    elif "EADDRINUSE" in reason or "already in use" in reason.lower():
        message = f"Port {port} of {here}, needed for rank 0, is in use."
        remedy = "Use another --master_port, the same on all hosts, or end the process that uses it ('ss -ltnp')."
    elif job.num_nodes == 1:
        message = f"The ranks of {here} cannot connect: {reason}"
        remedy = "Check that the host can connect to itself (127.0.0.1)."
    else:
        message = f"The {job.num_nodes} hosts did not connect to {job.master_addr} port {port}: {reason}"
        remedy = (
            "Check that --master_addr is the host with rank 0, that no firewall blocks --master_port, "
            f"and that all hosts start within {_RENDEZVOUS_TIMEOUT.seconds} seconds."
        )
    return LaunchError(message, remedy)


def _local_address(job: Job) -> str | None:
    if job.num_nodes == 1:
        return "127.0.0.1"  # containers often cannot resolve their own name
    return job.address or (job.master_addr if job.node_rank == 0 else None)


def _first(result: RunResult | None) -> Failure | None:
    """The first failure that a rank reported; if none was reported, the first that the agent recorded."""
    reported, known = [], []
    for rank, failure in (result.failures if result is not None else {}).items():
        details: dict[str, Any] = failure.message.get("extraInfo", {}) if isinstance(failure.message, dict) else {}
        if "failure" in details:
            reported.append(Failure(**details["failure"]))
        host, exit_code = socket.gethostname(), failure.exitcode
        known.append(Failure(rank, failure.local_rank, host, failure.pid, exit_code, failure.timestamp))
    return min(reported or known, key=Failure.when, default=None)
