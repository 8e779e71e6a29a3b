"""A root directory out of packages, in which scripts run as root and change what they like: it forgets all of it.

For what installs itself into a system: packages with their scripts, DKMS. The kernel is this host's, and modules cannot
be loaded; for that there are guests.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.image.commands import missing, run
from ferrule.lab.vm.image.tree import Tree

_SETUP = """
set -e
mount -t tmpfs none {scratch}
mkdir {scratch}/up {scratch}/work {scratch}/root
mount -t overlay overlay -o lowerdir={tree},upperdir={scratch}/up,workdir={scratch}/work {scratch}/root
cd {scratch}/root
for path in /dev /proc {shown}; do
    mkdir -p ".$path"
    mount --rbind "$path" ".$path"
done
mkdir -p tmp var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers
touch var/lib/dpkg/status var/lib/dpkg/available
[ -e usr/bin/awk ] || [ ! -e usr/bin/gawk ] || ln -s gawk usr/bin/awk  # as a package's script would
exec chroot . env -i PATH=/usr/sbin:/usr/bin LC_ALL=C TMPDIR=/tmp bash -c {script}
"""


def run_in_root(tree: Tree, script: str, shown: Sequence[Path] = (), *, timeout: float, what: str) -> str:
    """Output of the bash ``script``, in a copy of ``tree`` that is gone when it ends. The directories ``shown`` have
    their own paths there, and what it writes to them stays; dpkg knows of no package.

    Raises `LabError` with its last words if it fails, or if this process may not change its root directory.
    """
    lacking = missing(["unshare", "chroot", "mount", "bash"])
    if lacking:
        raise LabError(f"{what}: the host lacks {', '.join(lacking)}")
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    with tempfile.TemporaryDirectory() as scratch:
        setup = _SETUP.format(
            scratch=shlex.quote(scratch),
            tree=shlex.quote(str(tree.root)),
            shown=shlex.join(str(path) for path in shown),
            script=shlex.quote(f"set -e\n{script}"),
        )
        # Processes of its own, so that all of them end with the first one, which ends with us.
        command = ["unshare", *rights, "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", setup]
        return run(command, timeout=timeout, what=what)
