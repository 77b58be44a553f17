"""Running the ranks of this host: it starts, watches, restarts and ends them. Hosts meet at a store of torch.

Ranks bind themselves and report failures (:mod:`accelerator.launch.rank`). This module reports the first failure, and
ends the processes that a failed launch leaves behind. Torch's calls run no signal handlers, so none of them waits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from operator import attrgetter
from types import FrameType

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from accelerator.errors import LaunchError
from accelerator.launch.job import DEFAULT_PORT, Job
from accelerator.launch.output import Failure, exit_status
from accelerator.launch.processes import END_SIGNALS, VARIABLE, end_processes_of, handled_signals, helper_process, log
from op_builder import env
from op_builder.messages import counted
from op_builder.system.listener import listen

_MEETING_TIMEOUT_S = 15 * 60
_CALL_TIMEOUT = timedelta(seconds=30)
_MARGIN_S = 2.0
_POLL_S = 0.1


class _SignalError(Exception):
    """A signal that ends the launch."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def run(job: Job) -> int:
    """Run the ranks of this host; returns the exit status.

    It is the first failing rank's, 128 plus the signal number if a signal ended the rank or this launcher, and 1 if the
    hosts did not connect or another host ended the launch.
    """
    env.set_for_libraries({**job.variables, VARIABLE: job.part})  # the ranks inherit them
    try:
        _raise_first_signal()
        if job.has_driver:
            _follow_standard_input()  # a signal may be pending there
        failure = _Supervisor(job).run()
        _ignore_signals()
        if failure is None:
            return 0
        message, status = "" if job.has_driver else str(failure), exit_status(failure.exit_code)
    except _SignalError as error:
        message, status = f"{error.signal.name}: the ranks of {socket.gethostname()} have ended", 128 + error.signal
    except (LaunchError, DistError, TimeoutError) as error:
        _ignore_signals()
        message, status = str(meeting_error(job, error)), 1
    end_processes_of(job.part, job.grace_s)
    if message:
        log(message)
    return status


def _raise_first_signal() -> None:
    """Raise an exception at the first signal; signals that were ignored at the start stay ignored."""
    handled = handled_signals()

    def raise_it(number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise _SignalError(number)

    for number in END_SIGNALS:
        signal.signal(number, raise_it if number in handled else signal.SIG_IGN)


def _ignore_signals() -> None:
    """Ignore signals from now on, without ``SIG_IGN``, which new processes would inherit."""
    for number in END_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)


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


class _Supervisor:
    """Starts the ranks of this host, watches them, and restarts them after a failure on any host."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ranks: list[tuple[int, subprocess.Popen[bytes]]] = []
        self._reader, self._writer = os.pipe()  # the ranks' reports of failures
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)  # a rank must not wait if many fail at once
        self._reported = b""

    def run(self) -> Failure | None:
        """Run the ranks until all have succeeded (None) or no restart is left (the first failure)."""
        store, has_succeeded = None, False
        try:
            self._ranks_store = connect(self._job)  # of the first attempt
            # Hosts that were started by hand do not share the launch's id.
            self._name = self._job.launch if self._job.has_driver or self._job.num_nodes == 1 else "accel-launch"
            store = PrefixStore(self._name, self._ranks_store)
            for attempt in range(self._job.max_restarts + 1):
                self._start(store, attempt)
                has_succeeded = self._wait(store, attempt)
                if has_succeeded:
                    return None
                failure = min(self._failures(), key=attrgetter("time_s"), default=None)
                left = self._job.max_restarts - attempt
                if left == 0:
                    break
                _set(store, f"{attempt}/failed")
                cause = "Ranks of other hosts have failed." if failure is None else str(failure)
                log(f"{cause}\nAll ranks are restarted; {counted(left - 1, 'restart')} left.", "warning")
                self._stop(signal.SIGTERM)
                end_processes_of(self._job.part, self._job.grace_s)  # before the next attempt
            if failure is None:
                raise _other_host_ended()
            if self._job.has_driver:
                _ignore_signals()  # the driver sends one
                os.write(2, failure.to_line().encode())
            return failure
        except _SignalError as error:
            self._stop(error.signal)
            raise
        finally:
            if store is not None and not has_succeeded:
                _set(store, "closed")
                time.sleep(2 * _POLL_S if self._job.num_nodes > 1 else 0)  # the other hosts read it
            self._stop(signal.SIGTERM)

    def _start(self, store: PrefixStore, attempt: int) -> None:
        index, hosts, count = self._job.node_rank, self._job.num_nodes, len(self._job.hosts[0].chosen)
        if index == 0:
            if attempt > 0:  # restarted ranks must not find keys of earlier ones
                self._ranks_store = _serve(_address(self._job), 0)
            store.set(f"{attempt}/port", str(self._ranks_store.port))
        store.set(f"{attempt}/ranks/{index}", str(count))
        deadline = time.monotonic() + _MEETING_TIMEOUT_S
        while not store.check([f"{attempt}/ranks/{other}" for other in range(hosts)]):
            if store.check(["closed"]):
                raise _other_host_ended()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all hosts started within {_MEETING_TIMEOUT_S} seconds")
            time.sleep(_POLL_S)
        counts = [int(store.get(f"{attempt}/ranks/{other}")) for other in range(hosts)]
        self._ranks = []
        self._failures()
        self._reported = b""  # by ranks of the attempt before
        total = sum(counts)
        shared = {
            "WORLD_SIZE": total,
            "LOCAL_WORLD_SIZE": count,
            "GROUP_WORLD_SIZE": hosts,
            "ROLE_WORLD_SIZE": total,
            "GROUP_RANK": index,
            "CROSS_RANK": index,
            "CROSS_SIZE": hosts,
            "ROLE_NAME": "default",
            "MASTER_ADDR": _address(self._job),
            "MASTER_PORT": store.get(f"{attempt}/port").decode(),
            "TORCHELASTIC_RESTART_COUNT": attempt,
            "TORCHELASTIC_MAX_RESTARTS": self._job.max_restarts,
            # The ranks connect to the store of this module.
            "TORCHELASTIC_RUN_ID": self._name,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        command = helper_process("rank", self._job.to_json(), str(self._writer), *self._job.program)
        for local_rank in range(count):
            rank = sum(counts[:index]) + local_rank
            own = {**shared, "RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local_rank}
            variables = env.child_environment(**{name: str(value) for name, value in own.items()})
            variables.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # a rank in a broken collective ends
            process = subprocess.Popen(command, env=variables, pass_fds=(self._writer,), start_new_session=True)
            self._ranks.append((rank, process))

    def _wait(self, store: PrefixStore, attempt: int) -> bool:
        """Wait until the ranks of all hosts have succeeded (True) or one has failed."""
        while any(process.poll() is None for _, process in self._ranks):
            if self._failures() or self._has_failed_elsewhere(store, attempt):
                return False
            time.sleep(_POLL_S)
        if self._failures():
            return False
        for event in ("succeeded", "left"):  # the first host serves the store and leaves last
            _set(store, f"{attempt}/{event}/{self._job.node_rank}")
            hosts = range(self._job.num_nodes if event == "succeeded" or self._job.node_rank == 0 else 0)
            while not store.check([f"{attempt}/{event}/{other}" for other in hosts]):
                if self._has_failed_elsewhere(store, attempt):
                    return False
                time.sleep(_POLL_S)
        return True

    def _has_failed_elsewhere(self, store: PrefixStore, attempt: int) -> bool:
        try:
            if store.check(["closed"]):
                raise _other_host_ended()
            return bool(store.check([f"{attempt}/failed"]))
        except DistError:
            raise _other_host_ended() from None

    def _failures(self) -> list[Failure]:
        """What the failed ranks reported; if they reported nothing, their exit statuses."""
        known = [
            Failure(rank, local_rank, socket.gethostname(), process.pid, exit_code, time.time())
            for local_rank, (rank, process) in enumerate(self._ranks)
            if (exit_code := process.poll())
        ]
        with contextlib.suppress(BlockingIOError):
            self._reported += os.read(self._reader, 1 << 20)
        lines = self._reported.decode(errors="replace").split("\n")
        return [failure for failure in map(Failure.from_line, lines) if failure is not None] or known

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


def _set(store: PrefixStore, key: str) -> None:
    with contextlib.suppress(DistError):  # the first host may have ended
        store.set(key, "")


def connect(job: Job, resolve_timeout_s: float = 15.0) -> TCPStore:
    """The store where the hosts meet, which the first host serves.

    Raises:
        LaunchError: the first host's name is still unknown after ``resolve_timeout_s``; it may be known only after that
            host has started.
        TimeoutError: that host does not listen within 15 minutes.
        DistError: torch's reason.
    """
    address, is_server = _address(job), job.node_rank == 0
    port = job.master_port or (0 if job.num_nodes == 1 else DEFAULT_PORT)
    began = time.monotonic()
    for attempt in itertools.count():
        try:
            if is_server:
                socket.getaddrinfo(address, port)
            else:
                socket.create_connection((address, port), timeout=5.0).close()
            break
        except OSError as error:
            waited_s = time.monotonic() - began
            if isinstance(error, socket.gaierror) and waited_s > resolve_timeout_s:
                message = f"--master_addr {address} cannot be resolved: {error.strerror}."
                raise LaunchError(message, "Use the name or address of the host with rank 0.") from None
            if waited_s > _MEETING_TIMEOUT_S:
                raise TimeoutError(str(error)) from None
            if attempt == 0:
                log(f"Waiting for the first host, {address} port {port}: {error.strerror or error}.", "info")
        time.sleep(0.5)
    if is_server:
        return _serve(address, port)
    return TCPStore(address, port, is_master=False, timeout=_CALL_TIMEOUT)


def _serve(address: str, port: int) -> TCPStore:
    """A store at this address alone, if this host has an interface with it."""
    own = listen(address, port)
    if own is not None:
        port = own.getsockname()[1]
    descriptor = None if own is None else own.detach()  # torch closes it
    store = TCPStore(
        address, port, is_master=True, timeout=_CALL_TIMEOUT, wait_for_workers=False, master_listen_fd=descriptor
    )
    if own is None:
        reason = f"{address} is not an address of an interface of this host"
        log(f"Port {store.port} is open on all interfaces: {reason}.", "warning")
    return store


def _address(job: Job) -> str:
    return (job.master_addr or "127.0.0.1").strip("[]")


def _other_host_ended() -> LaunchError:
    return LaunchError("Another host has ended the launch.", "Read the output of accel-launch on that host.")


def meeting_error(job: Job, error: Exception) -> LaunchError:
    """Convert an error of :func:`connect` or of the store."""
    if isinstance(error, LaunchError):
        return error
    reason = str(error).partition("\n")[0]
    port = job.master_port or DEFAULT_PORT
    if "EADDRINUSE" in reason or "already in use" in reason.lower():
        return LaunchError(
            f"Port {port} of {socket.gethostname()}, needed for rank 0, is in use.",
            "Use another --master_port, the same on all hosts, or end the process that uses it ('ss -ltnp').",
        )
    if job.num_nodes == 1:
        return LaunchError(
            f"This host did not connect to itself at {_address(job)}: {reason}",
            "Check that programs of this host can connect to each other at that address.",
        )
    return LaunchError(
        f"{job.num_nodes} hosts did not connect to {_address(job)} port {port}: {reason}",
        "Check that --master_addr is the host with rank 0, that no firewall blocks --master_port, "
        f"and that all hosts start within {_MEETING_TIMEOUT_S} seconds.",
    )
