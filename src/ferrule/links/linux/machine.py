"""The computer and its kernel: procfs, ``os-release``, DMI, EFI variables, a few commands."""

from __future__ import annotations

import collections
import re
import shlex

from ferrule.links.linux.firewall.filters import FIREWALL_UNITS
from ferrule.links.reader import Reader, software, whole
from ferrule.links.types.machine import UNLIMITED_BYTES, Clock, Iommu, Machine, Module, Service

DMI = "/sys/class/dmi/id"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
POWER_PROFILE = "/sys/firmware/acpi/platform_profile"
FREQUENCY = "/sys/devices/system/cpu/cpu0/cpufreq"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"

WANTED_MODULES = (
    *("thunderbolt", "thunderbolt_net", "mlx4_core", "mlx4_en", "mlx4_ib", "mlx5_core", "mlx5_ib", "ice", "irdma"),
    *("ib_core", "ib_uverbs", "ib_ipoib", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw", "r8169", "igc"),
)
UNAME = "uname -m"
MODINFO = "modinfo -F name " + " ".join(WANTED_MODULES)
TIMEDATECTL = "timedatectl show --property=NTP,NTPSynchronized"
CHRONY = "chronyc -c tracking"
UNITS = (
    *("NetworkManager", "systemd-networkd", "opensm", "opensmd", "bolt", "irqbalance"),
    *(*FIREWALL_UNITS, "chronyd", "chrony", "systemd-timesyncd", "ntpd", "networking"),
)
SYSTEMCTL = "systemctl is-active " + " ".join(UNITS)
COMMANDS = (MODINFO, TIMEDATECTL, CHRONY, SYSTEMCTL)

_TIME_SERVICES = ("chronyd", "chrony", "systemd-timesyncd", "ntpd")
_CPUINFO_BYTES, _MEMINFO_BYTES = 1024, 128


def read_machine(reader: Reader, tree: str, clock: Clock) -> Machine:
    release = _settings(reader.block("/etc/os-release") or reader.block("/usr/lib/os-release"))
    soft, hard = _memlock(reader)
    lockdown = re.search(r"\[([a-z]+)\]", reader.text("/sys/kernel/security/lockdown") or "")
    return Machine(
        tree=tree,
        system="linux",
        name=reader.text("/proc/sys/kernel/hostname"),
        os_name=release.get("PRETTY_NAME") or release.get("NAME"),
        os_id=release.get("ID"),
        os_like=tuple(release.get("ID_LIKE", "").split()),
        os_version=release.get("VERSION_ID"),
        os_build=release.get("BUILD_ID"),
        kernel=reader.text("/proc/sys/kernel/osrelease"),
        architecture=reader.text("/proc/sys/kernel/arch") or (reader.output(UNAME) or "").strip() or None,
        vendor=reader.text(f"{DMI}/sys_vendor"),
        product=reader.text(f"{DMI}/product_name"),
        bios=reader.text(f"{DMI}/bios_version"),
        cpu=_cpu(reader),
        cpus=_cpus(reader.text("/sys/devices/system/cpu/online")),
        memory_bytes=_memory(reader),
        boot_command_line=_command_line(reader),
        iommu=_iommu(reader),
        secure_boot=_secure_boot(reader),
        lockdown=lockdown[1] if lockdown else None,
        modules=_modules(reader),
        available_modules=_available(reader),
        memlock_bytes=soft,
        memlock_hard_bytes=hard,
        clock=clock,
        power_profile=reader.text(POWER_PROFILE),
        governor=reader.text(f"{FREQUENCY}/scaling_governor"),
        frequency_driver=reader.text(f"{FREQUENCY}/scaling_driver"),
        software=software(reader),
    )


def read_services(reader: Reader) -> tuple[Service, ...]:
    """The state of each unit, as systemd tells it; nothing where there is no systemd."""
    lines = (reader.output(SYSTEMCTL, quiet=True) or "").split()
    return tuple(map(Service, UNITS, lines)) if len(lines) == len(UNITS) else ()


def read_clock(reader: Reader, services: tuple[Service, ...]) -> Clock:
    shown = _settings(reader.output(TIMEDATECTL, quiet=True))
    synchronized = {"yes": True, "no": False}.get(shown.get("NTPSynchronized", ""))
    service = next((one.name for one in services if one.name in _TIME_SERVICES and one.active), None)
    offset = None
    tracked = (reader.output(CHRONY, quiet=True) or "").strip().split(",")
    if len(tracked) > 4 and re.fullmatch(r"-?[0-9]{1,9}\.[0-9]{1,9}", tracked[4]):
        offset = float(tracked[4])
    return Clock(synchronized, service, offset)


def _settings(text: str | None) -> dict[str, str]:
    """``KEY=value`` lines, quoted as for a shell."""
    found = {}
    for line in (text or "").splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and re.fullmatch(r"[A-Za-z_]\w{0,63}", key) and value.isprintable() and len(value) < 256:
            found[key] = value.strip("\"'")
    return found


def _cpu(reader: Reader) -> str | None:
    text = reader.block("/proc/cpuinfo", _CPUINFO_BYTES) or ""
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(\S.{0,127})$", text, re.MULTILINE)
    return match[1].strip() if match and match[1].isprintable() else None


def _cpus(online: str | None) -> int | None:
    """Number of CPUs that ``0-15,32`` names."""
    total = 0
    for part in (online or "").split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if match is None:
            return None
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total if total > 0 else None


def _memory(reader: Reader) -> int | None:
    text = reader.block("/proc/meminfo", _MEMINFO_BYTES)
    match = re.match(r"MemTotal:\s+([0-9]{1,15}) kB", text or "")
    if text is not None and match is None:
        reader.problem("/proc/meminfo", "has no MemTotal")
    return int(match[1]) * 1024 if match else None


def _command_line(reader: Reader) -> tuple[str, ...] | None:
    text = reader.block("/proc/cmdline")
    if text is None:
        return None
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def _iommu(reader: Reader) -> Iommu | None:
    if not reader.exists(IOMMU_GROUPS):
        return None
    groups = reader.names(IOMMU_GROUPS)
    types = collections.Counter(reader.text(f"{IOMMU_GROUPS}/{group}/type") for group in groups)
    return Iommu(len(groups), tuple(sorted((name, number) for name, number in types.items() if name is not None)))


def _secure_boot(reader: Reader) -> bool | None:
    """An EFI variable: four bytes of attributes, then the value."""
    text = reader.block(SECURE_BOOT)
    if text is None:
        return None
    if len(text) != 5 or text[4] not in "\0\1":
        reader.problem(SECURE_BOOT, "is no Secure Boot state")
        return None
    return text[4] == "\1"


def _modules(reader: Reader) -> tuple[Module, ...]:
    """Lines such as ``mlx4_ib 245760 0 - Live 0x0000000000000000 (OE)``."""
    found = []
    for line in (reader.block("/proc/modules") or "").splitlines():
        match = re.match(r"(\w{1,64}) [0-9]+ -?[0-9]+ \S+ \w+ 0x[0-9a-f]+(?: \(([A-Z+-]{1,16})\))?", line)
        if match:
            found.append(Module(match[1], match[2] or ""))
    return tuple(sorted(found, key=lambda one: one.name))


def _available(reader: Reader) -> tuple[str, ...] | None:
    told = reader.output(MODINFO, quiet=True)
    if told is None:
        return None
    listed = {line.strip().replace("-", "_") for line in told.splitlines()}
    return tuple(name for name in WANTED_MODULES if name in listed)


def _memlock(reader: Reader) -> tuple[int | None, int | None]:
    text = reader.block("/proc/self/limits")
    match = re.search(r"^Max locked memory +(unlimited|[0-9]{1,19}) +(unlimited|[0-9]{1,19})", text or "", re.MULTILINE)
    if match is None:
        if text is not None:
            reader.problem("/proc/self/limits", "has no limit of locked memory")
        return None, None
    soft, hard = (UNLIMITED_BYTES if one == "unlimited" else whole(one) for one in match.groups())
    return soft, hard
