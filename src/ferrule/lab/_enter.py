"""Runs in a process before its program: enter a host of a lab, become the program.

This is a program of its own for the reasons that `ferrule.tied` gives, and like it imports nothing of Ferrule.
Arguments: the path of the network namespace, then the command.
"""

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, doing: str) -> None:
    if result != 0:
        sys.exit(f"ferrule: cannot {doing}: {os.strerror(ctypes.get_errno())}")


def show_own_interfaces() -> None:
    """/sys/class/net shows the interfaces of the namespace in which /sys was mounted: mount it anew."""
    check(libc.unshare(CLONE_NEWNS), "make a mount namespace")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "keep mounts private")
    try:
        cgroups = os.open("/sys/fs/cgroup", os.O_PATH)
    except FileNotFoundError:
        cgroups = None
    check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None), "mount /sys")
    if cgroups is not None:
        old = f"/proc/self/fd/{cgroups}".encode()
        check(libc.mount(old, b"/sys/fs/cgroup", None, MS_BIND | MS_REC, None), "mount /sys/fs/cgroup")
        os.close(cgroups)


def main(arguments: list[str]) -> None:
    namespace, command = arguments[0], arguments[1:]
    try:
        fd = os.open(namespace, os.O_RDONLY)
    except OSError as error:
        sys.exit(f"ferrule: there is no lab host at {namespace} ({error.strerror}); has its lab ended?")
    check(libc.setns(fd, CLONE_NEWNET), "enter the lab host")
    os.close(fd)
    show_own_interfaces()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"ferrule: cannot run {command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
