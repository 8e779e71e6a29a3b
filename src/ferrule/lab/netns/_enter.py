"""Runs in a process before its program: enter a host of a lab, become the program.

This is a program of its own for the reasons that `ferrule.process.tied` gives, and like it imports nothing of Ferrule.
Arguments: the path of the network namespace, then the command. Before them may be ``--user PATH`` (the user namespace
to which that belongs), ``--name NAME`` (what the host calls itself), ``--hosts FILE`` (its /etc/hosts) and
``--group PATH`` (the control group that holds its programs to its cores).
"""

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, doing: str) -> None:
    if result != 0:
        sys.exit(f"ferrule: cannot {doing}: {os.strerror(ctypes.get_errno())}")


def enter(path: str, kind: int) -> None:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        sys.exit(f"ferrule: there is no lab host at {path} ({error.strerror}); has its lab ended?")
    check(libc.setns(fd, kind), "enter the lab host")
    os.close(fd)


def enter_user(path: str) -> None:
    """Unless this process is in it already."""
    if not os.path.samefile(path, "/proc/self/ns/user"):  # noqa: PTH121 - pathlib takes longer to import
        enter(path, CLONE_NEWUSER)


def enter_group(path: str) -> None:
    try:
        with open(f"{path}/cgroup.procs", "w") as file:  # noqa: PTH123 - pathlib takes longer to import
            file.write(str(os.getpid()))
    except OSError as error:
        sys.exit(f"ferrule: cannot enter the control group of the lab host at {path} ({error.strerror})")


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
    options = {}
    while arguments[0].startswith("--"):
        options[arguments[0]] = arguments[1]
        arguments = arguments[2:]
    namespace, command = arguments[0], arguments[1:]
    if "--group" in options:
        enter_group(options["--group"])
    if "--user" in options:
        enter_user(options["--user"])
    enter(namespace, CLONE_NEWNET)
    show_own_interfaces()
    if "--hosts" in options:
        check(libc.mount(options["--hosts"].encode(), b"/etc/hosts", None, MS_BIND, None), "mount /etc/hosts")
    if "--name" in options:
        name = options["--name"].encode()
        check(libc.unshare(CLONE_NEWUTS) or libc.sethostname(name, len(name)), "name the lab host")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"ferrule: cannot run {command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
