"""A supervisor that an agent starts for a launcher elsewhere. Argument: the descriptor of its connection to that.

What they say is sealed with the job's key, which both know from the cluster's and which never crosses the cable.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from ferrule.launch.pump import start_opening, start_sealing
from ferrule.launch.sealed import DOWN, UP, Opener, Sealer
from ferrule.launch.supervisor import Supervisor
from ferrule.process.orphans import adopt_orphans

_DRAIN_SECONDS = 5.0


def main(descriptor: int) -> int:
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    secret = os.environ["FERRULE_KEY"]
    with socket.socket(fileno=descriptor) as line:
        line.setblocking(True)
        line.set_inheritable(False)
        ends = (_address(line.getpeername()), _address(line.getsockname()))
        below, orders = os.pipe()
        told, above = os.pipe()
        start_opening(line, orders, Opener(secret, DOWN))
        sealing = start_sealing(told, line, Sealer(secret, UP))
        code = Supervisor(below, above, ends=ends).run()
        os.close(above)
        sealing.join(_DRAIN_SECONDS)
    return code


def _address(name: object) -> str:
    """Empty for a Unix socket."""
    return str(name[0]) if isinstance(name, tuple) else ""


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
