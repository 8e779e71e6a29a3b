"""Every finding by its id: what it means and what helps, in a line each. docs/doctor.md has this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ferrule.links.findings import Severity


@dataclass(frozen=True, slots=True)
class Entry:
    """``severity``: the worst that it comes with. ``cure``: what helps, in short."""

    severity: Severity
    means: str
    cure: str


CATALOGUE: dict[str, Entry] = {
    "cable-half-speed": Entry(
        "warning", "the cable came up below what both ends can, such as 2×10 instead of 2×20 Gb/s", "replug both ends"
    ),
    "cable-asymmetric": Entry("warning", "the cable is slower one way than the other", "replug both ends"),
    "cable-one-lane": Entry("warning", "one of the cable's two lanes did not come up", "replug both ends"),
    "cable-behind-dock": Entry(
        "warning", "the other computer is behind a dock or hub", "a cable straight between them"
    ),
    "cable-in-bridge": Entry("warning", "the cables' interfaces are part of a bridge", "take it apart"),
    "thunderbolt-net-missing": Entry(
        "error",
        "a cable is in, but the module thunderbolt_net is not loaded",
        "load the module, now and at every start",
    ),
    "peer-offers-no-network": Entry(
        "error", "the other end does not offer IP over the cable", "load thunderbolt_net at the other end"
    ),
    "thunderbolt-unauthorized": Entry("warning", "a dock or device is not authorized", "`boltctl enroll`"),
    "thunderbolt-dma-open": Entry("note", "the IOMMU does not guard the sockets", "kernel DMA protection, if wanted"),
    "thunderbolt-few-rings": Entry(
        "note", "the controller has few interrupts for its rings", "newer firmware and kernel"
    ),
    "mac-forbidden-port": Entry(
        "error", "a cable is in the socket beside Ethernet of a Mac Studio, which has no RDMA", "use another socket"
    ),
    "mac-no-rdma": Entry(
        "note", "a Mac with Thunderbolt 4 lists RDMA devices that never work", "use TCP over the cable"
    ),
    "mac-rdma-off": Entry("warning", "RDMA is switched off on this Mac", "`rdma_ctl enable` in Recovery"),
    "mac-too-old": Entry("warning", "this macOS has no RDMA over Thunderbolt", "macOS 26.2 or newer on every Mac"),
    "interface-off": Entry("error", "a cable's interface is switched off", "`ip link set NAME up`"),
    "no-carrier": Entry(
        "warning", "an interface has an address but no link", "plugs, the other machine, another cable"
    ),
    "no-address": Entry(
        "error", "a fast cable is up but has no address", "an address at each end, in a subnet of its own"
    ),
    "mtu-small": Entry(
        "warning", "the MTU of a fast cable is small", "65520 on Thunderbolt, 9000 on Ethernet, at both ends"
    ),
    "speed-below-card": Entry("warning", "a link is slower than its adapter", "another cable; the other end"),
    "half-duplex": Entry("warning", "a link cannot send and receive at once", "let both ends negotiate"),
    "interface-errors": Entry("warning", "a link has counted errors", "change the cable first"),
    "interface-drops": Entry("note", "this machine dropped more than 1 of 1000 packets", "longer queues"),
    "same-subnet": Entry("warning", "two interfaces are in one subnet", "a subnet for each cable; Wi-Fi off"),
    "wifi-default-route": Entry("warning", "the default route goes over Wi-Fi although a cable is up", "Wi-Fi off"),
    "only-wifi": Entry("warning", "Wi-Fi is the only way to other machines", "a cable"),
    "only-slow-ethernet": Entry("note", "the fastest cable is 1 or 2.5 Gb/s Ethernet", "`--pp`, or a USB4 cable"),
    "speed-unknown": Entry(
        "note", "no interface tells its speed, as on virtual machines and in containers", "`ferrule links probe`"
    ),
    "no-link": Entry("error", "no interface has both a link and an address", "a cable"),
    "rdma-no-subnet-manager": Entry(
        "error", "an InfiniBand port waits for a subnet manager (INIT)", "opensm on exactly one host"
    ),
    "rdma-port-down": Entry("error", "the cable is in but RDMA on it is down", "the interface, the other end"),
    "rdma-port-free": Entry("note", "an RDMA port has no cable", "nothing, or both plugs"),
    "rdma-lid-zero": Entry("error", "an InfiniBand port has no address (LID 0)", "restart opensm"),
    "rdma-no-gid": Entry("error", "a RoCE port has no GID", "an address on its interface"),
    "rdma-no-roce-v2": Entry("warning", "no GID is of RoCE v2", "rdma_cm's default mode; firmware"),
    "rdma-no-ipv4-gid": Entry("warning", "no GID is made of an IPv4 address", "an IPv4 address on its interface"),
    "rdma-errors": Entry("warning", "an RDMA port has counted errors", "cable and transceivers"),
    "rdma-software": Entry("note", "RDMA is emulated (rxe, siw): slower than TCP", "the transport `tcp`"),
    "rdma-driver-missing": Entry("warning", "a card can do RDMA and only does Ethernet", "load its module"),
    "rdma-no-uverbs": Entry("error", "programs cannot reach RDMA devices: ib_uverbs is not loaded", "load it"),
    "rdma-core-missing": Entry("warning", "rdma-core is not installed", "install it"),
    "rdma-lossless": Entry(
        "note",
        "RoCE suffers from lost packets, and this end does not pause, or does not tell",
        "pause frames or PFC behind a switch",
    ),
    "memlock-small": Entry("warning", "the user may lock too little memory for RDMA", "limits.d, log in again"),
    "pcie-downgraded": Entry(
        "warning", "a card has fewer or slower lanes than it and its slot can do", "reseat the card"
    ),
    "pcie-slot-limit": Entry(
        "note", "a card could use more lanes than its slot has, as on M.2 or OcuLink", "none needed"
    ),
    "pcie-below-port": Entry("note", "a port is faster than its PCIe link, as on DGX Spark", "both interfaces at once"),
    "clock-not-synchronized": Entry("warning", "the clock follows no time server, or is off", "chrony or timesyncd"),
    "iommu-translated": Entry("note", "the IOMMU translates what cards do", "`iommu=pt`"),
    "firewall-rule": Entry(
        "error",
        "a rule of the firewall keeps other hosts out of a cable's interface",
        "let in what comes over the cable",
    ),
    "firewall": Entry(
        "warning",
        "a firewall is on and may keep other hosts out; its rules could not be read",
        "trust the cables' interfaces",
    ),
    "secure-boot": Entry("note", "Secure Boot refuses modules that are not signed", "sign them with your key"),
    "kernel-old": Entry("note", "the kernel is too old for RDMA over USB4", "6.12 or newer"),
    "power-saving": Entry("warning", "the machine is set to save power", "the profile or governor `performance`"),
    "unreadable": Entry("note", "something could not be read, so it was not checked", "run it as root, or report it"),
    "subnets-differ": Entry("error", "the ends of a cable have addresses in different subnets", "one subnet for both"),
    "mtu-differs": Entry("warning", "the ends of a cable have different MTUs", "the larger one at both"),
    "same-address": Entry("error", "two hosts have the same address", "each its own"),
    "no-common-subnet": Entry("warning", "two hosts have no subnet in common", "a cable with addresses in one subnet"),
    "two-subnet-managers": Entry("note", "opensm runs on several hosts", "stop all but one"),
    "ferrule-skew": Entry("warning", "hosts have different versions of Ferrule", "the newest on all"),
    "python-skew": Entry("note", "hosts have different minor versions of Python", "the same on all"),
    "torch-skew": Entry("warning", "hosts have different versions of torch or transformers", "`pip install torch==…`"),
    "ray-skew": Entry("error", "hosts have different versions of Ray", "`pip install ray==…`"),
    "macos-skew": Entry("warning", "Macs run different builds of macOS", "the same on all"),
    "kernel-skew": Entry(
        "note", "hosts with USB4 or RDMA run different kernels", "the same on all, if cables misbehave"
    ),
    "firmware-skew": Entry("note", "the same cards have different firmware", "update the older ones"),
    "clock-skew": Entry("warning", "the clocks of two hosts differ by more than a second", "the same time server"),
}


def markdown(entries: Mapping[str, Entry] = CATALOGUE) -> str:
    """The table of docs/doctor.md."""
    rows = (f"| `{name}` | {one.severity} | {one.means} | {one.cure} |" for name, one in entries.items())
    return "\n".join(("| id | at worst | what it means | what helps |", "|---|---|---|---|", *rows))
