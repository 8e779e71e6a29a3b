"""Names of the PCI classes, vendors and adapters that matter here.

The identifiers are those of the public PCI ID repository (pci-ids.ucw.cz); only what people join machines with is
listed, so that a record reads the same everywhere, with a PCI database or without.
"""

from __future__ import annotations

_CLASSES = {
    0x0200: "Ethernet controller",
    0x0207: "InfiniBand controller",
    0x0280: "network controller",
    0x0604: "PCI bridge",
    0x0C06: "InfiniBand controller",
}
_USB4 = 0x0C0340

AMD, NVIDIA, INTEL = 0x1002, 0x10DE, 0x8086
"""Of GPUs."""

_VENDORS = {
    AMD: "AMD",
    0x1022: "AMD",
    0x106B: "Apple",
    NVIDIA: "NVIDIA",
    0x10EC: "Realtek",
    0x14C3: "MediaTek",
    0x14E4: "Broadcom",
    0x15B3: "Mellanox",
    0x17CB: "Qualcomm",
    0x1AF4: "Red Hat",
    0x1B21: "ASMedia",
    0x1D6A: "Aquantia",
    INTEL: "Intel",
}
_DEVICES = {
    (AMD, 0x1586): "Radeon 8060S (Strix Halo)",
    (AMD, 0x744C): "Radeon RX 7900",
    (AMD, 0x7550): "Radeon RX 9070",
    (0x1022, 0x158D): "Strix Halo USB4 Router",
    (0x1022, 0x158E): "Strix Halo USB4 Router",
    (NVIDIA, 0x2204): "GeForce RTX 3090",
    (NVIDIA, 0x2684): "GeForce RTX 4090",
    (NVIDIA, 0x2B85): "GeForce RTX 5090",
    (NVIDIA, 0x2E12): "GB10",
    (0x10EC, 0x8125): "RTL8125 2.5GbE",
    (0x10EC, 0x8126): "RTL8126 5GbE",
    (0x10EC, 0x8127): "RTL8127 10GbE",
    (0x10EC, 0x8168): "RTL8111/8168 1GbE",
    (0x14C3, 0x0616): "MT7922 Wi-Fi 6E",
    (0x14C3, 0x7925): "MT7925 Wi-Fi 7",
    (0x15B3, 0x1003): "ConnectX-3",
    (0x15B3, 0x1007): "ConnectX-3 Pro",
    (0x15B3, 0x1013): "ConnectX-4",
    (0x15B3, 0x1015): "ConnectX-4 Lx",
    (0x15B3, 0x1017): "ConnectX-5",
    (0x15B3, 0x1019): "ConnectX-5 Ex",
    (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101D): "ConnectX-6 Dx",
    (0x15B3, 0x101F): "ConnectX-6 Lx",
    (0x15B3, 0x1021): "ConnectX-7",
    (0x15B3, 0x1023): "ConnectX-8",
    (0x1AF4, 0x1000): "virtio network device",
    (0x1AF4, 0x1041): "virtio network device",
    (0x1D6A, 0x04C0): "AQC113 10GbE",
    (0x1D6A, 0x07B1): "AQC107 10GbE",
    (0x8086, 0x1137): "Maple Ridge Thunderbolt 4 NHI",
    (0x8086, 0x125B): "I226-LM 2.5GbE",
    (0x8086, 0x125C): "I226-V 2.5GbE",
    (0x8086, 0x1563): "X550 10GbE",
    (0x8086, 0x1572): "X710 10GbE",
    (0x8086, 0x1583): "XL710 40GbE",
    (0x8086, 0x1592): "E810-C QSFP 100GbE",
    (0x8086, 0x1593): "E810-C SFP 25GbE",
    (0x8086, 0x159B): "E810-XXV SFP 25GbE",
    (0x8086, 0x15F3): "I225-V 2.5GbE",
    (0x8086, 0x2725): "AX210 Wi-Fi 6E",
    (0x8086, 0x272B): "BE200 Wi-Fi 7",
    (INTEL, 0x56A0): "Arc A770",
    (INTEL, 0x56A1): "Arc A750",
    (INTEL, 0xE20B): "Arc B580",
    (INTEL, 0xE20C): "Arc B570",
    (INTEL, 0xE211): "Arc Pro B60",
    (INTEL, 0xE212): "Arc Pro B50",
    (0x8086, 0x5781): "Barlow Ridge Thunderbolt 5 NHI",
}


def class_name(code: int | None) -> str | None:
    """Of a class code of three bytes."""
    if code is None:
        return None
    return "USB4 controller" if code == _USB4 else _CLASSES.get(code >> 8)


def vendor_name(vendor: int | None) -> str | None:
    return None if vendor is None else _VENDORS.get(vendor, f"{vendor:04x}")


def device_name(vendor: int | None, device: int | None) -> str | None:
    """The adapter's name, or its number in hexadecimal."""
    if vendor is None or device is None:
        return None
    return _DEVICES.get((vendor, device), f"{device:04x}")
