"""The driver's package in a root directory of Debian, and what the kernel's own tools say of its source.

The kernels' headers, compiler, dpkg and DKMS are real; a guest with these kernels loads what came
out by hand (`-m soak`).
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from ferrule.kmod import PACKAGE, build_deb, read_source
from ferrule.lab.vm import Guest, VmLab
from ferrule.lab.vm.image.cache import default_cache, made_once
from ferrule.lab.vm.image.packages import Archive
from ferrule.lab.vm.image.sources import base_suite, host_release, host_sources, newest_suite, suite_sources
from ferrule.lab.vm.image.tree import fetch_tree
from root_directory import run_in_root

DEADLINE = 1500
"""Seconds for what takes 40 of a processor."""

TOOLS = (
    *("dkms", "dpkg", "make", "libc6-dev", "libc-bin", "xz-utils", "kmod", "coreutils", "bash", "dash", "sed", "gawk"),
    *("grep", "findutils", "perl-base", "diffutils", "util-linux", "openssl", "patch", "tar", "gzip", "sparse"),
)

SCRIPT = """
keep() {
    cat /var/lib/dkms/*/*/"$1"/*/log/make.log > "$RESULTS/log-$1"
    mkdir "$RESULTS/$1"
    cp /lib/modules/$1/updates/dkms/ferrule_rdma.ko* "$RESULTS/$1"
    if [ -e "$RESULTS/$1/ferrule_rdma.ko.xz" ]; then xz -d "$RESULTS/$1/ferrule_rdma.ko.xz"; fi
}
boot() {  # a kernel with its headers, as its packages leave them; their hooks come after that
    mkdir -p /lib/modules/$1/kernel
    touch /lib/modules/$1/modules.order /lib/modules/$1/modules.builtin
    [ -e /lib/modules/$1/build ] || ln -s /usr/src/linux-headers-$1 /lib/modules/$1/build
}
hold() { mv /usr/src/linux-headers-$1 /usr/src/later; rm -rf /lib/modules/$1; }   # not there yet
installed() {
    dkms status -m PACKAGE -k "$1" | grep -q ": installed" && ls /lib/modules/$1/updates/dkms/ferrule_rdma.ko*
}

hold $SECOND; boot $FIRST
export KBUILD_EXTRA_WARN=1 KBUILD_CHECKSRC=1     # W=1, and sparse, which is too old for what is newer than 6.12
dpkg --force-depends --install $DEB
installed $FIRST
keep $FIRST
[ "$(cat /etc/modprobe.d/ferrule-rdma.conf | grep -c softdep)" = 1 ]
grep -q ferrule_rdma /usr/lib/modules-load.d/ferrule-rdma.conf

export KBUILD_CHECKSRC=0
mv /usr/src/later /usr/src/linux-headers-$SECOND; boot $SECOND
/etc/kernel/header_postinst.d/dkms $SECOND       # as dpkg calls it when a new kernel's headers come
installed $SECOND
keep $SECOND
/etc/kernel/prerm.d/dkms $FIRST                  # the old kernel goes
if installed $FIRST; then exit 1; fi
dpkg --verify PACKAGE-dkms
modinfo /lib/modules/$SECOND/updates/dkms/ferrule_rdma.ko* > $RESULTS/modinfo

dpkg --purge PACKAGE-dkms
find / -xdev '(' -name '*ferrule*' -o -path '/var/lib/dkms/ferrule*' ')' -not -path "$RESULTS*" -print > $RESULTS/left
"""


def archive(suite: str) -> Archive:
    release = host_release()
    return Archive(default_cache() / suite / "apt", suite, suite_sources(suite, host_sources(), release))


def headers(suite: str) -> str:
    """The package of the newest kernel's headers in ``suite``."""
    names = archive(suite).depends("linux-headers-amd64")
    return next(name for name in names if re.match(r"linux-headers-\d", name))


def through_dkms(results: Path) -> tuple[str, str]:
    """Run the script, which leaves what it says of itself in ``results``; gives the releases of the two kernels."""
    newest = newest_suite(host_release())
    kernels = [headers(base_suite(newest)), headers(newest)]
    compiler = next(name for name in archive(base_suite(newest)).depends("gcc") if re.fullmatch(r"gcc-\d+", name))
    directory = default_cache() / newest
    directory.mkdir(parents=True, exist_ok=True)
    tree = fetch_tree(archive(newest), [*TOOLS, compiler, *kernels], directory)
    deb = build_deb(read_source(), results)
    first, second = (name.removeprefix("linux-headers-") for name in kernels)
    variables = f"FIRST={first} SECOND={second} DEB={deb} RESULTS={results}\n"
    script = variables + SCRIPT.replace("PACKAGE", PACKAGE)
    run_in_root(tree, script, [results], timeout=DEADLINE, what="install the driver's package")
    return first, second


@pytest.mark.slow
def test_package_builds_cleanly_and_survives_a_kernel_change(tmp_path: Path) -> None:
    first, second = through_dkms(tmp_path)
    for kernel, checked in ((first, True), (second, False)):
        log = (tmp_path / f"log-{kernel}").read_text()
        assert ("CHECK" in log) is checked, "sparse looked"
        found = [line for line in log.splitlines() if re.search(r"\b(warning|error):", line)]
        assert not found, (kernel, found)
    about = (tmp_path / "modinfo").read_text()
    assert re.search(rf"^version: +{read_source().version}$", about, re.MULTILINE)
    assert re.search(rf"^vermagic: +{re.escape(second)} ", about, re.MULTILINE)
    assert "sig_id" in about, "DKMS signed it"
    assert (tmp_path / "left").read_text() == ""


IN_GUEST = """
set -e
rmmod ferrule_rdma; modprobe ferrule_rdma loopback=1
cat /sys/module/ferrule_rdma/version > /results/version
ibv_devinfo > /results/devinfo
rmmod ferrule_rdma
dmesg > /results/dmesg
"""


@pytest.mark.soak
@pytest.mark.vm
def test_both_kernels_load_what_dkms_built(tmp_path: Path) -> None:
    newest = newest_suite(host_release())
    for suite, release in zip((base_suite(newest), newest), through_dkms(tmp_path), strict=True):
        lab = VmLab(suite=suite)
        assert lab.kernel.release == release, f"the kernel in {default_cache() / suite} is an older one; remove it"
        guest = Guest(script=IN_GUEST, modules=["ib_uverbs", tmp_path / release / "ferrule_rdma.ko"])
        files = lab.run(guest, DEADLINE).check().files
        assert files["version"].decode().strip() == read_source().version
        assert b"hca_id:\tferrule0" in files["devinfo"]
        assert not re.search(rb"WARNING|BUG|Oops|Call Trace|disagrees about", files["dmesg"])


LINTIAN = ("lintian", "base-files", "dpkg", "libc-bin", "bash", "dash", "coreutils", "sed", "gawk", "grep", "findutils")


@pytest.mark.soak
def test_lintian_has_nothing_to_say(tmp_path: Path) -> None:
    suite = base_suite(newest_suite(host_release()))
    tree = fetch_tree(archive(suite), [*LINTIAN, "tar", "xz-utils", "gzip", "diffutils"], default_cache() / suite)
    deb = build_deb(read_source(), tmp_path)
    options = "--allow-root --quiet --display-info --display-experimental --pedantic --show-overrides"
    script = f"""
    ln -sf debian /etc/dpkg/origins/default  # as a package's script would
    lintian {options} {deb} > {tmp_path}/said 2>&1 || [ $? = 2 ]
    """
    run_in_root(tree, script, [tmp_path], timeout=DEADLINE, what="ask lintian")
    said = (tmp_path / "said").read_text().splitlines()
    overridden = [line for line in said if line.startswith("O: ")]
    assert len(overridden) == 3, said  # it has looked
    assert not [line for line in said if line[:3] not in ("O: ", "N: ") and line != "N:"], said


IGNORED = (
    *(
        "COMPLEX_MACRO",
        "MACRO_ARG_REUSE",
        "MACRO_ARG_UNUSED",
        "BRACKET_SPACE",
        "ASSIGN_IN_IF",
    ),  # lists in macros
    *("PREFER_KERNEL_TYPES", "BIT_MACRO"),  # wire.h is compiled in user space, too
    *("ALLOC_WITH_SIZEOF", "UNNECESSARY_PARENTHESES", "FILE_PATH_CHANGES"),  # 6.12 lacks the other; clearer with; git
)
TRACE_HEADER = ("PARENTHESIS_ALIGNMENT", "OPEN_ENDED_LINE", "TRAILING_SEMICOLON")
"""Types of checkpatch's findings that all headers of tracepoints have."""
CHECKPATCH = ("checkpatch.pl", "spelling.txt", "const_structs.checkpatch")


@pytest.mark.soak
def test_checkpatch_has_nothing_to_say() -> None:
    suite = newest_suite(host_release())
    series = re.sub(r"linux-headers-(\d+\.\d+).*", r"\1", headers(suite))

    def make(target: Path) -> None:
        """Out of a package of 150 MB, the first time."""
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            archive(suite).unpack([f"linux-source-{series}"], Path(scratch))
            wanted = {f"linux-source-{series}/scripts/{name}": name for name in CHECKPATCH}
            with tarfile.open(Path(scratch) / "usr" / "src" / f"linux-source-{series}.tar.xz", "r|xz") as source:
                for member in source:
                    content = source.extractfile(member) if member.name in wanted else None
                    if content is not None:
                        (target / wanted.pop(member.name)).write_bytes(content.read())
                    if not wanted:
                        return
        raise AssertionError(f"the source of {series} lacks {', '.join(wanted)}")

    place = made_once(default_cache() / suite / f"checkpatch-{series}", make)
    kernel = Path(__file__).parents[2] / "driver" / "kernel"
    files = sorted(kernel.rglob("*.[ch]"))
    words = ["perl", place / "checkpatch.pl", "--no-tree", "--strict", "--terse", "--show-types", "--no-summary"]
    traced = [path for path in files if path.name == "trace.h"]
    for ignored, some in ((IGNORED, [each for each in files if each not in traced]), (IGNORED + TRACE_HEADER, traced)):
        said = subprocess.run(
            [*words, "--ignore", ",".join(ignored), "--file", *some],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (said.stdout.strip(), said.stderr.strip()) == ("", "")
    assert len(files) > 15
    assert traced
