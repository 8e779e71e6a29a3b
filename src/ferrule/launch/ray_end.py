"""A supervisor on a node of Ray, behind an actor that carries what it and the launcher say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from ferrule.launch.places import SUPERVISOR

_CHUNK = 1 << 16
_DETACH = "import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\nos.execv(sys.argv[1], sys.argv[1:])"
"""Ray kills what its workers have started, with no time to clean up. The supervisor is no child of Ray's: it ends its
ranks when its input ends, which it does with the worker."""


class RayEnd:
    """One call at a time of each of its methods. ``address``: of this node."""

    def __init__(self, address: str) -> None:
        # Not `process.start`: its streams must be raw, and `_DETACH` is there for it to outlive this process.
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DETACH, sys.executable, *SUPERVISOR, address],
            env=ranks_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        streams = (self._supervisor.stdin, self._supervisor.stdout, self._supervisor.stderr)
        self._stdin, self._stdout, self._stderr = (stream for stream in streams if stream is not None)

    def ready(self) -> bool:
        """Whether it is there."""
        return self._supervisor.wait() == 0

    def write(self, data: bytes) -> None:
        """To the supervisor; nothing is the end."""
        if data:
            left = memoryview(data)
            while left:
                left = left[self._stdin.write(left) or 0 :]
        else:
            self._stdin.close()

    def read(self) -> bytes:
        """Next output of the supervisor; nothing at its end."""
        return os.read(self._stdout.fileno(), _CHUNK)

    def read_errors(self) -> bytes:
        """The same of its standard error."""
        return os.read(self._stderr.fileno(), _CHUNK)


def ranks_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """That of a Ray worker, without what Ray sets for its own tasks."""
    kept = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    theirs = {name for name in environ if name.startswith("RAY_") and name not in kept} | {"OMP_NUM_THREADS"}
    hidden = {name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if not environ.get(name)}
    return {name: value for name, value in environ.items() if name not in theirs | hidden}
