"""Take the names and addresses of its owner out of a record, and keep what tells how the cables are.

The same thing gets the same pseudonym everywhere in one record, so that what belonged together still does. Pseudonyms
are keyed hashes; the key is random and forgotten, unless several records are to be read together.

| what | becomes |
|---|---|
| MAC addresses, GUIDs | others, of the same form; the group and "local" bits stay |
| unique ids and UUIDs, serial numbers | others, of the same form |
| host names, also of the other computers | ``host-1a2b3c`` |
| public IPv4 and IPv6 addresses | of 198.18.0.0/15 and 2001:db8::/32; addresses of one /24 or /64 still share one |
| interface parts of IPv6 addresses and GIDs | others, unless they are small numbers that a person chose |
| serial numbers of GPUs, and who built NVIDIA's driver | left out |
| comments and log prefixes of firewalls' rules | ``redacted`` |
| settings of interfaces in NetworkManager's and its peers' files | left out, but for the manager's name |
| values of unknown boot parameters, kernel addresses | ``redacted``, zeros |

Private addresses (10.0.0.5, fd00::5) stay: they are what most faults are about.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from ferrule.links.record import LinksRecord

_MAC = r"(?<![0-9A-Fa-f:.-])[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5}(?:(?::[0-9a-fA-F]{2}){14})?(?![0-9A-Fa-f:])"
_UUID = r"(?<![0-9A-Fa-f-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Fa-f-])"
_GUID = r"(?<![0-9A-Fa-f:])[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?![0-9A-Fa-f:])"
_NAMED_MAC = r"\benx[0-9a-f]{12}\b"
_IPV4 = r"(?<![0-9A-Za-z.-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9A-Za-z.])"
_IPV6 = (
    r"(?<![0-9A-Za-z:.])(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}|[0-9a-fA-F:]{0,34}::[0-9a-fA-F:.]{0,34})"
    r"(?![0-9A-Za-z:])"
)
_SHORT_MAC = r"(?<![0-9a-f:.])[0-9a-f]{1,2}(?::[0-9a-f]{1,2}){5}(?![0-9a-f:.])"
_SHORT_IPV4 = r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?=[ /])"
_PROC_IPV6 = r"^[0-9a-f]{32}(?= )"
_HEX16 = r"(?<![0-9A-Za-z])[0-9a-f]{16}(?![0-9A-Za-z])"

_RULES = ("nft ", "iptables-save", "ufw ", "firewall-cmd ")
_ADDRESSED = re.compile(
    r"^/proc/net/|/gids/[0-9]+$|^(?:ip|ifconfig|netstat|ibv_devinfo|nft|iptables-save|ufw|firewall-cmd)\b"
)
"""Pattern of files and commands with IP addresses and GIDs; elsewhere what looks like one is a version."""
_HOST_FILES = ("/proc/sys/kernel/hostname",)
_HOST_COMMANDS = ("uname -n",)
_XDOMAIN = re.compile(r"(.*/[0-9]{1,4}-[1-9a-f][0-9a-f]*)/device_name")
_SECRET_KEY = re.compile(r"serial|uu?id|udid|owner|user|host_name|computer|address|volume|ssid", re.IGNORECASE)
_MODELS = {"Mac Studio", "Mac mini", "Mac Pro", "MacBook Pro", "MacBook Air", "iMac", "MacBook Neo"}
_BOOT = re.compile(
    r"(?:amd_|intel_)?iommu(?:\.\w+)?|thunderbolt(?:_net)?\.\w+|pcie?(?:_\w+)?|module_blacklist|modprobe\.blacklist"
    r"|mitigations|nomodule|quiet|splash|ro|rw|isolcpus|nohz_full|idle|\w+\.max_cstate|lockdown|preempt"
    r"|amdgpu\.\w+|ttm\.\w+|mlx[45]_\w+\.\w+|\w*hugepage\w*|numa_balancing"
)
_CHOSEN = 1 << 16
"""Interface parts of addresses below this were chosen by a person."""
_ONLY = {
    r"/run/NetworkManager/devices/": r"managed=",
    r"/run/systemd/netif/links/": r"(?:ADMIN_STATE|NETWORK_FILE)=",
    r"/run/network/ifstate$": r"lo=lo$",
    r"/etc/network/interfaces$": r"\s*source",
    r"/etc/default/ufw$": r"DEFAULT_",
    r"/proc/driver/nvidia/gpus/": r"(?:Model|Bus Location|Device Minor):",
    r"/sys/.*/topology/nodes/[0-9]+/properties$": r"(?:gfx_target_version|drm_render_minor) ",
}
"""Files that may hold passwords, names, addresses and serial numbers, and the only lines of them that are kept."""
_MIN_HOST_NAME = 4
_SAID = re.compile(
    r"""(?P<what>"(?:comment|prefix)":\ |(?<!-m\ )comment\ |prefix\ |prefix=)"""
    r"""(?P<said>"(?:[^"\\\n]|\\.)*"|[^\s"]+)|(?P<mark>\ \ \#)[^\n]*""",
    re.VERBOSE,
)
"""Comments and log prefixes of firewalls' rules: as nft prints them (JSON and text), iptables, firewalld, ufw."""


class Redactor:
    """``key``: the same one gives the same pseudonyms in several records; by default a random one."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self._seen: dict[str, set[str]] = {}
        self._hosts: dict[str, None] = {}
        self._host_files: set[str] = set(_HOST_FILES)

    def record(self, plain: LinksRecord) -> LinksRecord:
        """The same, redacted; the header counts what was replaced."""
        self._learn(plain.files, plain.directories, plain.commands)
        name = self._names
        redacted = replace(
            plain,
            files={name(path): self._file(path, text) for path, text in plain.files.items()},
            directories={name(path): [name(one) for one in names] for path, names in plain.directories.items()},
            links={name(path): name(target) for path, target in plain.links.items()},
            errors={name(path): why for path, why in plain.errors.items()},
            commands={name(one): self._command(one, told) for one, told in plain.commands.items()},
        )
        counts = {kind: len(values) for kind, values in sorted(self._seen.items())}
        return replace(redacted, header=replace(plain.header, redacted=counts))

    def _learn(self, files: Mapping[str, str], directories: Collection[str], commands: Mapping[str, str]) -> None:
        """Find the host names, which may stand anywhere, before anything is redacted."""
        for path, text in files.items():
            # Another computer at the end of a cable looks like a dock, but has nothing to authorize.
            peer = _XDOMAIN.fullmatch(path)
            if peer and f"{peer[1]}/authorized" not in files and f"{peer[1]}/authorized" not in directories:
                self._host_files.add(path)
            if path in self._host_files and text.strip():
                self._hosts[text.strip()] = None
        for command in _HOST_COMMANDS:
            name = commands.get(command, "").strip()
            if name:
                self._hosts |= {name: None, name.partition(".")[0]: None}

    def _file(self, path: str, text: str) -> str:
        if path in self._host_files:
            return self._host(text.strip()) + "\n" if text.strip() else text
        if path == "/proc/cmdline":
            return self._boot(text)
        if (kept := next((lines for paths, lines in _ONLY.items() if re.match(paths, path)), None)) is not None:
            return "".join(f"{line}\n" for line in text.splitlines() if re.match(kept, line))
        if path == "/proc/driver/nvidia/version":
            return re.sub(r"\([^)\n]*@[^)\n]*\)", "(redacted)", text)  # who built the module, and where
        if path == "/proc/modules":
            return re.sub(r"0x[0-9a-f]{8,16}", lambda match: "0x" + "0" * (len(match[0]) - 2), text)
        if path == "/proc/net/route":
            return re.sub(r"\b[0-9A-F]{8}\b", self._swapped_ipv4, text)
        if path == "/proc/net/if_inet6":
            text = re.sub(_PROC_IPV6, self._packed_ipv6, text, flags=re.MULTILINE)
        return self._everywhere(path, text)

    def _command(self, command: str, told: str) -> str:
        if command in _HOST_COMMANDS:
            return self._host(told.strip()) + "\n" if told.strip() else told
        if command.startswith("system_profiler -json"):
            told = self._profile(told)
        if command.startswith("chronyc"):
            told = re.sub(r"^[^,\n]*,[^,\n]*", self._time_server, told)
        if command.startswith(_RULES):
            told = re.sub(_SAID, self._unsaid, told)
        if command == "ibv_devices":
            told = re.sub(_HEX16, lambda match: self._form("GUID", match[0]), told)
        for name in self._hosts:
            if len(name) >= _MIN_HOST_NAME:
                told = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda match: self._host(match[0]), told)
        return self._everywhere(command, told)

    def _names(self, text: str) -> str:
        """A path: interfaces may be named after their MAC address."""
        return re.sub(_NAMED_MAC, self._named_mac, text)

    def _everywhere(self, where: str, text: str) -> str:
        text = re.sub(_MAC, lambda match: self._mac(match[0]), text)
        text = re.sub(_UUID, lambda match: self._form("unique id", match[0]), text)
        text = re.sub(_NAMED_MAC, self._named_mac, text)
        text = re.sub(_GUID, lambda match: self._form("GUID", match[0]), text)
        if _ADDRESSED.search(where):
            text = re.sub(_IPV6, self._ipv6, text)
            text = re.sub(_IPV4, lambda match: self._ipv4(match[0]), text)
        return self._shortened(text) if where.startswith("netstat") else text

    def _shortened(self, text: str) -> str:
        """macOS's netstat leaves out zeros: ``17.57.144`` is a network of 24 bits, ``a4:83:e7:0:1:2`` a MAC address."""
        text = re.sub(_SHORT_IPV4, self._short_ipv4, text, flags=re.MULTILINE)
        return re.sub(_SHORT_MAC, self._short_mac, text)

    def _short_ipv4(self, match: re.Match[str]) -> str:
        return self._ipv4(f"{match[0]}.0").removesuffix(".0")

    def _short_mac(self, match: re.Match[str]) -> str:
        parts = match[0].split(":")
        # One with all its digits was replaced already.
        return (
            match[0] if all(len(part) == 2 for part in parts) else self._mac(":".join(f"{part:0>2}" for part in parts))
        )

    def _digest(self, kind: str, value: str) -> bytes:
        return hmac.digest(self._key, f"{kind}:{value.lower()}".encode(), hashlib.sha256)

    def _count(self, kind: str, value: str) -> None:
        self._seen.setdefault(kind, set()).add(value.lower())

    def _form(self, kind: str, text: str) -> str:
        """Other hexadecimal digits in the same places; a leading 0x stays. Zeros stay: they mean that there is none."""
        if not text.removeprefix("0x").strip("0-:"):
            return text
        self._count(kind, text)
        digits = iter(self._digest(kind, text).hex())
        head, rest = ("0x", text[2:]) if text.startswith("0x") else ("", text)
        upper = rest.upper() == rest
        other = "".join(next(digits) if letter in "0123456789abcdefABCDEF" else letter for letter in rest)
        return head + (other.upper() if upper else other)

    def _host(self, name: str) -> str:
        self._count("host name", name)
        return "host-" + self._digest("host", name.partition(".")[0]).hex()[:6]

    def _unsaid(self, match: re.Match[str]) -> str:
        self._count("comment of a rule", match[0])
        return match["mark"] or f'{match["what"]}"redacted"'

    def _time_server(self, match: re.Match[str]) -> str:
        self._count("time server", match[0])
        return "redacted,redacted"

    def _mac(self, text: str) -> str:
        octets = bytes.fromhex(text.replace(":", ""))
        if not any(octets) or set(octets) == {0xFF}:
            return text
        self._count("MAC address", text)
        other = bytearray(self._digest("mac", text)[: len(octets)])
        other[0] = other[0] & 0xFC | octets[0] & 0x03
        return other.hex(":")

    def _named_mac(self, match: re.Match[str]) -> str:
        octets = ":".join(re.findall("..", match[0].removeprefix("enx")))
        return "enx" + self._mac(octets).replace(":", "")

    def _ipv4(self, text: str) -> str:
        try:
            return str(self._other_ipv4(ipaddress.IPv4Address(text)))
        except ValueError:
            return text

    def _other_ipv4(self, address: ipaddress.IPv4Address) -> ipaddress.IPv4Address:
        """The last byte stays, and addresses of one /24 still share one."""
        if not address.is_global or address.is_multicast:
            return address
        self._count("public IP address", str(address))
        network = int.from_bytes(self._digest("ipv4", str(int(address) >> 8))[:2], "big") & 0x1FF
        return ipaddress.IPv4Address((198 << 24) + (18 << 16) + (network << 8) + (int(address) & 0xFF))

    def _swapped_ipv4(self, match: re.Match[str]) -> str:
        address = ipaddress.IPv4Address(int.from_bytes(bytes.fromhex(match[0])[::-1], "big"))
        return self._other_ipv4(address).packed[::-1].hex().upper()

    def _packed_ipv6(self, match: re.Match[str]) -> str:
        return self._other_ipv6(ipaddress.IPv6Address(bytes.fromhex(match[0]))).packed.hex()

    def _ipv6(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.IPv6Address(match[0])
        except ValueError:
            return match[0]
        other = self._other_ipv6(address)
        if other == address:
            return match[0]
        return other.exploded if len(match[0]) == len(address.exploded) else str(other)

    def _other_ipv6(self, address: ipaddress.IPv6Address) -> ipaddress.IPv6Address:
        if address.ipv4_mapped is not None:
            return ipaddress.IPv6Address((0xFFFF << 32) + int(self._other_ipv4(address.ipv4_mapped)))
        if address.is_multicast or address.is_loopback or address.is_unspecified:
            return address
        network, interface = int(address) >> 64, int(address) & ((1 << 64) - 1)
        if address.is_global:
            self._count("public IP address", str(address))
            part = int.from_bytes(self._digest("ipv6", str(network))[:4], "big")
            network = (0x20010DB8 << 32) + part
        if interface >= _CHOSEN:
            self._count("interface part of an IPv6 address", str(interface))
            interface = int.from_bytes(self._digest("interface", str(interface))[:8], "big") | _CHOSEN
        return ipaddress.IPv6Address((network << 64) + interface)

    def _boot(self, text: str) -> str:
        """Boot parameters may hold passwords, addresses and names; those that matter here are known."""
        kept = []
        for word in text.split():
            name, equals, _ = word.partition("=")
            if _BOOT.fullmatch(name):
                kept.append(word)
                continue
            self._count("boot parameter", word)
            kept.append(f"{name}=redacted" if equals and re.fullmatch(r"[\w.-]{1,64}", name) else "redacted")
        return " ".join(kept) + "\n"

    def _profile(self, told: str) -> str:
        """`system_profiler` tells much; what its keys call private goes. What is no JSON goes as a whole."""
        try:
            return json.dumps(self._private("", json.loads(told)), indent=1, ensure_ascii=False)
        except (ValueError, RecursionError):
            self._count("unreadable output", told)
            return ""

    def _private(self, key: str, value: Any) -> Any:
        if isinstance(value, dict):
            peer = "domain_uuid_key" in value and "services_title" in value
            return {
                name: self._private("host_name" if peer and name == "_name" else name, one)
                for name, one in value.items()
            }
        if isinstance(value, list):
            return [self._private(key, one) for one in value]
        if not isinstance(value, str) or not _SECRET_KEY.search(key) or re.fullmatch(_UUID, value):
            return value  # UUIDs are replaced everywhere
        if key == "host_name":
            return value if value in _MODELS else self._host(value)
        if re.fullmatch(r"(?:0x)?[0-9a-fA-F-]+", value):
            return self._form("unique id", value)
        self._count("serial number or name", value)
        return "redacted-" + self._digest("text", value).hex()[:8]
