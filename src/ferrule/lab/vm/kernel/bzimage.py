"""Take the kernel proper out of a bzImage, so that a guest need not: emulated, that costs it three seconds or more.

Layout: Documentation/arch/x86/boot.rst of the kernel, "The Real-Mode Kernel Header".
"""

from __future__ import annotations

import lzma
import struct
import zlib

_SETUP_SECTORS, _MAGIC, _VERSION, _PAYLOAD = 0x1F1, 0x202, 0x206, 0x248
_SECTOR = 512
_DEFAULT_SETUP_SECTORS = 4
_PAYLOAD_SINCE = 0x0208  # the protocol's version that first says where the payload is

# The ELF note that says where a machine monitor may enter an uncompressed kernel; its address has 4 or 8 bytes.
_PVH_NOTES = tuple(struct.pack("<III4s", 4, size, 18, b"Xen\0") for size in (4, 8))


def kernel_proper(image: bytes) -> bytes | None:
    """The uncompressed ELF kernel of ``image``, or None if there is none that QEMU can start directly."""
    if image[_MAGIC : _MAGIC + 4] != b"HdrS" or struct.unpack_from("<H", image, _VERSION)[0] < _PAYLOAD_SINCE:
        return None
    start = ((image[_SETUP_SECTORS] or _DEFAULT_SETUP_SECTORS) + 1) * _SECTOR
    offset, length = struct.unpack_from("<II", image, _PAYLOAD)
    payload = image[start + offset : start + offset + length]
    try:
        if payload.startswith(b"\xfd7zXZ"):
            kernel = lzma.LZMADecompressor().decompress(payload)
        elif payload.startswith(b"\x1f\x8b"):
            kernel = zlib.decompressobj(wbits=31).decompress(payload)
        else:
            return None
    except (lzma.LZMAError, zlib.error):
        return None
    return kernel if kernel.startswith(b"\x7fELF") and any(note in kernel for note in _PVH_NOTES) else None
