"""RDMA ports: what keeps them from being used, which programs seldom say; they take TCP in their place."""

from __future__ import annotations

from collections.abc import Iterator

from ferrule.links.devinfo import DEVINFO
from ferrule.links.doctor import costs
from ferrule.links.doctor.cures import by_hand, family, install, load_module, run, set_address
from ferrule.links.findings import Cure, Finding
from ferrule.links.linux.flow_control import PFC
from ferrule.links.linux.machine import SYSTEMCTL
from ferrule.links.linux.rdma import OWN_DRIVER
from ferrule.links.own import PAUSE
from ferrule.links.types.inventory import Evidence, Inventory
from ferrule.links.types.machine import UNLIMITED_BYTES
from ferrule.links.types.net import FlowControl
from ferrule.links.types.rdma import RdmaDevice, RdmaPort
from ferrule.units import format_bytes

MEMLOCK_BYTES = 1 << 30
"""Locked memory that is enough: a rank pins less for its buffers; NCCL and other programs pin more."""
RDMA_MODULE = {"mlx4_core": "mlx4_ib", "mlx5_core": "mlx5_ib", "ice": "irdma"}
_UP = ("ACTIVE", "INIT", "ARMED")
_OPENSM = {
    "debian": ("sudo apt install opensm", "sudo systemctl enable --now opensm"),
    "fedora": ("sudo dnf install opensm", "sudo systemctl enable --now opensm"),
    "arch": ("paru -S opensm", "sudo systemctl enable --now opensm"),
}


def check(inventory: Inventory) -> Iterator[Finding]:
    if inventory.machine.system != "macos":
        for device in inventory.rdma:
            for port in device.ports:
                yield from _state(inventory, device, port)
                yield from _gids(inventory, device, port)
                yield from _counters(inventory, device, port)
            yield from _software(device)
        yield from _memlock(inventory)
        yield from _userspace(inventory)
        yield from _driver(inventory)
        yield from _lossless(inventory)


def _name(device: RdmaDevice, port: RdmaPort) -> str:
    return f"{device.name}:{port.number}"


def _state(inventory: Inventory, device: RdmaDevice, port: RdmaPort) -> Iterator[Finding]:
    subject = _name(device, port)
    evidence = inventory.evidence(f"{port.path}/state", f"{port.path}/phys_state")
    infiniband = port.link_layer == "InfiniBand"
    if port.state in ("INIT", "ARMED") and infiniband:
        yield _no_manager(inventory, subject, port, evidence)
    elif port.state == "ACTIVE" and infiniband and port.lid == 0:
        what = "The port is ACTIVE but has no address on the fabric (LID 0)."
        why = "Queue pairs cannot be connected, so programs fail or take TCP."
        cure = run("Restart the subnet manager on the host that runs it.", "sudo systemctl restart opensm")
        yield Finding("rdma-lid-zero", "error", subject, what, inventory.evidence(f"{port.path}/lid"), why, cure)
    elif port.state is not None and port.state != "ACTIVE":
        yield from _down(inventory, subject, port, evidence)


def _no_manager(inventory: Inventory, subject: str, port: RdmaPort, evidence: tuple[Evidence, ...]) -> Finding:
    gb_s = port.rate_gb_s or 40.0
    what = f"The cable is in, but the port waits ({port.state}): no subnet manager runs on this InfiniBand network."
    why = "RDMA does not work at all until one does; programs fail or take TCP over another network. " + costs.instead(
        (costs.TCP_ETHERNET, 1.0), (costs.RDMA_INFINIBAND, gb_s)
    ).replace("over it", "over 1 Gb/s Ethernet")
    text = "Start opensm on exactly ONE of the hosts. (`ferrule doctor --fix` starts it here.)"
    cure = tuple(Cure(system, text, commands) for system, commands in _OPENSM.items())
    units = [one for one in inventory.services if one.name in ("opensm", "opensmd")]
    told = evidence + inventory.evidence(f"{port.path}/sm_lid")
    told += tuple((f"$ {SYSTEMCTL.partition(' is-active')[0]} is-active {one.name}", one.state) for one in units[:1])
    return Finding("rdma-no-subnet-manager", "error", subject, what, told, why, cure)


def _down(inventory: Inventory, subject: str, port: RdmaPort, evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    """A port without a cable is only told; one whose interface is up or has an address is meant to work."""
    nets = [net for net in map(inventory.netdev, port.netdevs) if net is not None]
    off = next((net for net in nets if net.enabled is False), None)
    linked = port.phys_state == "LinkUp" or any(net.carrier for net in nets)
    if not linked:
        what = f"The port is {port.state}: no cable, or nothing at its other end."
        why = "A second cable between the same hosts would add its bandwidth."
        cure = by_hand("Nothing, if no cable is meant to be here. Otherwise check both plugs and the other machine.")
        yield Finding("rdma-port-free", "note", subject, what, evidence, why, cure)
        return
    what = f"The cable is in but the port is {port.state}."
    why = "RDMA does not work over it; programs take TCP in its place, without a word."
    if off is not None:
        what += f" Its interface {off.name} is switched off."
        cure = run("Switch the interface on.", f"sudo ip link set {off.name} up")
        evidence += inventory.evidence(f"{off.path}/flags")
    else:
        cure = run("Look for what the driver says.", "sudo dmesg | grep -i -e mlx -e irdma -e infiniband | tail -20")
    yield Finding("rdma-port-down", "error", subject, what, evidence, why, cure)


def _gids(inventory: Inventory, device: RdmaDevice, port: RdmaPort) -> Iterator[Finding]:
    """RoCE finds its peer by GIDs; one that is made of an IPv4 address is what most programs look for."""
    if port.link_layer != "Ethernet" or port.state != "ACTIVE" or device.software:
        return
    subject = _name(device, port)
    name = port.netdevs[0] if port.netdevs else "INTERFACE"
    evidence = tuple((f"{port.path}/gids/{gid.index}", f"{gid.value} ({gid.type})") for gid in port.gids)
    why = "RoCE cannot reach a peer without it: programs fail, or take TCP, 5 times slower for small messages."
    if not port.gids:
        what = "The table of GIDs is empty: the port has no address."
        cure = set_address(inventory, name)
        yield Finding("rdma-no-gid", "error", subject, what, ((f"{port.path}/gids", "empty"),), why, cure)
    elif not any(gid.type == "RoCE v2" for gid in port.gids) and any(gid.type for gid in port.gids):
        what = "No GID is of RoCE v2; version 1 cannot be routed, and most programs ask for version 2."
        mode = "/sys/kernel/config/rdma_cm"
        cure = run(
            "Let the connection manager use version 2. If there is still none, update the card's firmware.",
            "sudo modprobe rdma_cm",
            f"sudo mkdir -p {mode}/{device.name}",
            f"echo 'RoCE v2' | sudo tee {mode}/{device.name}/ports/{port.number}/default_roce_mode",
        )
        yield Finding("rdma-no-roce-v2", "warning", subject, what, evidence, why, cure)
    elif not any(gid.address and "." in gid.address for gid in port.gids):
        what = "No GID is made of an IPv4 address; programs that look for one, such as NCCL by default, find none."
        cure = set_address(inventory, name)
        yield Finding("rdma-no-ipv4-gid", "warning", subject, what, evidence, why, cure)


def _counters(inventory: Inventory, device: RdmaDevice, port: RdmaPort) -> Iterator[Finding]:
    if not port.errors:
        return
    told = ", ".join(f"{value} {name}" for name, value in port.errors)
    what = f"The port has counted errors: {told}."
    why = "Each lost packet stops its queue pair until it is sent again, for milliseconds; a token waits with it."
    cure = by_hand(
        "Run `ferrule doctor` again after some traffic. If they grow: clean or change cable and transceivers."
    )
    paths = (f"{port.path}/{folder}/{name}" for folder in ("counters", "hw_counters") for name, _ in port.errors)
    yield Finding("rdma-errors", "warning", _name(device, port), what, inventory.evidence(*paths), why, cure)


def _software(device: RdmaDevice) -> Iterator[Finding]:
    if device.software:
        what = f"{device.name} is RDMA emulated in the kernel ({device.driver or 'rxe or siw'})."
        why = "It is good for tests. For tensors it is slower than TCP on the same cable."
        cure = by_hand("Use the transport `tcp` over this interface.")
        yield Finding("rdma-software", "note", device.name, what, (), why, cure)


def _cards(inventory: Inventory) -> list[RdmaDevice]:
    return [one for one in inventory.rdma if not one.software]


def _memlock(inventory: Inventory) -> Iterator[Finding]:
    machine = inventory.machine
    soft, hard = machine.memlock_bytes, machine.memlock_hard_bytes
    if soft is None or soft >= MEMLOCK_BYTES or hard == UNLIMITED_BYTES or not _cards(inventory):
        return
    line = next((one for one in inventory.seen.get("/proc/self/limits", "").splitlines() if "locked" in one), "")
    what = f"This user may lock only {format_bytes(soft)} of memory."
    why = (
        "RDMA needs its buffers locked: registering larger ones fails (`Cannot allocate memory`), and programs end or "
        "take TCP in its place."
    )
    conf = "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n'"
    cure = run(
        "Lift the limit, then log in again. Services need LimitMEMLOCK=infinity in their unit as well. "
        "(`ferrule doctor --fix` does the first.)",
        f"{conf} | sudo tee /etc/security/limits.d/90-ferrule-memlock.conf",
    )
    yield Finding(
        "memlock-small", "warning", "memlock", what, (("/proc/self/limits", " ".join(line.split())),), why, cure
    )


def _userspace(inventory: Inventory) -> Iterator[Finding]:
    if not _cards(inventory):
        return
    modules = inventory.machine.modules
    if modules and inventory.machine.module("ib_uverbs") is None:
        what = "The module ib_uverbs is not loaded: programs cannot reach the RDMA devices."
        why = "They take TCP in their place, without a word."
        loaded = ", ".join(one.name for one in modules if one.name.startswith(("ib_", "mlx", "irdma", "ice")))
        evidence = (("/proc/modules", loaded or "no RDMA module"),)
        yield Finding("rdma-no-uverbs", "error", "ib_uverbs", what, evidence, why, load_module("ib_uverbs"))
    if f"$ {DEVINFO}" not in inventory.seen:
        what = "rdma-core's programs are not installed (ibv_devinfo), and maybe not its libraries."
        why = "Without libibverbs and the provider of this card, programs see no RDMA device."
        packages = {
            "debian": "rdma-core ibverbs-providers ibverbs-utils",
            "fedora": "rdma-core libibverbs libibverbs-utils",
            "arch": "rdma-core",
        }
        cure = install("Install them.", packages)
        yield Finding("rdma-core-missing", "warning", "rdma-core", what, (("$ ibv_devinfo", "not found"),), why, cure)


def _driver(inventory: Inventory) -> Iterator[Finding]:
    """A card that can do RDMA and only does Ethernet."""
    for link in inventory.pcie:
        module = RDMA_MODULE.get(link.driver or "")
        if module is None or any(one.pci_address == link.address for one in inventory.rdma):
            continue
        if inventory.machine.module(module) is not None:
            continue
        card = " ".join(filter(None, (link.vendor, link.device)))
        what = f"{card} can do RDMA, but its module {module} is not loaded, so it only does Ethernet."
        why = costs.instead((costs.TCP_ETHERNET, 25.0), (costs.RDMA_ETHERNET, 25.0))
        cure = load_module(module)
        if module == "irdma" and family(inventory.machine) == "debian":
            cure += by_hand("Very old kernels lack irdma for E800 cards: use 5.14 or newer.")
        evidence = ((f"{link.path}/driver", str(link.driver)), ("/proc/modules", f"no {module}"))
        yield Finding("rdma-driver-missing", "warning", link.address, what, evidence, why, cure)


def _lossless(inventory: Inventory) -> Iterator[Finding]:
    """Findings on lossless Ethernet: what this end does is read; what a switch does no machine can see. Our driver
    sends again what is lost."""
    for device in (one for one in _cards(inventory) if one.driver != OWN_DRIVER):
        for port in device.ports:
            if port.link_layer == "Ethernet" and port.state == "ACTIVE":
                for name in port.netdevs[:1]:
                    yield from _flow_control(inventory, name)


def _flow_control(inventory: Inventory, name: str) -> Iterator[Finding]:
    found = inventory.netdev(name)
    control = (found.flow_control if found else None) or FlowControl()
    if control.lossless:
        return
    off = [words for words, on in (("obey", control.receives), ("send", control.sends)) if on is False]
    facts = f"{name} does not {' or '.join(off)} pause frames" if off else f"whether {name} pauses is not told"
    if control.priorities is None:
        facts += "; whether PFC is on could not be read" if off else ", neither by pause frames nor by PFC"
    elif off:
        facts += ", and PFC is off"
    what = f"RoCE runs here, which loses speed steeply if packets are dropped, and {facts}."
    why = "A cable from card to card drops few. A switch does when two senders meet, unless it is told to pause them."
    text = "Nothing, if the cards are joined directly. Behind a switch: pause frames (or PFC) on its ports and here."
    if control.priorities is None:
        text += " To have PFC read, too, install the program `dcb` (of iproute2)."
    asked = (f"$ {PAUSE} {name}", f"$ {PFC} {name}")
    evidence = tuple(
        (where, " ".join(line.split()))
        for where in asked
        for line in inventory.seen.get(where, "").splitlines()
        if line.startswith(("RX:", "TX:", "prio-pfc"))
    )
    cure = run(text, f"sudo ethtool -A {name} rx on tx on")
    yield Finding("rdma-lossless", "note", name, what, evidence or ((asked[0], "not told"),), why, cure)
