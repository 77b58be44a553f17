"""Running the ranks of this host: it starts, watches, restarts and ends them. Torch's rendezvous connects hosts.

Ranks bind themselves and report failures (:mod:`accelerator.launch.rank`). This module reports the first failure, and
ends the processes that a failed launch leaves behind.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.multiprocessing import SignalException
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

_NETWORK_ERRORS = (RendezvousError, DistError, TimeoutError)
_RENDEZVOUS_TIMEOUT = timedelta(minutes=15)
_MARGIN_S = 2.0
_POLL_S = 0.1
_END_TIMEOUT = timedelta(minutes=5)


def run(job: Job) -> int:
    """Run the ranks of this host; returns the exit status.

    It is the first failing rank's, 128 plus the signal number if a signal ended the rank or this launcher, and 1 if the
    hosts did not connect.
    """
    env.set_for_libraries({**job.variables, VARIABLE: job.part})  # the ranks inherit them
    # For the ranks' reports. `try` follows before the directory exists, so no signal can leave it behind.
    directory = os.path.join(tempfile.gettempdir(), f"accel-launch-{secrets.token_hex(8)}")
    signals = _Signals()
    supervisor, failure, stopped = None, None, None
    try:
        os.mkdir(directory, 0o700)
        _end_in_time(job, signals, directory)
        try:
            signals.raise_first()
            if job.has_driver:
                _follow_standard_input()  # a signal may be pending there
            resolve(job)
            supervisor = _Supervisor(job, signals, directory)
            failure = supervisor.run()
            signals.ignore()
        except (SignalException, LaunchError, *_NETWORK_ERRORS) as error:
            signals.ignore()
            stopped = error
        if failure is None and stopped is None:
            return 0
        if supervisor is not None and not isinstance(stopped, SignalException):
            supervisor.close_rendezvous()
        end_processes_of(job.part, job.grace_s)
        return _log_end(job, failure, stopped)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Signals:
    """The handling of signals that end a launch."""

    def __init__(self) -> None:
        self._handled = handled_signals()
        self.has_ranks = False

    def raise_first(self) -> None:
        """Raise an exception at the first signal; signals that were ignored at the start stay ignored."""

        def raise_it(number: int, _frame: FrameType | None) -> None:
            self.ignore()
            raise SignalException(f"got signal {number}", signal.Signals(number))

        for number in END_SIGNALS:
            signal.signal(number, raise_it if number in self._handled else signal.SIG_IGN)

    def ignore(self) -> None:
        """Ignore signals from now on, without ``SIG_IGN``, which new processes would inherit."""
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
    if stopped is not None:
        log(str(rendezvous_error(job, stopped)))
        return 1
    assert failure is not None
    if job.has_driver:
        os.write(2, failure.to_line().encode())
    else:
        log(str(failure))
    return exit_status(failure.exit_code)


class _Supervisor:
    """Starts the ranks of this host, watches them, and restarts them after a failure on any host."""

    def __init__(self, job: Job, signals: _Signals, directory: str) -> None:
        self._job, self._signals, self._directory = job, signals, directory
        self._rendezvous = make_rendezvous(job)
        self._restarts_left = job.max_restarts
        self._attempts = 0
        self._ranks: list[tuple[int, subprocess.Popen[bytes]]] = []

    def run(self) -> Failure | None:
        """Run the ranks until all have succeeded (None) or no restart is left (the first failure)."""
        try:
            while True:
                self._start()
                failures = self._wait()
                failure = min(failures, key=Failure.when, default=None)
                if all(process.returncode == 0 for _, process in self._ranks):
                    return None
                if failure is not None:
                    if self._restarts_left == 0:
                        return failure
                    self._restarts_left -= 1
                cause = "Ranks of other hosts have failed." if failure is None else str(failure)
                log(f"{cause}\nAll ranks are restarted; {plural(self._restarts_left, 'restart')} left.", "warning")
                self._stop(signal.SIGTERM)
                end_processes_of(self._job.part, self._job.grace_s)  # before the next attempt
        except SignalException as error:
            self._stop(error.sigval)
            raise
        finally:
            self._stop(signal.SIGTERM)

    def close_rendezvous(self) -> None:
        """Let hosts stop waiting for this one."""
        with contextlib.suppress(*_NETWORK_ERRORS):  # the host with rank 0 may have ended
            self._rendezvous.shutdown()

    def _start(self) -> None:
        self._info = self._rendezvous.next_rendezvous()
        store, index, place = self._info.store, self._info.rank, self._info.bootstrap_store_info
        if place is None:
            raise LaunchError("torch's rendezvous returned no address for the ranks.", "Use another version of torch.")
        count = len(self._job.hosts[0].chosen)
        store.set(f"ranks/{index}", str(count))
        counts = [int(store.get(f"ranks/{other}")) for other in range(self._info.world_size)]
        self._attempts += 1
        self._ranks = []
        self._signals.has_ranks = True
        command = helper_process("rank", self._job.to_json(), "--", *self._job.program)
        for local_rank in range(count):
            rank = sum(counts[:index]) + local_rank
            variables = env.child_environment(
                RANK=str(rank),
                LOCAL_RANK=str(local_rank),
                WORLD_SIZE=str(sum(counts)),
                LOCAL_WORLD_SIZE=str(count),
                ROLE_RANK=str(rank),
                ROLE_WORLD_SIZE=str(sum(counts)),
                ROLE_NAME="default",
                GROUP_RANK=str(index),
                GROUP_WORLD_SIZE=str(self._info.world_size),
                MASTER_ADDR=place.master_addr,
                MASTER_PORT=str(place.master_port),
                TORCHELASTIC_RESTART_COUNT=str(self._job.max_restarts - self._restarts_left),
                TORCHELASTIC_MAX_RESTARTS=str(self._job.max_restarts),
                TORCHELASTIC_RUN_ID=self._rendezvous.get_run_id(),
                TORCHELASTIC_USE_AGENT_STORE=str(self._rendezvous.use_agent_store),
                TORCHELASTIC_ERROR_FILE=str(self._error_file(rank)),
            )
            variables.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # a rank in a broken collective ends
            self._ranks.append((rank, subprocess.Popen(command, env=variables, start_new_session=True)))

    def _wait(self) -> list[Failure]:
        """The failures of this host's ranks; none if all succeeded or another host restarts."""
        while any(process.poll() is None for _, process in self._ranks):
            failures = self._failures()
            if failures or self._rendezvous.num_nodes_waiting() > 0:
                return failures
            time.sleep(_POLL_S)
        failures = self._failures()
        if not failures and self._info.world_size > 1:
            # The store may be in this process; the ranks of other hosts still use it.
            store, index = self._info.store, self._info.rank
            with contextlib.suppress(*_NETWORK_ERRORS):
                store.set(f"ended/{index}", "")
                store.wait([f"ended/{other}" for other in range(self._info.world_size)], _END_TIMEOUT)
        return failures

    def _failures(self) -> list[Failure]:
        """What the failed ranks reported; if they reported nothing, their exit statuses."""
        reported, known = [], []
        for local_rank, (rank, process) in enumerate(self._ranks):
            exit_code = process.poll()
            if exit_code:
                known.append(Failure(rank, local_rank, socket.gethostname(), process.pid, exit_code, time.time()))
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    reported.append(Failure.from_line(self._error_file(rank).read_text()))
        return [failure for failure in reported if failure is not None] or known

    def _error_file(self, rank: int) -> Path:
        return Path(self._directory, f"{self._attempts}-{rank}.json")

    def _stop(self, number: int) -> None:
        """End the ranks, which end their programs after the grace period."""
        running = [process for _, process in self._ranks if process.poll() is None]
        for process in running:
            process.send_signal(number)
        deadline = time.monotonic() + self._job.grace_s + _MARGIN_S
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def make_rendezvous(job: Job) -> RendezvousHandler:
    """The rendezvous of the hosts. It starts at `next_rendezvous`."""
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
        message, remedy = "Another host has ended the launch.", "Read the output of accel-launch on that host."
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
