"""Emulated USB4 controllers and cables: the stock ``thunderbolt.ko`` of a virtual machine drives them.

    from ferrule.lab.usb4 import Fault, FaultKind, Usb4Cable, Usb4Host, Usb4Lab

    hosts = [Usb4Host("strix-1", hops=3), Usb4Host("strix-2", hops=3)]
    cables = [Usb4Cable("cable0", ("strix-1", 0), ("strix-2", 0), gbps=20, lanes=2)]
    with Usb4Lab(hosts, cables, trace=Path("cable.pcapng")) as lab:
        lab.sockets("strix-1")                 # one unix socket for each controller of that host
        lab.qemu_arguments("strix-1", 1024)    # words for QEMU 10.1+, beside -machine q35,memory-backend=usb4-memory
        lab.wait_link("cable0", "up", 30)      # both guests have their controllers, and a second has passed
        lab.unplug("cable0"); lab.plug("cable0")
        lab.fault("cable0", Fault(FaultKind.DROP, 0.01, sender="strix-1")); lab.heal("cable0")
        lab.reshape("cable0", rate=1e9, delay_us=50)
        lab.state(); lab.counters()

A cable's end is (host, port); ports are counted through the controllers of a host, each of which has
``Usb4Host.ports``. Guests may come and go: a controller whose guest has gone has no power, and its link is down. The
lab is a process that ends with the thread that made it. See docs/virtual-usb4.md.
"""

from ferrule.lab.usb4.lab import Usb4Lab
from ferrule.lab.usb4.profile import FAULTS, Fault, FaultKind, Usb4Cable, Usb4Host, parse_fault

__all__ = ["FAULTS", "Fault", "FaultKind", "Usb4Cable", "Usb4Host", "Usb4Lab", "parse_fault"]
