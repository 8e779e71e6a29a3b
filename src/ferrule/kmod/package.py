"""``ferrule-rdma-dkms_VERSION_all.deb``: the same bytes from the same source, and without root."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ferrule.errors import DriverError
from ferrule.kmod.files import LOAD, LOAD_TEXT, OPTIONS, OPTIONS_MODE, OPTIONS_TEXT
from ferrule.kmod.machine import as_driver_error
from ferrule.kmod.record import PLACE
from ferrule.kmod.source import PACKAGE, Source
from ferrule.links.doctor.fix.machine import run_here

_SECONDS = 60
_EPOCH = 1767225600
"""The time of everything in it (2026-01-01), unless SOURCE_DATE_EPOCH says another one."""

_CONTROL = """\
Package: {name}
Version: {version}
Section: kernel
Priority: optional
Architecture: all
Maintainer: The Ferrule authors <ferrule@localhost>
Installed-Size: {size}
Depends: dkms (>= 2.8), make, gcc | c-compiler
Recommends: rdma-core, ibverbs-providers
Suggests: mokutil
Description: RDMA over USB4 cables: kernel module, built by DKMS
 ferrule_rdma makes a USB4 or Thunderbolt cable between two machines an RDMA
 device, which programs use through libibverbs as they use an InfiniBand card.
 .
 DKMS builds it for every kernel whose headers are installed.
"""

_COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ferrule

Files: *
Copyright: 2026 The Ferrule authors
License: GPL-2
 This program is free software; you can redistribute it and/or modify it under
 the terms of the GNU General Public License, version 2, as published by the
 Free Software Foundation.
 .
 It is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY;
 without even the implied warranty of MERCHANTABILITY or FITNESS FOR A
 PARTICULAR PURPOSE.
 .
 On Debian systems the full text of the license is in
 /usr/share/common-licenses/GPL-2.
"""

_CHANGELOG = """\
{name} ({version}) unstable; urgency=medium

  * See CHANGELOG.md of Ferrule.

 -- The Ferrule authors <ferrule@localhost>  Thu, 01 Jan 2026 00:00:00 +0000
"""

_OVERRIDES = """\
# The project has no address that mail could go to.
{name}: bogus-mail-host Maintainer ferrule@localhost
{name}: bogus-mail-host-in-debian-changelog ferrule@localhost *
# The key that both machines prove to know stands in it.
{name}: non-standard-file-perm 0600 != 0644 [{options}]
"""
"""Lintian overrides: messages of lintian(1) on what is meant so."""

_POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    # A version whose removal was cut short would stand in the way.
    if [ -n "$2" ] && [ "$2" != {version} ] && [ -e "/var/lib/dkms/{source}/$2" ]; then
        dkms remove -m {source} -v "$2" --all || true
    fi
    /usr/lib/dkms/common.postinst {source} {version} /usr/share/{name} "" "$2"
    # Where no USB4 controller is, or a key has to be enrolled first, that is no fault of the package.
    if [ -d /run/systemd/system ] && ! modprobe -q ferrule_rdma; then
        echo "ferrule_rdma is not loaded; \\`ferrule driver status\\` and \\`dmesg\\` say why"
    fi
fi
exit 0
"""

_PREINST = """\
#!/bin/sh
set -e
if [ "$1" = install ] && [ -e {record} ]; then
    echo "the driver was installed by Ferrule; take that away first: sudo ferrule driver uninstall" >&2
    exit 1
fi
exit 0
"""

_PRERM = """\
#!/bin/sh
set -e
case "$1" in
remove | upgrade | deconfigure)
    if [ -d /run/systemd/system ]; then
        modprobe -q -r ferrule_rdma || echo "ferrule_rdma is in use; it stays loaded until the next start"
    fi
    if [ -n "$(dkms status -m {source} -v {version})" ]; then
        dkms remove -m {source} -v {version} --all
    fi
    ;;
esac
exit 0
"""


def build_deb(source: Source, directory: Path) -> Path:
    """Write the package into ``directory``; gives its path. Raises `DriverError` where there is no `dpkg-deb`."""
    if shutil.which("dpkg-deb") is None:
        raise DriverError(
            "building a .deb needs the program dpkg-deb; on Debian and Ubuntu it is there, else install dpkg"
        )
    name = f"{PACKAGE}-dkms"
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _EPOCH)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{name}_{source.version}_all.deb"
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        for path, (data, mode) in _contents(source, name).items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(mode)
        for place in (root, *root.rglob("*")):
            if place.is_dir():
                place.chmod(0o755)
            os.utime(place, (epoch, epoch))
        _dpkg_deb(root, file, epoch)
    return file


def _contents(source: Source, name: str) -> Mapping[str, tuple[bytes, int]]:
    """Bytes and mode of each file, by its path in the package."""
    fields = {"name": name, "source": PACKAGE, "version": source.version}
    installed = {f"usr/src/{PACKAGE}-{source.version}/{path}": data for path, data in source.tree.items()}
    installed |= {OPTIONS[1:]: OPTIONS_TEXT.encode(), f"usr/lib{LOAD.removeprefix('/etc')}": LOAD_TEXT.encode()}
    documents = f"usr/share/doc/{name}"
    installed[f"{documents}/copyright"] = _COPYRIGHT.encode()
    installed[f"{documents}/changelog.gz"] = gzip.compress(_CHANGELOG.format(**fields).encode(), 9, mtime=0)
    installed[f"usr/share/lintian/overrides/{name}"] = _OVERRIDES.format(name=name, options=OPTIONS[1:]).encode()
    size = sum(len(data) + 1023 >> 10 for data in installed.values())
    control = {
        "DEBIAN/control": (_CONTROL.format(**fields, size=size), 0o644),
        "DEBIAN/conffiles": (f"{OPTIONS}\n", 0o644),
        "DEBIAN/preinst": (_PREINST.format(record=PLACE), 0o755),
        "DEBIAN/postinst": (_POSTINST.format(**fields), 0o755),
        "DEBIAN/prerm": (_PRERM.format(**fields), 0o755),
        "DEBIAN/md5sums": (_sums(installed), 0o644),
    }
    return {
        **{path: (data, OPTIONS_MODE if f"/{path}" == OPTIONS else 0o644) for path, data in installed.items()},
        **{path: (text.encode(), mode) for path, (text, mode) in control.items()},
    }


def _sums(files: Mapping[str, bytes]) -> str:
    """dpkg(1) --verify reads them."""
    sums = {path: hashlib.md5(data, usedforsecurity=False).hexdigest() for path, data in files.items()}
    return "".join(f"{one}  {path}\n" for path, one in sorted(sums.items()) if f"/{path}" != OPTIONS)


def _dpkg_deb(root: Path, file: Path, epoch: int) -> None:
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(file)]
    with as_driver_error():
        code, told = run_here(command, _SECONDS, {"SOURCE_DATE_EPOCH": str(epoch)})
    if code != 0:
        raise DriverError(f"dpkg-deb could not build {file}: {told or code}")
