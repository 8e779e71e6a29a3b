"""Kernels that check themselves: their configurations, and what is made of their logs."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from ferrule.lab.vm.kernel.debug import DEBUG_KERNELS, configuration, refused, unpack_source
from ferrule.lab.vm.kernel.kernel_log import complaints

QUIET = """\
[    0.000000] x86/mm: Checked W+X mappings: passed, no W+X pages found.
[    0.100000] DMA-API: debugging enabled by kernel config
[    0.110000] kmemleak: Kernel memory leak detector initialized (mem pool available: 15000)
[    9.100000] ferrule_rdma: loading out-of-tree module taints kernel.
[   10.200000] thunderbolt 0-1: host disconnected
[   11.000000] BUG: KCSAN: data-race in __mod_timer / timer_expire_remote
"""


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 0 PID: 1 at drivers/thunderbolt/nhi.c:1",
        "WARNING: possible circular locking dependency detected",
        "BUG: KASAN: slab-use-after-free in tb_ring_poll+0x1/0x2 [thunderbolt]",
        "BUG: KCSAN: data-race in tb_ring_poll [thunderbolt] / ring_msix",
        "BUG kmalloc-64 (Tainted: G           O      ): Right Redzone overwritten",
        "UBSAN: array-index-out-of-bounds in drivers/thunderbolt/ctl.c:1:2",
        "refcount_t: underflow; use-after-free.",
        "unreferenced object 0xffff888101234500 (size 192):",
        "BUG: sleeping function called from invalid context at kernel/locking/mutex.c:1",
        "INFO: task kworker/0:1:10 blocked for more than 120 seconds.",
        "ODEBUG: free active (active state 0) object: 1 object type: timer_list",
        "DEBUG_LOCKS_WARN_ON(1): turning off the locking correctness validator.",
    ],
)
def test_complaints_are_found_and_may_be_allowed(line: str) -> None:
    assert complaints(f"{QUIET}[   12.000000] {line}\n") == [f"[   12.000000] {line}"]
    assert complaints(line, ["nothing like it", line[:8]]) == []


def test_known_faults_of_stock_drivers_are_excused_and_nothing_beside_them() -> None:
    splat = """\
------------[ cut here ]------------
WARNING: ./include/linux/skbuff.h:3075 at {}+0x229f/0x2ec0 [thunderbolt_net], CPU#0: lab-cables/79
Call Trace:
 dev_hard_start_xmit+0x13e/0x690
{}---[ end trace 0000000000000000 ]---
"""
    known = splat.format("tbnet_start_xmit", "")
    assert complaints(known) == complaints(known * 2) == []
    assert len(complaints(splat.format("tbnet_poll", ""))) == 2
    assert complaints(known + "Call Trace:\n") == ["Call Trace:"]
    assert complaints(splat.format("tbnet_start_xmit", "Oops: 0000\n")) == ["Oops: 0000"]
    assert complaints(splat.format("tbnet_poll", ""), [r"tbnet_poll\+"]) == []


@pytest.mark.parametrize("name", DEBUG_KERNELS)
def test_a_configuration_that_was_not_taken_is_noticed(name: str) -> None:
    wanted = configuration(name)
    assert refused(wanted, wanted) == []
    assert refused(wanted, wanted.replace("CONFIG_USB4=m", "# CONFIG_USB4 is not set")) == ["CONFIG_USB4=m"]
    assert refused("CONFIG_VT=n\n", "# CONFIG_VT is not set\n") == []
    assert refused("CONFIG_VT=n\n", "CONFIG_VT=y\n") == ["CONFIG_VT=n"]


def test_what_is_not_compiled_is_not_unpacked_but_described(tmp_path: Path) -> None:
    names = [
        "drivers/gpu/drm/drm.c",
        "drivers/gpu/Kconfig",
        "drivers/thunderbolt/nhi.c",
        "arch/arm/x.c",
        "arch/x86/x.c",
    ]
    with tarfile.open(tmp_path / "source.tar.xz", "w:xz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"linux-source-7.3/{name}")
            member.size, member.mode = 2, 0o755
            archive.addfile(member, io.BytesIO(b"ok"))
    unpack_source(tmp_path / "source.tar.xz", tmp_path / "source")
    found = {str(path.relative_to(tmp_path / "source")) for path in (tmp_path / "source").rglob("*") if path.is_file()}
    assert found == {"drivers/gpu/Kconfig", "drivers/thunderbolt/nhi.c", "arch/x86/x.c"}
    assert (tmp_path / "source/arch/x86/x.c").stat().st_mode & 0o777 == 0o755
