"""The ranks of this host, by torch's elastic agent: it starts them, meets the other hosts, restarts, ends.

What is added: the workers bind themselves (:mod:`accelerator.launch.worker`), the order in which ranks
ended is known, and what is left of a failed launch is ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from accelerator.launch.errors import LaunchError
from accelerator.launch.failures import Failure, first_failure
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.observer import Observer
from accelerator.launch.orphans import VARIABLE, end_processes_of
from accelerator.launch.ranks import HostPlan, plural
from accelerator.launch.signals import Ending
from accelerator.launch.worker import tell, worker_command

_AGENT_LOGGER = "torch.distributed.elastic.agent.server.api"
_PROCESSES_LOGGER = "torch.distributed.elastic.multiprocessing.api"
# What torch says of the end of ranks this launcher says, too, with rank, host and cause.
_TOLD_HERE = ("failed (exitcode", "Sending process", "Unable to shutdown process", "Received %s death signal")
# Of the variables that it sets those that are its own; the others repeat what this launcher was started with.
_AGENTS = frozenset(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
_AGENTS_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_")
_NETWORK_ERRORS = (RendezvousError, DistError, TimeoutError)
_RENDEZVOUS_TIMEOUT_S = 900
# A name may be announced only when its host has started.
_RESOLVE_S = 15.0
_ON_TOP_S = 2.0


def run(job: Job, plan: HostPlan) -> int:
    """Run the ranks of this host to their end; the exit status.

    That is the first failing rank's, 128 and the signal's number where a signal ended it or this launcher, and 1
    where the hosts did not meet.
    """
    ending = Ending()
    directory = None
    if job.log_dir is None:
        directory = Path(tempfile.mkdtemp(prefix="accel-launch-"))  # error files alone
    for module in (_AGENT_LOGGER, _PROCESSES_LOGGER):
        logging.getLogger(module).addFilter(_is_news)
    observer = Observer()
    _end_in_time(job, observer, directory)
    result, stopped = None, None
    try:
        try:
            ending.raise_first(_asked)
            if job.reports:
                _obey_standard_input()  # an order may be waiting there already
            _resolve(job)
            result = _Agent(job, plan, observer, directory, ending).run_and_close()
            ending.note_only()
        except (SignalException, LaunchError, *_NETWORK_ERRORS) as error:
            ending.note_only()
            stopped = error
        has_succeeded = result is not None and not result.is_failed()
        if not has_succeeded:
            end_processes_of(job.part, job.grace_s)
        observer.stop()
        return 0 if has_succeeded else _tell_end(job, _first(result, observer), stopped)
    finally:
        _remove(directory)


def _remove(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _tell_end(job: Job, failure: Failure | None, stopped: Exception | None) -> int:
    """Say why a launch has not succeeded; the exit status."""
    if isinstance(stopped, SignalException):
        tell(f"{stopped.sigval.name}: the ranks of {socket.gethostname()} were told to end, and have ended")
        return 128 + stopped.sigval
    if stopped is not None:
        tell(str(stopped if isinstance(stopped, LaunchError) else _not_met(job, stopped)))
        return 1
    if failure is None:
        tell("the hosts could not agree on their ranks; see the messages above")
        return 1
    if job.reports:
        os.write(2, failure.to_line().encode())
    else:
        tell(str(failure))
    return failure.exit_status


class _Agent(LocalElasticAgent):
    """Torch's agent, which tells an observer what it starts, and does not wait longer than it was told."""

    def __init__(self, job: Job, plan: HostPlan, observer: Observer, directory: Path | None, ending: Ending) -> None:
        spec_of_workers = {**plan.spec(), "parent": os.getpid()}
        command = worker_command(sys.executable, spec_of_workers, list(job.program))
        rendezvous, address, port = _rendezvous(job)
        spec = WorkerSpec(
            role="rank",
            local_world_size=plan.ranks,
            rdzv_handler=rendezvous,
            entrypoint=command[0],
            args=tuple(argument.replace("$", "$$") for argument in command[1:]),  # the agent fills in templates
            max_restarts=job.max_restarts,
            master_addr=address,
            master_port=port,
            local_addr=_local_address(job),
        )
        log_dir = job.log_dir
        if log_dir is not None and job.num_nodes > 1:
            log_dir = log_dir / f"node{job.node_rank}"  # the directory may be shared
        logs = _Streams(observer, plan, job.part, log_dir, directory)
        super().__init__(spec, logs)
        self._observer = observer
        self._grace_s = job.grace_s
        self._ending = ending
        self._part = job.part

    def run_and_close(self) -> RunResult | None:
        """Run the ranks. If that fails, hosts that wait for this one to meet again are told that it will not come."""
        result: RunResult | None
        try:
            result = self.run()
        except SignalException:
            raise
        except Exception:
            self._close()
            raise
        if result is not None and result.is_failed():
            self._close()
        return result

    def _close(self) -> None:
        with contextlib.suppress(*_NETWORK_ERRORS):  # the host with rank 0 may be gone: then nobody waits
            self._rdzv_handler.shutdown()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        self._last = result
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        failure = _first(self._last, self._observer)
        if failure is None:
            tell("ranks of other hosts are started again, and so are those of this one")
        else:
            tell(f"{failure}\nAll ranks are started again; {plural(self._remaining_restarts, 'restart')} left.")
        super()._restart_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        super()._stop_workers(worker_group)
        end_processes_of(self._part, self._grace_s)  # the next attempt is not to meet what this one has left behind

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        process_ids: dict[int, Any] = super()._start_workers(worker_group)
        self._ending.raise_first(_asked)  # the agent has set handlers that raise each time
        self._observer.watch(process_ids)
        context = getattr(self, "_pcontext", None)
        close = getattr(context, "close", None)
        if close is None:
            tell("this torch's agent is not known: ranks beside one that fails are given 30 s, not --grace_period")
        else:

            def close_in_time(death_sig: signal.Signals | None = None, timeout: float = 0) -> None:  # noqa: ARG001
                # Where a rank has failed, the agent gives the others 30 s, which no setting changes.
                close(death_sig, self._grace_s)

            context.close = close_in_time  # type: ignore[union-attr]
        return process_ids


class _Streams(DefaultLogsSpecs):
    """Standard error of the ranks goes through the observer, and with a directory for logs both streams do.

    It is also where the variables of each rank can be added to.
    """

    def __init__(
        self, observer: Observer, plan: HostPlan, part: str, log_dir: Path | None, directory: Path | None
    ) -> None:
        redirected = Std.NONE if log_dir is None else Std.ALL
        super().__init__(str(log_dir or directory), redirects=redirected)
        self._observer = observer
        self._plan = plan
        self._part = part

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destination = super().reify(envs)
        for local_rank, variables in envs.items():
            own = {
                name: value for name, value in variables.items() if name in _AGENTS or name.startswith(_AGENTS_PREFIXES)
            }
            variables.update({**self._plan.variables_of(local_rank), **own, VARIABLE: self._part})
            for target, paths in ((1, destination.stdouts), (2, destination.stderrs)):
                log = paths[local_rank] or None
                if log is not None or target == 2:
                    paths[local_rank] = self._observer.new_stream(local_rank, target, log)
        return destination


def _rendezvous(job: Job) -> tuple[RendezvousHandler, str | None, int | None]:
    """How the hosts meet; and MASTER_ADDR and MASTER_PORT, where they are known before."""
    address, port = job.master_addr or "127.0.0.1", job.master_port or DEFAULT_PORT
    # "static" reads the one, "c10d" the other.
    settings: dict[str, Any] = {"timeout": _RENDEZVOUS_TIMEOUT_S, "join_timeout": _RENDEZVOUS_TIMEOUT_S}
    if job.num_nodes == 1 and job.master_port is None:
        backend, endpoint = "c10d", "localhost:0"  # any free port
        fixed: tuple[str | None, int | None] = (None, None)
    elif job.max_restarts > 0 and job.num_nodes > 1:
        # Only this way do the hosts meet again when one of them restarts its ranks.
        backend, endpoint = "c10d", f"{_bracketed(address)}:{port}"
        settings["is_host"] = str(job.node_rank == 0)
        fixed = (None, None)
    else:
        backend, endpoint = "static", f"{_bracketed(address)}:{port}"
        settings["rank"] = job.node_rank
        fixed = (address, port)
    settings["local_addr"] = _local_address(job)
    # Hosts that were each given the command by hand know of no common name of the launch.
    name = job.launch if job.reports or job.num_nodes == 1 else "accel-launch"
    parameters = RendezvousParameters(backend, endpoint, name, job.num_nodes, job.num_nodes, **settings)
    return get_rendezvous_handler(parameters), *fixed


def _resolve(job: Job) -> None:
    """Look the address of rank 0 up: torch tries for as long as it may wait for other hosts, and does not say why.

    Raises:
        LaunchError: nobody knows it.
    """
    deadline = time.monotonic() + _RESOLVE_S
    while job.master_addr is not None:
        try:
            socket.getaddrinfo(job.master_addr.strip("[]"), job.master_port or DEFAULT_PORT)
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"--master_addr {job.master_addr} leads nowhere: {error.strerror}.",
                    "Give the name or the address by which all hosts find the one with rank 0.",
                ) from None
        time.sleep(0.5)


def _not_met(job: Job, error: Exception) -> LaunchError:
    """What to tell of an error of torch's rendezvous or of its store."""
    reason = str(error.__cause__ or error).partition("\n")[0]
    port = job.master_port or DEFAULT_PORT
    if isinstance(error, RendezvousClosedError):
        return LaunchError("Another host has given up, so this one does, too.", "See what that host has told.")
    if "EADDRINUSE" in reason or "already in use" in reason.lower():
        return LaunchError(
            f"Port {port} of {socket.gethostname()}, where rank 0 is to listen, is in use.",
            "Give another --master_port, the same on all hosts, or end who uses it ('ss -ltnp' tells).",
        )
    if job.num_nodes == 1:
        return LaunchError(
            f"The ranks of {socket.gethostname()} have no place to meet: {reason}",
            "Look that it may connect to itself (127.0.0.1).",
        )
    return LaunchError(
        f"The {job.num_nodes} hosts did not meet at {job.master_addr} port {port}: {reason}",
        "Look that --master_addr is the host with rank 0, that no firewall closes --master_port to the others, and "
        f"that each host was started within {_RENDEZVOUS_TIMEOUT_S} seconds.",
    )


def _local_address(job: Job) -> str | None:
    if job.num_nodes == 1:
        return "127.0.0.1"  # a host's own name need not lead to it, as in many containers
    return job.address or (job.master_addr if job.node_rank == 0 else None)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def _first(result: RunResult | None, observer: Observer) -> Failure | None:
    failures = []
    for rank, told in (result.failures if result is not None else {}).items():
        message = ""
        if os.path.isfile(told.error_file):
            message = told.message.get("message", "") if isinstance(told.message, dict) else str(told.message)
        failures.append(
            Failure(
                rank=rank,
                local_rank=told.local_rank,
                host=socket.gethostname(),
                pid=told.pid,
                exit_code=told.exitcode,
                time_s=observer.ended_s.get(told.local_rank, told.timestamp),
                tail=observer.tail(told.local_rank),
                message=message,
            )
        )
    return first_failure(failures)


def _end_in_time(job: Job, observer: Observer, directory: Path | None) -> None:
    """End this process after a signal, also where torch waits for other hosts and lets no handler of Python run."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait() -> None:
        number = os.read(reader, 1)[0]
        # Without ranks there is nobody to be waited for. Else the main thread is given the time it may take.
        time.sleep(2 * job.grace_s + _ON_TOP_S if observer.has_watched else _ON_TOP_S)
        end_processes_of(job.part, job.grace_s)
        tell(f"{signal.Signals(number).name}: ended without waiting any longer")
        _remove(directory)
        os._exit(128 + number)

    threading.Thread(target=wait, name="accel-launch deadline", daemon=True).start()


def _is_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_TOLD_HERE)


def _asked(number: signal.Signals) -> SignalException:
    return SignalException(f"got {number.name}", number)


def _obey_standard_input() -> None:
    """Take signals from the driver as lines of standard input; its end means that the driver is gone.

    ssh forwards no signal, and leaves the remote side running when its own end is killed.
    """
    orders = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the ranks are not to read orders

    def obey() -> None:
        while True:
            name = os.read(orders, 64).decode(errors="replace").strip()
            order = getattr(signal, name, signal.SIGTERM) if name in ("SIGINT", "SIGTERM", "") else None
            if order is not None:
                os.kill(os.getpid(), order)
            if not name:
                return

    threading.Thread(target=obey, name="accel-launch orders", daemon=True).start()
