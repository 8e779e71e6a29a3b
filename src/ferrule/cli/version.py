"""``ferrule version``."""

from __future__ import annotations

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

import typer

from ferrule import __version__
from ferrule.cli.flags import AsJson
from ferrule.cli.output import print_json
from ferrule.installation import version_of
from ferrule.process import usable_cores
from ferrule.units import format_bytes

PACKAGES = (
    *("torch", "transformers", "safetensors", "tokenizers", "huggingface_hub", "numpy"),
    *("fastapi", "uvicorn", "pydantic", "typer", "rich", "httpx", "psutil"),
)


app = typer.Typer()


@app.command(epilog="Examples:\n\nferrule version\n\nferrule version --json")
def version(as_json: AsJson = False) -> None:
    """Print the versions that matter in a bug report."""
    found = report()
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        typer.echo(f"{name:<{width}}  {value if value is not None else 'not installed'}")


def report() -> dict[str, str | int | None]:
    """Versions and properties found on this machine; None for what is not installed. ``memory`` is for reading."""
    import psutil

    memory = int(psutil.virtual_memory().total)
    return {
        "ferrule": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})",
        "system": operating_system(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable_cores(),
        "memory": format_bytes(memory),
        "memory_bytes": memory,
        "native_module": native_module(),
        "rdma": rdma(),
        **{name: version_of(name) for name in PACKAGES},
    }


def operating_system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):  # a system that does not say
        return platform.platform()


def cpu_model() -> str:
    """The processor's name as the kernel knows it, or at least its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor() or platform.machine()


def native_module() -> str | None:
    """Path of the native module, and what built it where the file says so. None when it was not built."""
    spec = find_spec("ferrule._native")
    if spec is None or spec.origin is None:
        return None
    compiler = built_by(Path(spec.origin).read_bytes())
    return f"{spec.origin} ({compiler})" if compiler else spec.origin


def rdma() -> str:
    """The RDMA devices that Ferrule could use, or why there are none."""
    try:
        from ferrule._native import verbs_ports
    except ImportError as error:
        return f"none: {error}"
    try:
        devices = sorted({str(port["device"]) for port in verbs_ports()})
    except OSError as error:  # built without RDMA, or no library or kernel support for it
        return f"none: {error}"
    return ", ".join(devices) or "none: no device"


def built_by(library: bytes) -> str | None:
    """The compiler's mark in the ``.comment`` section of an ELF file, such as ``GCC: (Debian 14.2.0-19) 14.2.0``."""
    for mark in (b"GCC: (", b"clang version "):
        at = library.rfind(mark)
        if at >= 0:
            return library[at : library.find(b"\0", at)].decode("ascii", errors="replace")
    return None
