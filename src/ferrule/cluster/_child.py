"""Runs in a rank's process before its program: tie its life to the launcher's, pin it, become the program.

This is a program of its own and not a hook run between fork and exec, because Python code there may deadlock
when the launcher has threads. It imports nothing of Ferrule so that it costs only some milliseconds.
Arguments: the launcher's process id, the CPUs to run on (``0,2`` or ``-`` for all), then the command.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    launcher, cpus, command = int(arguments[0]), arguments[1], arguments[2:]
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            sys.stderr.write("ferrule: cannot tie this rank to its launcher (prctl failed)\n")
            return 126
    # The launcher may have died before the kernel knew that we care: then our parent is somebody else by now.
    if os.getppid() != launcher:
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
