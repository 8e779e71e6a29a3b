"""This copy of Ferrule in another environment: the same version as here, and nothing is compiled."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from ferrule.engine.guests.environments.environment import Installed, interpreter, own_version
from ferrule.errors import ConfigError

_NATIVE = "ferrule._native"
_PACKAGE = Path(__file__).parents[3]
ENTRY_POINTS = """\
[torch.backends]
ferrule = ferrule.torch_backend:autoload
[vllm.platform_plugins]
ferrule = ferrule.torch_backend.vllm:platform
[vllm.general_plugins]
ferrule = ferrule.torch_backend.vllm:register
"""
"""Those of pyproject.toml that engines look for. Not read from what is installed here: that may be a source tree that
was installed before it had them."""


def requirements() -> list[str]:
    """What the base installation asks for, as pip takes it."""
    try:
        lines = metadata.requires("ferrule") or []
    except metadata.PackageNotFoundError:  # run from its source, by PYTHONPATH
        lines = _project()["dependencies"]
    return [line for line in lines if "extra ==" not in line]


def digest() -> str:
    """Of the package's own files: copies with the same one are the same version, whatever they call themselves."""
    told = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        told.update(f"{path.relative_to(_PACKAGE)} {path.stat().st_size}\n".encode() + path.read_bytes())
    told.update(_native().read_bytes())
    return told.hexdigest()


def outdated(found: Installed) -> bool:
    """Whether it has another version of Ferrule or Python than this one: ranks of one group need the same."""
    return found.python != interpreter() or found.ferrule != own_version() or found.digest != digest()


def copy_into(site: Path) -> None:
    """Put the package, its native library and its entry points into ``site``, instead of what is there of it.

    Raises `ConfigError` where the native library is not there, and `OSError`."""
    native = _native()
    fresh, place = site / ".ferrule.new", site / "ferrule"
    for old in (fresh, place, *site.glob("ferrule-*.dist-info")):
        shutil.rmtree(old, ignore_errors=True)
    # Another build's library may lie in a source tree: the one that is loaded here goes along, alone.
    shutil.copytree(_PACKAGE, fresh, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy2(native, fresh / native.name)
    fresh.rename(place)
    write_metadata(site, "ferrule", own_version(), ENTRY_POINTS)


def write_metadata(site: Path, name: str, version: str, entry_points: str = "") -> None:
    """Make ``importlib.metadata`` of that environment know ``name``."""
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("ferrule\n")
    if entry_points:
        (folder / "entry_points.txt").write_text(entry_points)


def _native() -> Path:
    try:
        return Path(str(import_module(_NATIVE).__file__))
    except ImportError as error:
        raise ConfigError(f"Ferrule's native library cannot be loaded, which an engine needs: {error}") from error


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((_PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    return found
