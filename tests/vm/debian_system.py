"""A whole Debian system on a disk image, its packages installed by its own dpkg, for guests that start it.

Building it needs root, as its files belong to several users.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.image.cache import made_once
from ferrule.lab.vm.image.commands import run
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.image.tree import fetch_tree
from root_directory import run_in_root

_ESSENTIAL = (
    *("base-files", "base-passwd", "bash", "bsdutils", "coreutils", "dash", "debianutils", "diffutils", "dpkg"),
    *("findutils", "grep", "gzip", "hostname", "init-system-helpers", "libc-bin", "login", "mount", "ncurses-base"),
    *("ncurses-bin", "passwd", "perl-base", "sed", "sysvinit-utils", "tar", "util-linux", "e2fsprogs", "gawk"),
    *("systemd-sysv", "udev", "apt", "kmod"),
)
_SIZE = "6G"
"""Of the file system; the image takes only what is in it."""
_SECONDS = 1800

_INSTALL = """
export DEBIAN_FRONTEND=noninteractive INITRD=No
for name in passwd group; do cp /usr/share/base-passwd/$name.master /etc/$name; done
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d  # no service starts here
chmod 755 /usr/sbin/policy-rc.d
dpkg --force-depends --unpack {debs}/*.deb > /tmp/said 2>&1 || {{ tail -n 30 /tmp/said; exit 1; }}
dpkg --configure --pending > /tmp/said 2>&1 || {{ tail -n 30 /tmp/said; exit 1; }}
rm /usr/sbin/policy-rc.d /tmp/said
cp /var/lib/dpkg/status {made}/status
mkdir /tmp/all
mount --bind / /tmp/all  # without what is mounted into it
mke2fs -q -t ext4 -d /tmp/all {made}/disk {size}
for path in {shown} /tmp/all; do debugfs -w -R "rmdir \"$path\"" {made}/disk; done
"""


@dataclass(frozen=True)
class System:
    """``image``: of its disk; `copy` it, as a guest changes it. ``status``: dpkg's list of what is installed."""

    image: Path
    status: Path

    def copy(self, to: Path) -> Path:
        run(["cp", "--sparse=always", self.image, to], timeout=_SECONDS, what="copy the disk of a system")
        return to


def make_system(archive: Archive, packages: Sequence[str], cache: Path) -> System:
    """Debian with ``packages``, systemd and apt; made below ``cache`` on the first call. Raises `LabError` where that
    fails, or without root."""
    names = sorted({*_ESSENTIAL, *packages})
    made = cache / f"system-{hashlib.sha256(' '.join([*names, _INSTALL]).encode()).hexdigest()[:12]}"
    if not made.exists() and os.geteuid() != 0:
        raise LabError("a system with the files of several users is made by root: run this as root once")
    tree = fetch_tree(archive, _ESSENTIAL, cache)

    def make(target: Path) -> None:
        debs = target / "debs"
        debs.mkdir()
        archive.fetch_with_dependencies(names, debs)
        # Directories that are there only for `target` to be shown in, the deepest first.
        shown = [path for path in (target, *target.parents) if not (tree.root / path.relative_to("/")).exists()]
        script = _INSTALL.format(
            debs=shlex.quote(str(debs)),
            made=shlex.quote(str(target)),
            size=_SIZE,
            shown=shlex.join(str(path) for path in shown),
        )
        run_in_root(tree, script, [target], timeout=_SECONDS, what="make a Debian system")
        run(["rm", "-r", debs], timeout=60, what="remove packages")

    made_once(made, make, timeout=2 * _SECONDS)
    return System(made / "disk", made / "status")
