"""USB4 and Thunderbolt: did the cable train as it should, and does anything use it?"""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.links.doctor import costs
from ferrule.links.doctor.cures import by_hand, install, load_module, run
from ferrule.links.findings import Cure, Finding
from ferrule.links.types.inventory import Inventory
from ferrule.links.types.thunderbolt import ThunderboltDomain, ThunderboltPeer, ThunderboltRouter

LANE_GB_S = 20.0
"""Each lane of Thunderbolt 3, 4 and USB4 at 40 Gb/s."""
LANES = 2
_FULL_GB_S = LANE_GB_S * LANES
_TB5_GB_S = 80.0
_MIN_VECTORS = 4
_OLD_GENERATION = 2
"""Thunderbolt 1 and 2 never have more than 10 Gb/s per lane."""

REPLUG = by_hand(
    "1. Pull the cable out at BOTH ends. Pulling one end is often not enough.\n"
    "2. Wait five seconds.\n"
    "3. Push it in here, then at the other end.\n"
    "4. Run `ferrule doctor` again.\n"
    "Still slow? Turn the plugs over, use other sockets, then another cable: certified for 40 Gb/s, and at most 0.8 m "
    "long unless it is an active one. Some USB4 sockets never do more than 2×10; their manual tells."
)


def check(inventory: Inventory) -> Iterator[Finding]:
    for domain in inventory.thunderbolt:
        for peer in domain.peers:
            yield from _speed(inventory, domain, peer)
            yield from _dock(inventory, peer)
            yield from _network(inventory, peer)
        yield from _protection(inventory, domain)
        yield from _rings(domain)
        for device in domain.devices:
            yield from _authorized(inventory, domain, device)
    yield from _bridge(inventory)
    if inventory.machine.system == "macos":
        yield from _mac_speed(inventory)


def called(domain: ThunderboltDomain, peer: ThunderboltPeer) -> str:
    """The cable by its socket and the computer at the other end: ``domain1 usb4_port2 → strix-b``."""
    socket = peer.port or peer.name
    where = socket if domain.pci_address is None and peer.port else f"{domain.name} {socket}"
    return f"{where} → {peer.device or peer.name}"


def _speed(inventory: Inventory, domain: ThunderboltDomain, peer: ThunderboltPeer) -> Iterator[Finding]:
    """Linux tells lanes and speed of each direction. TB5's three lanes one way and one the other are meant to be."""
    told = (peer.rx_lanes, peer.rx_speed_gb_s, peer.tx_lanes, peer.tx_speed_gb_s)
    rx, tx = peer.rx_gb_s, peer.tx_gb_s
    if None in told or rx is None or tx is None or 3 in (peer.rx_lanes, peer.tx_lanes):
        return
    if domain.host is not None and (domain.host.generation or 4) <= _OLD_GENERATION:
        return
    if peer.route > 255 or not rx or not tx or (rx == tx and rx >= _FULL_GB_S):
        return
    now = f"{peer.rx_lanes}×{peer.rx_speed_gb_s:g} Gb/s in, {peer.tx_lanes}×{peer.tx_speed_gb_s:g} Gb/s out"
    if rx != tx:
        which, what = "cable-asymmetric", f"The cable came up slower one way than the other: {now}."
    elif (peer.rx_lanes or 0) < LANES:
        which, what = "cable-one-lane", f"Only one of the cable's two lanes came up: {now}."
    else:
        which, what = "cable-half-speed", f"The cable came up below the 2×20 Gb/s of a good one: {now}."
    names = ("rx_lanes", "rx_speed", "tx_lanes", "tx_speed")
    low, good = min(rx, tx), max(rx, tx, _FULL_GB_S)
    why = "Two ranks send both ways at once, so the slower way counts. " if rx != tx else ""
    why += costs.instead((costs.TCP_THUNDERBOLT, low), (costs.TCP_THUNDERBOLT, good))
    evidence = inventory.evidence(*(f"{peer.path}/{name}" for name in names))
    yield Finding(which, "warning", called(domain, peer), what, evidence, why, REPLUG)


def _mac_speed(inventory: Inventory) -> Iterator[Finding]:
    """A Mac tells what its empty sockets could do; a link far below that has a lesser cable or computer on it."""
    best = max((port.speed_gb_s or 0 for domain in inventory.thunderbolt for port in domain.ports), default=0)
    for domain in inventory.thunderbolt:
        for peer in domain.peers:
            speed = peer.link_gb_s
            if speed is None or best < _TB5_GB_S or speed >= _TB5_GB_S or speed <= 0:
                continue
            what = f"The cable runs at {speed:g} Gb/s, while this Mac's sockets can do {_TB5_GB_S:g}."
            why = costs.instead((costs.RDMA_THUNDERBOLT, speed), (costs.RDMA_THUNDERBOLT, _TB5_GB_S))
            cure = by_hand(
                "Pull the cable out at BOTH ends and push it in again. If that does not help, use a Thunderbolt 5 "
                "cable. If the other Mac has Thunderbolt 4, this is all that it can do."
            )
            yield Finding(
                "cable-half-speed", "warning", called(domain, peer), what, inventory.evidence(peer.path), why, cure
            )


def _dock(inventory: Inventory, peer: ThunderboltPeer) -> Iterator[Finding]:
    if peer.route <= 255:
        return
    what = f"{peer.device or 'The other computer'} is behind a dock or hub, not at the end of a cable."
    why = "A dock shares its link with all that hangs on it, and adds latency to each of 160 messages per token."
    cure = by_hand("Run a cable straight from one computer to the other.")
    yield Finding("cable-behind-dock", "warning", peer.name, what, inventory.evidence(f"{peer.path}/uevent"), why, cure)


def _network(inventory: Inventory, peer: ThunderboltPeer) -> Iterator[Finding]:
    machine = inventory.machine
    if machine.system != "linux" or peer.netdevs:
        return
    evidence = inventory.evidence(f"{peer.path}/device_name", *(f"{one.path}/key" for one in peer.services))
    why = "Without it nothing goes over the cable, and the network that is used in its place is 10 times slower."
    subject = f"{peer.name} → {peer.device or 'another computer'}"
    if machine.module("thunderbolt_net") is None:
        there = machine.available_modules is None or "thunderbolt_net" in machine.available_modules
        what = "The cable is plugged in, but the module thunderbolt_net is not loaded: there is no interface for it."
        cure = load_module("thunderbolt_net") if there else _module_package()
        yield Finding("thunderbolt-net-missing", "error", subject, what, evidence, why, cure)
    elif not any(one.key == "network" for one in peer.services):
        what = f"{peer.device or 'The other computer'} does not offer IP over this cable."
        cure = run(
            "Load its module at the OTHER end, now and at every start.", *load_module("thunderbolt_net")[0].commands
        )
        yield Finding("peer-offers-no-network", "error", subject, what, evidence, why, cure)


def _module_package() -> tuple[Cure, ...]:
    text = "This kernel has no such module: install the rest of its modules, and load it."
    packages = {"debian": "linux-modules-extra-$(uname -r)", "fedora": "kernel-modules-extra", "arch": "linux"}
    return install(text, packages, "sudo modprobe thunderbolt_net")


def _authorized(inventory: Inventory, domain: ThunderboltDomain, device: ThunderboltRouter) -> Iterator[Finding]:
    if device.authorized is not False:
        return
    what = f"{device.device or device.name} is plugged in but not authorized (security level {domain.security})."
    evidence = inventory.evidence(f"{device.path}/authorized", f"{domain.path}/security")
    why = "Its PCIe devices, such as network adapters, do not exist until it is."
    cure = run("If you know the device, authorize it.", "boltctl list", "sudo boltctl enroll UUID")
    yield Finding("thunderbolt-unauthorized", "warning", device.name, what, evidence, why, cure)


def _protection(inventory: Inventory, domain: ThunderboltDomain) -> Iterator[Finding]:
    if domain.iommu_dma_protection is not False or domain.security not in ("none", "user"):
        return
    what = "The IOMMU does not guard this controller: a device that is plugged in can read all memory."
    evidence = inventory.evidence(f"{domain.path}/iommu_dma_protection", f"{domain.path}/security")
    why = "It costs no speed. It matters where strangers can reach the sockets."
    cure = by_hand(
        'Turn on "Kernel DMA protection" (IOMMU, VT-d or AMD-Vi) in the firmware, if you want to be guarded.'
    )
    yield Finding("thunderbolt-dma-open", "note", domain.name, what, evidence, why, cure)


def _rings(domain: ThunderboltDomain) -> Iterator[Finding]:
    if domain.rings is None or domain.rings.vectors is None or domain.rings.vectors >= _MIN_VECTORS:
        return
    what = f"The controller has only {domain.rings.vectors} interrupts, and each ring in use takes one."
    why = "A cable with a network needs two rings, RDMA two more; sharing interrupts makes small messages slow."
    yield Finding(
        "thunderbolt-few-rings", "note", domain.name, what, (), why, by_hand("Update the firmware, and the kernel.")
    )


def _bridge(inventory: Inventory) -> Iterator[Finding]:
    """macOS makes a bridge of all Thunderbolt sockets; RDMA and addresses per cable need it gone."""
    for bridge in inventory.netdevs:
        cables = [one.name for one in inventory.netdevs if one.master == bridge.name and one.kind == "thunderbolt"]
        if bridge.kind != "bridge" or not cables:
            continue
        what = f"The cables' interfaces ({', '.join(cables)}) are part of the bridge {bridge.name}."
        why = (
            "A bridge joins all cables into one network: with several cables packets can go round in circles, each "
            "packet costs an extra look-up, and RDMA on a Mac needs interfaces of its own."
        )
        mac = (
            f"sudo ifconfig {bridge.name} down",
            *(f"sudo ifconfig {bridge.name} deletem {name}" for name in cables),
            'sudo networksetup -setnetworkserviceenabled "Thunderbolt Bridge" off',
        )
        linux = tuple(f"sudo ip link set {name} nomaster" for name in cables)
        system = inventory.machine.system
        cure = (Cure("macos", "Take it apart.", mac),) if system == "macos" else run("Take them out of it.", *linux)
        evidence = inventory.evidence(bridge.path)
        yield Finding("cable-in-bridge", "warning", bridge.name, what, evidence, why, cure)
