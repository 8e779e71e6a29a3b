"""Tie a process's life to its parent's: `tied` gives the command that does it, and this file is the program it names.

It is a program of its own and not a hook run between fork and exec, because Python code there may deadlock
when the parent has threads. It imports nothing of Ferrule so that it costs only some milliseconds.
Arguments: the parent's process id, the CPUs to run on (``0,2`` or ``-`` for all), then the command.
"""

import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tied(command: Sequence[str], cpus: Sequence[int] | None = None) -> list[str]:
    """``command`` so that the kernel kills it when this process dies, however it dies (on Linux).

    More exactly: when the *thread* that starts it ends. ``cpus``: what it may run on; None: all.
    """
    allowed = "-" if cpus is None else ",".join(str(cpu) for cpu in cpus)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), allowed, *command]


def main(arguments: list[str]) -> int:
    parent, cpus, command = int(arguments[0]), arguments[1], arguments[2:]
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            sys.stderr.write("ferrule: cannot tie this process to its parent (prctl failed)\n")
            return 126
    # The parent may have died before the kernel knew of the request: then this process has another parent by now.
    if os.getppid() != parent:
        return 126
    if cpus != "-":
        if not hasattr(os, "sched_setaffinity"):
            sys.stderr.write("ferrule: this system cannot pin a process to CPUs\n")
            return 126
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"ferrule: cannot run {command[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
