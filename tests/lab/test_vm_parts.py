"""The parts of the VM lab that need no virtual machine: formats, dependencies, apt's sources, the cache."""

from __future__ import annotations

import io
import lzma
import stat
import struct
import sys
import threading
from pathlib import Path

import pytest

from ferrule.errors import LabError
from ferrule.lab.vm.image.cache import locked, made_once
from ferrule.lab.vm.image.cpio import CpioWriter
from ferrule.lab.vm.image.elf import parse_elf, read_elf
from ferrule.lab.vm.image.python import package, standard_library
from ferrule.lab.vm.image.sources import Source, host_release, host_sources, newest_suite, suite_sources
from ferrule.lab.vm.kernel.bzimage import kernel_proper
from ferrule.lab.vm.kernel.kernel import Kernel
from ferrule.lab.vm.kernel.module import take_checksums


def read_cpio(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Mode and content by name, in the archive's order."""
    entries: dict[str, tuple[int, bytes]] = {}
    position = 0
    while True:
        assert data[position : position + 6] == b"070701"
        assert position % 4 == 0
        fields = [int(data[position + 6 + 8 * i : position + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[position + 110 : position + 110 + name_size - 1].decode()
        start = position + 110 + name_size
        start += -start % 4
        if name == "TRAILER!!!":
            return entries
        assert name not in entries
        entries[name] = (mode, data[start : start + size])
        position = start + size + (-size % 4)


def test_cpio_holds_each_path_once_behind_its_parents() -> None:
    out = io.BytesIO()
    cpio = CpioWriter(out)
    cpio.file("/bin/tool", b"first", mode=0o755)
    cpio.file("/usr/bin/tool", b"second")
    cpio.file("/a/deep/file", b"12345")
    cpio.symlink("/a/link", "deep/file")
    assert "/bin/tool" in cpio
    assert "/a/other" not in cpio
    cpio.close()
    entries = read_cpio(out.getvalue())
    assert entries["usr/bin/tool"] == (stat.S_IFREG | 0o755, b"first")
    assert entries["bin"] == (stat.S_IFLNK | 0o777, b"usr/bin")
    assert entries["a/link"] == (stat.S_IFLNK | 0o777, b"deep/file")
    names = list(entries)
    assert names.index("a") < names.index("a/deep") < names.index("a/deep/file")
    assert all(stat.S_ISDIR(entries[name][0]) for name in ("a", "a/deep", "usr", "usr/bin"))


@pytest.mark.skipif(sys.platform != "linux", reason="ELF is the format of Linux")
def test_elf_of_this_interpreter() -> None:
    elf = read_elf(Path(sys.executable))
    assert elf is not None
    assert "libc.so.6" in elf.needed
    assert Path(elf.interpreter).exists()


def test_what_is_no_elf_or_damaged_has_no_dependencies(tmp_path: Path) -> None:
    text = tmp_path / "script"
    text.write_text("#!/bin/sh\n")
    assert read_elf(text) is None
    whole = Path(sys.executable).read_bytes()
    for cut in (7, 40, 64, 100):
        assert parse_elf(whole[:cut]) is None


def test_kernel_comes_out_of_its_compressed_image() -> None:
    note = struct.pack("<III4s", 4, 8, 18, b"Xen\0")
    kernel = b"\x7fELF" + bytes(1000) + note + bytes(range(256))
    assert kernel_proper(bzimage(lzma.compress(kernel))) == kernel
    assert kernel_proper(bzimage(lzma.compress(kernel.replace(b"Xen", b"Zen")))) is None  # QEMU could not enter it
    assert kernel_proper(bzimage(lzma.compress(kernel)[:-100])) != kernel
    assert kernel_proper(bzimage(b"\x28\xb5\x2f\xfd" + bytes(100))) is None
    assert kernel_proper(b"MZ" + bytes(2000)) is None


def bzimage(payload: bytes) -> bytes:
    header = bytearray(5 * 512)
    header[0x1F1] = 4
    header[0x202:0x208] = b"HdrS" + struct.pack("<H", 0x020F)
    header[0x248:0x250] = struct.pack("<II", 16, len(payload))
    return bytes(header) + bytes(16) + payload + bytes(64)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    modules = tmp_path / "usr" / "lib" / "modules" / "6.1.0-1"
    (modules / "kernel").mkdir(parents=True)
    (modules / "modules.dep").write_text(
        "kernel/rdma-rxe.ko: kernel/ib_core.ko kernel/tunnel.ko\nkernel/ib_core.ko:\nkernel/tunnel.ko:\n"
        "kernel/crc.ko.xz:\nkernel/crc-fast.ko:\n"
    )
    (modules / "modules.builtin").write_text("kernel/net/unix.ko\n")
    (modules / "modules.softdep").write_text("# comment\nsoftdep crc pre: crc_fast not_there post: unix\n")
    (modules / "kernel" / "crc.ko.xz").write_bytes(lzma.compress(b"module"))
    return Kernel(tmp_path, "6.1.0-1", "6.1.1-1")


def test_modules_come_with_what_they_need(kernel: Kernel) -> None:
    files = [str(file) for file in kernel.module_files(["rdma_rxe", "unix"])]
    assert files == ["kernel/rdma-rxe.ko", "kernel/ib_core.ko", "kernel/tunnel.ko"]
    assert [str(file) for file in kernel.module_files(["crc"])] == ["kernel/crc.ko.xz", "kernel/crc-fast.ko"]
    assert kernel.module_data(Path("kernel/crc.ko.xz")) == b"module"
    assert kernel.has_module("rdma-rxe")
    assert kernel.has_module("unix")
    assert not kernel.has_module("siw")
    with pytest.raises(LabError, match=r"6\.1\.0-1 has no module siw"):
        kernel.module_files(["siw"])


ONE_LINE = """\
# deb http://commented.example/debian trixie main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian trixie main contrib # ours
deb http://mirror.example/debian trixie-updates main
deb-src http://mirror.example/debian trixie main
deb http://security.example/debian-security trixie-security main
"""

DEB822 = """\
Types: deb
URIs: http://tools.example/apt
Suites: tools-trixie
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: trixie
Components: main

# Sources only
Types: deb-src
URIs: http://mirror.example/debian
Suites: trixie
Components: main
"""


def test_suites_are_taken_from_the_hosts_own_mirror(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "more.sources").write_text(DEB822)
    sources = host_sources(tmp_path)
    own = Source("http://mirror.example/debian", "trixie", ("main", "contrib"), "/k.gpg")
    assert own in sources
    assert [source.suite for source in suite_sources("trixie", sources, "trixie")] == [
        "trixie",
        "trixie-updates",
        "trixie-security",
    ]
    other = suite_sources("forky-backports", sources, "trixie")
    assert [source.suite for source in other] == ["forky", "forky-updates", "forky-security", "forky-backports"]
    assert {source.uri for source in other} == {
        "http://mirror.example/debian",
        "http://security.example/debian-security",
    }
    assert "Signed-By: /k.gpg\n" in other[0].stanza()
    with pytest.raises(LabError, match="names no archive for bookworm"):
        suite_sources("bookworm", sources, "bookworm")


def test_only_debian_has_our_kernels(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('ID=debian\nVERSION_CODENAME=trixie\nPRETTY_NAME="Debian GNU/Linux 13"\n')
    assert host_release(release) == "trixie"
    release.write_text('ID=fedora\nPRETTY_NAME="Fedora Linux 43"\n')
    with pytest.raises(LabError, match="Fedora Linux 43"):
        host_release(release)


def test_the_guests_python_is_this_one() -> None:
    files = dict(standard_library())
    assert any(path.endswith("/socket.py") for path in files)
    assert not any("/site-packages/" in path for path in files)
    ours = dict(package("ferrule"))
    assert "/opt/python/ferrule/errors.py" in ours
    assert any(path.startswith("/opt/python/ferrule/_native.") for path in ours)


def test_a_directory_is_made_once_by_many(tmp_path: Path) -> None:
    calls: list[Path] = []

    def make(target: Path) -> None:
        calls.append(target)
        (target / "file").write_text("whole")

    wanted = tmp_path / "wanted"
    threads = [threading.Thread(target=made_once, args=(wanted, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (wanted / "file").read_text() == "whole"
    assert len(calls) == 1


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").write_text("made")
        raise LabError("no network")

    with pytest.raises(LabError, match="no network"):
        made_once(tmp_path / "wanted", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".wanted.lock"]


def test_a_lock_that_is_held_is_waited_for_and_then_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, 1), pytest.raises(LabError, match="another process has held"), locked(lock, 0.2):
        pytest.fail("two hold one lock")


def test_stand_in_takes_the_checksums_of_the_kernel(tmp_path: Path) -> None:
    made = tmp_path / ".ring.o.cmd"
    made.write_text("cmd := gcc\n#SYMVER tb_ring_start 0x1\n#SYMVER own 0x2\n")
    assert (
        take_checksums(tmp_path, "0xabcd\ttb_ring_start\tdrivers/thunderbolt\tEXPORT_SYMBOL_GPL\t\n0x9\tx\tvmlinux\n")
        == 1
    )
    assert made.read_text() == "cmd := gcc\n#SYMVER tb_ring_start 0xabcd\n#SYMVER own 0x2\n"


def test_newest_kernel_of_a_release() -> None:
    assert [newest_suite(release) for release in ("bookworm", "trixie", "forky")] == [
        "trixie-backports",
        "trixie-backports",
        "forky",
    ]
