"""Emulated USB4 controllers and cables: the stock ``thunderbolt.ko`` of a virtual machine drives them.

`Usb4Lab` starts them, and says with which arguments QEMU 10.1 or newer finds them; docs/virtual-usb4.md shows it all.
A cable's end is (host, port); ports are counted through the controllers of a host, each of which has
``Usb4Host.ports``. Guests may come and go: a controller whose guest has gone has no power, and its link is down. The
lab is a process that ends with the thread that made it.
"""

from ferrule.lab.usb4.lab import Usb4Lab
from ferrule.lab.usb4.profile import FAULTS, Fault, FaultKind, Usb4Cable, Usb4Host, parse_fault

__all__ = ["FAULTS", "Fault", "FaultKind", "Usb4Cable", "Usb4Host", "Usb4Lab", "parse_fault"]
