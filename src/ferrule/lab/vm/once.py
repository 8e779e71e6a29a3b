"""Commands on labs of virtual machines: on one that is up, or on one that lives as long as the command."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from ferrule.errors import ConfigError, FerruleError, GuestError
from ferrule.hardware import find_lab
from ferrule.lab.daemon import registry
from ferrule.lab.vm import control
from ferrule.lab.vm.command import Job, job
from ferrule.lab.vm.control import Borrowed
from ferrule.lab.vm.joined import JoinedGuests
from ferrule.lab.vm.machine.guest import tail
from ferrule.lab.vm.machine.session import Session, SessionLost, SessionTimeout
from ferrule.lab.vm.machine.terminal import interact
from ferrule.lab.vm.options import VmOptions
from ferrule.lab.vm.wiring import Wiring, wire

BOOT_SECONDS = 360.0
"""For a kernel that checks itself, on a machine with other work; stock ones take ten seconds."""
_LISTEN_SECONDS = 30
_LEAVE_SECONDS = 10.0
READY = b"lab: listens."
"""Not a line: the end of one may be held back until more comes."""


@dataclass(frozen=True)
class Place:
    """A lab in which commands run. ``borrow``: a session of one of its guests, with a terminal if asked for;
    ``console``: what a guest has said."""

    wiring: Wiring
    borrow: Callable[[str, bool], AbstractContextManager[Borrowed]]
    console: Callable[[str], str]

    def host(self, name: str | None) -> str:
        """This host, or the first. Raises `ConfigError`."""
        if name is not None and name not in self.wiring.hosts:
            raise ConfigError(f"the lab has no host {name!r}, only {', '.join(self.wiring.hosts)}")
        return name or self.wiring.hosts[0]


def find(name_or_file: str) -> str | None:
    """The name of the lab that is up and is called so, or made of this profile. Raises `ConfigError` for neither."""
    with suppress(ConfigError):  # a file's path cannot name a lab
        if control.is_up(registry.check_name(name_or_file)):
            return name_or_file
    name = find_lab(name_or_file).name
    return name if control.is_up(name) else None


@contextmanager
def place(name_or_file: str, options: VmOptions) -> Iterator[Place]:
    """The lab that is up, or one that ends with the block."""
    name = find(name_or_file)
    if name is not None:
        wiring = wire(find_lab(control.status(name).profile))
        yield Place(
            wiring,
            lambda host, terminal: control.borrow(name, host, terminal=terminal),
            lambda host: control.console(name, host),
        )
        return
    with options.joined(find_lab(name_or_file)) as guests:
        yield Place(guests.wiring, partial(_own_session, guests), lambda host: guests[host].console())


@contextmanager
def _own_session(guests: JoinedGuests, host: str, terminal: bool) -> Iterator[Borrowed]:
    guest = guests[host]
    number = guest.take_session(_LEAVE_SECONDS)
    session = Session(*guest.sockets(number))
    yield Borrowed(session, guest.terminal(0) if terminal else None, 0 if terminal else None)
    if session.busy:
        guest.reset_session(number)
    else:
        guest.free_session(number)


def run(
    name_or_file: str,
    options: VmOptions,
    command: Sequence[str],
    *,
    on: str | None = None,
    peer_command: str = "",
    timeout: float = 600,
    wait: bool = True,
) -> int:
    """The exit status of a command on a host of a lab; see `ferrule.lab.vm.command.job` for what it may leave out.

    What it writes goes to this process's output and errors, what its peer writes to its errors. ``timeout`` in seconds
    counts from when the host's cables are up (``wait``). Raises `GuestError` when it takes longer.
    """
    with ExitStack() as held:
        where = held.enter_context(place(name_or_file, options))
        host = where.host(on)
        wanted = job(command, host, where.wiring, peer_command)
        with where.borrow(host, False) as here, _explained(where, host):
            _ready(here.session, host, wait)
            if wanted.peer_script:
                held.enter_context(_peer(where, wanted, timeout))
            try:
                return here.session.run(_with_env(wanted, wanted.script), timeout, _write(1), _write(2))
            except SessionTimeout:
                raise GuestError(f"{host}: {wanted.script!r} took longer than {timeout:g} s") from None


def shell(name_or_file: str, on: str | None, command: Sequence[str]) -> int:
    """A command on a console of a host, joined with this process's terminal; its exit status."""
    with place(name_or_file, VmOptions()) as where:
        host = where.host(on)
        with where.borrow(host, True) as here, _explained(where, host):
            assert here.terminal is not None
            assert here.number is not None
            _ready(here.session, host, False)
            return interact(
                here.session, here.terminal, here.number, command, _with_env(job([], host, where.wiring), "")
            )


@contextmanager
def _explained(where: Place, host: str) -> Iterator[None]:
    """A guest that goes down says why on its console: a module that cannot be loaded, a panic."""
    try:
        yield
    except SessionLost:
        said = where.console(host)
        raise GuestError(f"{host} went down; the last lines of its console:\n{tail(said)}", console=said) from None


def _ready(session: Session, host: str, cables: bool) -> None:
    """Wait until the host is up, and its cables, too."""
    said: list[bytes] = []
    command = f"lab-cables up all {BOOT_SECONDS / 2:.0f}" if cables else ":"
    try:
        status = session.run(command, BOOT_SECONDS, said.append, said.append)
    except SessionTimeout:
        raise GuestError(f"{host} did not come up within {BOOT_SECONDS:g} s") from None
    if status != 0:
        text = b"".join(said).decode(errors="replace").strip()
        raise GuestError(f"{host}: {text} (--no-wait runs the command all the same)")


@contextmanager
def _peer(where: Place, wanted: Job, timeout: float) -> Iterator[None]:
    """Run the peer's command from when it listens until it ends or, some seconds after the block, is ended."""
    listens = threading.Event()
    ended: list[int | FerruleError] = []

    def hear(data: bytes) -> None:
        if not listens.is_set():
            data, ready = without_ready(data)
            if ready:
                listens.set()
        _write(2)(data)

    def serve(session: Session) -> None:
        try:
            ended.append(session.run(_with_env(wanted, _serve(wanted.peer_script)), timeout, hear, _write(2)))
        except FerruleError as error:
            ended.append(error)
        listens.set()

    with where.borrow(wanted.peer, False) as there:
        thread = threading.Thread(target=serve, args=(there.session,), daemon=True)
        thread.start()
        listens.wait(BOOT_SECONDS)
        if ended and ended[0] != 0:
            raise GuestError(f"{wanted.peer}: {wanted.peer_script!r} ended with {ended[0]}")
        try:
            yield
        finally:
            thread.join(_LEAVE_SECONDS)
            there.session.cancel()
            thread.join(_LEAVE_SECONDS)


def without_ready(data: bytes) -> tuple[bytes, bool]:
    """Peer command's output without `READY`, and whether that was in it: behind a line of its own, or its newline."""
    return data.replace(READY, b"", 1), READY in data


def _serve(command: str) -> str:
    """Runs ``command``, and says so when a socket listens that did not before, or some seconds are over."""
    return f"""
        sockets() {{ cat /proc/net/{{tcp,tcp6,udp,udp6}} 2> /dev/null | grep -cE ' (0A|07) '; }}
        before=$(sockets)
        {{ {command}
        }} &
        end=$((SECONDS + {_LISTEN_SECONDS}))
        until [ "$(sockets)" -gt "$before" ] || [ $SECONDS -ge $end ] || ! kill -0 $! 2> /dev/null; do sleep 0.1; done
        printf %s {shlex.quote(READY.decode())}
        wait $!
    """


def _with_env(wanted: Job, script: str) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in wanted.env.items()]
    return "\n".join([*lines, script])


def _write(descriptor: int) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    return write
