"""Start the ranks of a job on one or several hosts, wait for them, and leave none behind."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from ferrule.errors import ConfigError, LaunchError
from ferrule.launch import environment, protocol
from ferrule.launch.channel import Channel
from ferrule.launch.facts import address_toward
from ferrule.launch.job import LOOPBACK, MEETING_PORTS, Job, Site, find_addresses, share_out, version_skew
from ferrule.launch.local import JobResult
from ferrule.launch.places import Place
from ferrule.process import Output

FAILURE_GRACE = 1.0
"""Seconds that ranks have to end when another one has failed."""

_PING_SECONDS = 3.0
_SILENCE_SECONDS = 30.0
"""A supervisor on another machine that hears nothing for so long takes the launcher, or the connection, for dead."""

_ANSWER_SECONDS = 30.0
"""For a supervisor, once ssh is there, to import what it needs and look at its links."""

_CLOSE_SECONDS = 5.0
_POLL_SECONDS = 0.02
_DEFAULTS = {"PYTHONUNBUFFERED": "1"}
MlxBackend = Literal["own", "ferrule"]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Task:
    """Task of every rank. ``argv``: a None in it is the Python of the host. ``env``: for all ranks. ``cwd``: where,
    unless the host has its own. ``mlx``: what MLX takes where a program names no backend, its own or Ferrule's."""

    argv: tuple[str | None, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    mlx: MlxBackend = "own"


class Launcher:
    """The ranks of one job on ``places``, each of which is filled up to its slots. Use it as a context manager.

    ``ranks``: how many in all; None: as many as there are slots. ``key``: the cluster key, by default a fresh one.
    ``grace``: seconds that ranks have to end after a `signal` that is to end them. ``say``: takes warnings. Not
    thread-safe but for `signal`.
    """

    def __init__(
        self,
        places: Sequence[Place],
        ranks: int | None = None,
        *,
        key: str | None = None,
        output: Output = lambda rank, stream, data: None,
        say: Callable[[str], None] = lambda line: None,
        connect_seconds: float = 10.0,
        grace: float = 5.0,
    ) -> None:
        shares = share_out([place.entry for place in places], ranks)
        self._ranks = [share for share in shares if share]
        self._places = list(places)[: len(self._ranks)]
        self._key = key or secrets.token_hex(32)
        self._output, self._say = output, say
        self._connect_seconds, self._grace = connect_seconds, grace
        self._channels: list[Channel] = []
        self._codes: dict[int, int] = {}
        self._first_failed: int | None = None
        self._stopping = False
        self._stop_at: float | None = None
        self._cut_at: float | None = None
        self._signalled: int | None = None
        self._awake, self._waker = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._waker, False)
        self._over = threading.Event()
        self.job: Job | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self._ranks))

    def connect(self, *, links: bool | None = None) -> Job:
        """Reach all hosts; what is known then is the job. ``links``: look at cables; None: if there are several hosts.

        Raises `LaunchError` that names every host that cannot be reached and why, `ConfigError`, `LinkError`.
        """
        several = len(self._places) > 1
        listen = LOOPBACK
        if several:
            listen = "::" if ":" in "".join(self._places[0].entry.addresses[:1]) else "0.0.0.0"
        for place in self._places:
            try:
                self._channels.append(Channel(place))
            except OSError as error:
                what = error.filename or "a supervisor"
                raise LaunchError(f"cannot run {what}: {error.strerror or error}") from error
        for host, channel in enumerate(self._channels):
            ports = len(self._ranks[host]) + (MEETING_PORTS - 1 if host == 0 else 0)
            silence = _SILENCE_SECONDS if channel.place.distant else None
            env = dict(channel.place.entry.env)
            looks = several if links is None else links
            channel.send(protocol.Hello(protocol.PROTOCOL, listen if host == 0 else "", ports, env, looks, silence))
        threading.Thread(target=self._ping, name="ferrule launch", daemon=True).start()
        self._await_hellos()
        self.job = self._make_job()
        return self.job

    def _ping(self) -> None:
        """Also while the rest of the launcher waits for the reader of its output."""
        while not self._over.wait(_PING_SECONDS):
            for channel in self._channels:
                if channel.place.distant:
                    channel.send(protocol.Ping())

    def _await_hellos(self) -> None:
        deadline = time.monotonic() + self._connect_seconds + _ANSWER_SECONDS
        while missing := [one for one in self._channels if one.facts is None and one.error is None]:
            if time.monotonic() > deadline:
                for channel in missing:
                    seconds = self._connect_seconds + _ANSWER_SECONDS
                    channel.error = f"{channel.place.entry.name} has not answered within {seconds:g} s"
                break
            self._sleep(deadline)
            for channel in missing:
                for report in list(channel.read())[:1]:
                    channel.greet(report)
                channel.read_errors()
                channel.find_out()
            self._obey_signals()
            if self._signalled is not None:
                raise KeyboardInterrupt
        errors = [channel.error for channel in self._channels if channel.error is not None]
        if errors:
            raise LaunchError("\n       ".join(errors))

    def _make_job(self) -> Job:
        entries = [place.entry for place in self._places]
        facts = [channel.facts for channel in self._channels if channel.facts is not None]
        remote = next((fact.server for fact in facts if fact.server), "")
        here = ""
        with contextlib.suppress(OSError):
            here = address_toward(remote) if remote else ""
        own = ["" if place.distant else here for place in self._places]
        addresses = [_resolved(address) for address in find_addresses(entries, facts, own)]
        for line in version_skew([entry.name for entry in entries], facts):
            self._say(line)
        rows = zip(entries, facts, addresses, self._ranks, self._channels, strict=True)
        return Job(
            tuple(Site(entry, fact, address, ranks, channel.ports) for entry, fact, address, ranks, channel in rows),
            self._key,
        )

    def run(self, task: Task) -> JobResult:
        """Start ``task`` on all ranks and wait for its end. When one ends badly, the others are stopped.

        Raises `LaunchError` if a host refuses to start it, or is lost; no rank is left then.
        """
        job = self.job or self.connect()
        for site, channel in zip(job.sites, self._channels, strict=True):
            channel.send(start_message(job, site, task, own_path=channel.place.distant))
        while len(self._codes) < self.size:
            self._sleep(None)
            for channel in self._channels:
                self._hear(channel)
            self._obey_signals()
            self._look_at_clocks()
        return JobResult(tuple(self._codes[rank] for rank in range(self.size)), self._first_failed)

    def signal(self, number: int) -> None:
        """Pass a signal on to all ranks; after one of `ENDING` they have ``grace`` seconds to end, or none at the
        second one. From any thread, or a signal handler."""
        os.write(self._waker, bytes([number]))

    @property
    def signalled(self) -> int | None:
        """The signal that ended the job, if one did."""
        return self._signalled

    def _obey_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._awake, 64):
                if number not in ENDING:
                    self._tell_all(protocol.Signal(number))
                elif self._signalled is None:
                    self._signalled = number
                    self._stopping = True
                    self._tell_all(protocol.Signal(number))
                    self._stop_at = time.monotonic() + self._grace
                else:
                    self._stop(0)

    def _stop(self, grace: float) -> None:
        self._stopping = True
        self._stop_at = None
        self._cut_at = time.monotonic() + grace + _CLOSE_SECONDS
        self._tell_all(protocol.Stop(grace))

    def _tell_all(self, order: protocol.Order) -> None:
        for channel in self._channels:
            channel.send(order)

    def _hear(self, channel: Channel) -> None:
        for report in channel.read():
            match report:
                case protocol.Printed(rank, stream, data):
                    self._output(rank, stream, data)
                case protocol.Exited(rank, code):
                    self._ended(rank, code)
                case protocol.Refused(reason):
                    raise LaunchError(f"{channel.place.entry.name}: {reason}")
                case protocol.Ready():
                    pass  # heard already
        if told := channel.read_errors():
            name = channel.place.entry.name
            for line in told.decode(errors="replace").splitlines():
                self._say(f"{name}: {line}")
        channel.find_out()
        left = set(self._ranks[self._channels.index(channel)]) - self._codes.keys()
        if channel.ended and left and self._first_failed is None:
            raise LaunchError(channel.error or f"lost {channel.place.entry.name}: its supervisor ended early")
        for rank in left if channel.ended else ():
            self._codes[rank] = -signal.SIGKILL

    def _ended(self, rank: int, code: int) -> None:
        self._codes[rank] = code
        if code != 0 and self._first_failed is None:
            self._first_failed = rank
        if code != 0 and not self._stopping:
            self._stop(FAILURE_GRACE)

    def _look_at_clocks(self) -> None:
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self._stop(0)
        if self._cut_at is not None and now >= self._cut_at:
            # A host that does not answer: its supervisor ends by itself, as it hears nothing more.
            for channel in self._channels:
                channel.close(0)

    def _sleep(self, deadline: float | None) -> None:
        poller = select.poll()
        for fd in (self._awake, *(fd for channel in self._channels for fd in channel.fds)):
            poller.register(fd, select.POLLIN)
        ends = [at for at in (deadline, self._stop_at, self._cut_at) if at is not None]
        if any(channel.ending for channel in self._channels):
            ends.append(time.monotonic() + _POLL_SECONDS)
        poller.poll(max(0.0, min(ends) - time.monotonic()) * 1000 + 1 if ends else None)

    def close(self) -> None:
        """End what still runs, everywhere. Safe to call twice."""
        self._over.set()
        for channel in self._channels:
            channel.hang_up()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for channel in self._channels:
            channel.close(max(0.0, deadline - time.monotonic()))
        self._channels.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for fd in (self._awake, self._waker):
            os.close(fd)


def start_message(job: Job, site: Site, task: Task, *, own_path: bool) -> protocol.Start:
    """Message that starts the ranks of one host; pure."""

    def env(rank: int) -> dict[str, str]:
        theirs = environment.torch_env(job, rank) | environment.ferrule_env(job, rank)
        return {**(environment.mlx_env(job, rank) if task.mlx == "own" else {}), **task.env, **theirs}

    return protocol.Start(
        cwd=site.entry.cwd or task.cwd,
        defaults=_DEFAULTS | environment.torch_defaults(job, site) | environment.nccl_defaults(job, site),
        files=environment.mlx_files(job) if task.mlx == "own" else {},
        own_path=own_path,
        ranks=tuple(protocol.RankCommand(rank, task.argv, env(rank)) for rank in site.ranks),
    )


def _resolved(address: str) -> str:
    """As a number, since not every library looks names up. Raises `ConfigError`."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"the address {address!r} of the hostfile is unknown: {error.strerror or error}") from error
    return str(next((one for one in found if one[0] == socket.AF_INET), found[0])[4][0])
