"""Virtual machines with real kernels: boot one, run a script in it, take its results; all in seconds.

    lab = VmLab()
    result = lab.run(Guest(modules=["rdma_rxe"], python=["numpy", "ferrule"], script=SCRIPT), timeout=120)
    result.check().files["answer.json"]

    with JoinedGuests(find_lab("two-strix")) as lab:  # its hosts, joined by emulated USB4 cables
        lab.wait_for_cables(120)
        lab["strix-1"].check("ping -c 1 strix-2")
        lab.usb4.unplug("cable0")

See docs/lab.md and docs/virtual-usb4.md.
"""

from ferrule.lab.vm.image.python import PYTEST
from ferrule.lab.vm.joined import NETWORK, TOOLS, JoinedGuests
from ferrule.lab.vm.kernel.debug import DEBUG_KERNELS
from ferrule.lab.vm.kernel.kernel_log import complaints
from ferrule.lab.vm.lab import RDMA, VmLab, obstacle
from ferrule.lab.vm.machine.guest import Guest, Result
from ferrule.lab.vm.machine.running import RunningGuest
from ferrule.lab.vm.machine.session import Completed

__all__ = [
    "DEBUG_KERNELS",
    "NETWORK",
    "PYTEST",
    "RDMA",
    "TOOLS",
    "Completed",
    "Guest",
    "JoinedGuests",
    "Result",
    "RunningGuest",
    "VmLab",
    "complaints",
    "obstacle",
]
