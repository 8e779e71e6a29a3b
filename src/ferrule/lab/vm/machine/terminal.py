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
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ferrule.lab.vm.machine.session import Session, nowhere

_MOST_SECONDS = 30 * 24 * 3600.0
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_END_OF_INPUT = b"\x04"  # Ctrl-D
_CHUNK_BYTES = 1 << 16


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
            ended.append(session.run(script, _MOST_SECONDS, nowhere, nowhere))
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            ended.append(error)

    running = threading.Thread(target=run, daemon=True)
    terminal.setblocking(False)
    ends = [0, terminal.fileno()]
    told = 0.0
    with _raw():
        running.start()
        while running.is_alive():
            if not _pass_on(terminal, ends):
                ends = [terminal.fileno()]
            if 0 not in ends and time.monotonic() - told > _AGAIN_SECONDS:
                told = time.monotonic()
                _send(terminal, _END_OF_INPUT)  # a program that has just begun may have missed the first one
        _pass_on(terminal, [terminal.fileno()])
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def _pass_on(terminal: socket.socket, ends: Sequence[int]) -> bool:
    """Pass on what is there to read from ``ends``; False at the end of the input."""
    ready = select.select(ends, [], [], _LOOK_SECONDS)[0]
    typed = os.read(0, _CHUNK_BYTES) if 0 in ready else b""
    if typed:
        _send(terminal, typed)
    with suppress(ConnectionError):  # a guest that has gone: the session says so
        if terminal.fileno() in ready and (shown := terminal.recv(_CHUNK_BYTES)):
            os.write(1, shown)
    return bool(typed) or 0 not in ready


def _send(terminal: socket.socket, data: bytes) -> None:
    terminal.setblocking(True)
    with suppress(ConnectionError):
        terminal.sendall(data)
    terminal.setblocking(False)


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
