"""The program that holds another one and all that it starts: ``python -m ferrule.process.guarded COMMAND…``.

Its standard input is a pipe, of which the starter has the other end: when that ends, however the starter died, the
command ends, with its children, also such that have detached themselves (on Linux). It ends with the command's status.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from ferrule.process.orphans import adopt_orphans, kill_orphans, reap_orphans
from ferrule.process.system import exit_fd, has_exited, signal_group
from ferrule.process.tied import tied

GUARDED = ("-m", "ferrule.process.guarded")
"""Of Python's command line: this program."""
_GRACE_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_REAP_SECONDS = 5.0


def guarded(command: Sequence[str]) -> list[str]:
    """``command`` under this program, to be started with a pipe as standard input, and not tied to its starter: it
    ends by itself when the pipe does, and cleans up."""
    return [sys.executable, *GUARDED, *command]


def main(command: Sequence[str]) -> int:
    adopt_orphans()
    signal.signal(signal.SIGTERM, _hang_up)
    # In this process's group, so that whoever ends the group ends it, too.
    held = subprocess.Popen(tied(command), stdin=subprocess.DEVNULL)
    watch = exit_fd(held.pid)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    if watch is not None:
        poller.register(watch, select.POLLIN)
    seconds = _LOOK_SECONDS if watch is None else _REAP_SECONDS
    while not has_exited(held):
        reap_orphans(held.pid)
        if 0 in dict(poller.poll(seconds * 1000)) and not _starter_lives():
            break
    return _end(held)


def _hang_up(*_: object) -> None:
    """As if the starter were gone."""
    with suppress(OSError):
        os.close(0)


def _starter_lives() -> bool:
    try:
        return bool(os.read(0, 1 << 12))
    except OSError:
        return False


def _end(held: subprocess.Popen[bytes]) -> int:
    held.terminate()
    try:
        code = held.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        held.kill()
        code = held.wait()
    kill_orphans()
    if os.getpgrp() == os.getpid():  # elsewhere than on Linux, its children that have not detached themselves
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal_group(os.getpid(), signal.SIGTERM)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
