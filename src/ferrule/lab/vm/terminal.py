"""Join this terminal with a console of a guest."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import socket
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ferrule.lab.vm.session import Session

_MOST_SECONDS = 30 * 24 * 3600.0
_LOOK_SECONDS = 0.1
_CHUNK = 1 << 16


def interact(session: Session, terminal: socket.socket, number: int, command: Sequence[str], env: str) -> int:
    """Run ``command`` on the guest's console hvc ``number`` and join that with this process's terminal; returns its
    exit status. ``env``: bash lines before it."""
    device = f"/dev/hvc{number}"
    size = shutil.get_terminal_size()
    script = (
        f"stty sane rows {size.lines} cols {size.columns} < {device}\n"
        f"export TERM={shlex.quote(os.environ.get('TERM', 'dumb'))}\n{env}\n"
        f"exec {shlex.join(command)} <> {device} >&0 2>&0"
    )
    ended: list[int | BaseException] = []

    def run() -> None:
        try:
            ended.append(session.run(script, _MOST_SECONDS, _nowhere, _nowhere))
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            ended.append(error)

    running = threading.Thread(target=run, daemon=True)
    terminal.setblocking(False)
    with _raw():
        running.start()
        while running.is_alive():
            _pass_on(terminal)
        _pass_on(terminal)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def _pass_on(terminal: socket.socket) -> None:
    ready = select.select([0, terminal.fileno()], [], [], _LOOK_SECONDS)[0]
    if 0 in ready and (typed := os.read(0, _CHUNK)):
        terminal.setblocking(True)
        terminal.sendall(typed)
        terminal.setblocking(False)
    if terminal.fileno() in ready and (shown := terminal.recv(_CHUNK)):
        os.write(1, shown)


@contextmanager
def _raw() -> Iterator[None]:
    """Keys go to the guest as they are, Ctrl-C too."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _nowhere(_: bytes) -> None:
    """What comes another way than by the terminal."""
