"""A guest with a whole Debian installs the driver's package: DKMS compiles, signs and loads it there, again for a newer
kernel that is installed later, and nothing is left of it after a purge."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from debian_system import make_system

from ferrule.kmod import build_deb, read_source
from ferrule.lab.vm import Guest, Result, VmLab, complaints
from ferrule.lab.vm.image.cache import default_cache
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.image.sources import base_suite, host_release, host_sources, newest_suite, suite_sources

pytestmark = [pytest.mark.soak, pytest.mark.vm]

DEADLINE = 4 * 3600
"""Seconds for the first boot, which compiles the module twice."""

PACKAGES = (
    "dkms",
    "gcc",
    "make",
    "openssl",
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "linux-image-amd64",
    "linux-headers-amd64",
)
NEWER = ("linux-image-amd64", "linux-headers-amd64")

USE = """
device() {  # what programs see, and that it was signed here
    udevadm settle
    cat /sys/module/ferrule_rdma/version > $results/version
    ibv_devinfo > $results/devinfo
    modinfo ferrule_rdma > $results/modinfo
    modinfo -n ferrule_rdma >> $results/modinfo
    dkms status > $results/dkms
    dmesg > $results/dmesg
}
step() { echo "$(cut -d' ' -f1 /proc/uptime) $*" | tee -a $results/steps; }
export DEBIAN_FRONTEND=noninteractive INITRD=No  # the lab brings what a machine boots from
results=/run/results
set -e
step up
"""
INSTALL = f"""{USE}
apt-get install --yes /run/lab/ferrule-rdma-dkms.deb
step installed
lsmod | grep ferrule_rdma  # its script has loaded it
echo 'options ferrule_rdma loopback=1' >> /etc/modprobe.d/ferrule-rdma.conf
modprobe -r ferrule_rdma
modprobe ferrule_rdma
device
apt-get install --yes /run/lab/kernel/*.deb
step newer kernel
dkms status > $results/dkms
"""
AFTER = f"""{USE}
device  # loaded by the system's start alone
apt-get purge --yes ferrule-rdma-dkms
step purged
if lsmod | grep ferrule_rdma; then exit 1; fi
find / -xdev '(' -name '*ferrule*' -o -path '/var/lib/dkms/ferrule*' ')' -print > $results/left
"""


def archive(suite: str) -> Archive:
    sources = suite_sources(suite, host_sources(), host_release())
    return Archive(default_cache() / suite / "apt", suite, sources)


def sees_the_device(result: Result, release: str) -> None:
    files = {name: data.decode() for name, data in result.files.items()}
    version = read_source().version
    assert files["version"].strip() == version
    assert "hca_id:\tferrule0" in files["devinfo"]
    assert "PORT_ACTIVE" in files["devinfo"]
    assert re.search(rf"^vermagic: +{re.escape(release)} ", files["modinfo"], re.MULTILINE)
    assert f"/lib/modules/{release}/updates/dkms/ferrule_rdma.ko" in files["modinfo"]
    assert "sig_id:" in files["modinfo"]
    assert re.search(rf"^ferrule-rdma/{version}, {re.escape(release)}, x86_64: installed", files["dkms"], re.MULTILINE)
    assert not complaints(files["dmesg"]), files["dmesg"]


def test_a_guest_installs_the_package_and_takes_it_to_a_newer_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = newest_suite(host_release())
    base = base_suite(newest)
    first, second = (VmLab(suite=suite).kernel.release for suite in (base, newest))
    system = make_system(archive(base), PACKAGES, default_cache() / base)
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    archive(newest).fetch_with_dependencies(NEWER, kernel, status=system.status)
    disk = system.copy(tmp_path / "disk")
    deb = build_deb(read_source(), tmp_path)
    files = {f"/lab/kernel/{path.name}": path for path in kernel.glob("*.deb")}
    steps = []

    def boots(suite: str, script: str) -> Result:
        guest = Guest(
            script=script, disk=disk, memory_mb=4096, files={"/lab/ferrule-rdma-dkms.deb": deb, **files}, name="debian"
        )
        result = VmLab(suite=suite).run(guest, DEADLINE).check()
        steps.append(result.files["steps"].decode())
        return result

    before = boots(base, INSTALL)
    sees_the_device(before, first)
    assert f"{second}, x86_64: installed" in before.files["dkms"].decode()
    files.clear()
    after = boots(newest, AFTER)
    sees_the_device(after, second)
    assert after.files["left"] == b""
    with capsys.disabled():
        print("\n" + "\n".join(steps))  # noqa: T201
