"""Run iproute2's ``ip`` inside a namespace of ours, many commands in one process.

So a lab needs the program and not pyroute2, whose import alone takes longer than all of its commands do here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from ferrule.errors import LabError
from ferrule.lab.netns.namespace import Namespace

_SECONDS = 20.0


def batch(namespace: Namespace, lines: Sequence[str]) -> None:
    """Run the lines in order; the first that fails ends it with a `LabError` that quotes it."""
    program = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or shutil.which("ip")
    if program is None:
        raise LabError("there is no `ip` on this machine; install iproute2 (apt install iproute2)")
    with namespace.entered():
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
    if done.returncode != 0:
        raise LabError(f"`ip` failed: {done.stderr.strip()} (of: {'; '.join(lines)})")
