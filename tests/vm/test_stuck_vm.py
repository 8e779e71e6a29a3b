"""A guest whose kernel stands still ends by itself, and says where its processors were."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.errors import GuestError
from ferrule.lab.vm import Guest, VmLab
from ferrule.lab.vm.kernel.kernel_log import stood_still

pytestmark = pytest.mark.vm

DEADLINE = 120
MODULE = """
#include <linux/delay.h>
#include <linux/module.h>
static int seconds;
module_param(seconds, int, 0);
static int __init stand_still(void)
{
	int i;

	preempt_disable();
	for (i = 0; i < 1000 * seconds; i++)
		udelay(1000);
	preempt_enable();
	return 0;
}
static void __exit go(void)
{
}
module_init(stand_still);
module_exit(go);
MODULE_LICENSE("GPL");
"""


@pytest.mark.slow
def test_a_kernel_that_stands_still(vm_lab: VmLab, tmp_path: Path) -> None:
    (tmp_path / "still.c").write_text(MODULE)
    (tmp_path / "Makefile").write_text("obj-m := still.o\n")
    guest = Guest(
        script="echo 1 > /proc/sys/kernel/watchdog_thresh; rmmod still && modprobe still seconds=20",
        modules=[vm_lab.build(tmp_path, "still")],
        memory_mb=512,
    )
    with pytest.raises(GuestError, match="the guest crashed: softlockup: hung tasks") as caught:
        vm_lab.run(guest, DEADLINE)
    console = caught.value.console
    assert "stand_still" in console
    assert stood_still(console, [])
    assert not stood_still(console, ["still"])
