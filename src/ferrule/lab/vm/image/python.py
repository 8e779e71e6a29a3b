"""The Python that runs us, for the guest: interpreter, standard library, and packages by their import names.

Taking this very interpreter means that the native module and every wheel at hand fit it.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from ferrule.errors import LabError

PACKAGES = "/opt/python"
"""The guest's directory for packages; it is in PYTHONPATH there."""

PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
"""Packages that a guest's Python needs to run tests."""

_BROUGHT_ALONG = {"ferrule": ("msgspec", "platformdirs", "cryptography", "_cffi_backend")}
"""Packages without which the rooms that guests use cannot be imported."""

_NOT_IN_GUEST = {"site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3"}


def interpreter() -> Path:
    """The real file of the interpreter, outside of any virtual environment."""
    return Path(sys._base_executable).resolve()  # type: ignore[attr-defined]


def standard_library() -> Iterator[tuple[str, Path]]:
    """Guest path and file of the interpreter and its library; it finds itself by its paths, so they are the host's."""
    yield str(interpreter()), interpreter()
    for key in ("stdlib", "platstdlib"):
        directory = Path(sysconfig.get_path(key, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix}))
        for path in _walk(directory.resolve()):
            yield str(path), path


def package(name: str) -> Iterator[tuple[str, Path]]:
    """Guest path and file of everything that ``import name`` may load, with the libraries that a wheel brings along."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise LabError(f"the guest should have the Python package {name}, but {sys.executable} has none; install it")
    if not spec.submodule_search_locations:
        if spec.origin is None or not Path(spec.origin).is_file():
            raise LabError(f"the Python module {name} has no file to take into the guest")
        yield f"{PACKAGES}/{Path(spec.origin).name}", Path(spec.origin)
        return
    for place in spec.submodule_search_locations:
        directory = Path(place)
        for top in (directory, directory.with_name(f"{directory.name}.libs")):
            for path in _walk(top):
                yield f"{PACKAGES}/{path.relative_to(directory.parent)}", path


def packages(names: Sequence[str]) -> Iterator[tuple[str, Path]]:
    brought = [each for name in names for each in (name, *_BROUGHT_ALONG.get(name, ()))]
    for name in dict.fromkeys(brought):
        yield from package(name)


def _walk(top: Path) -> Iterator[Path]:
    if not top.is_dir():
        return
    for path in sorted(top.iterdir()):
        if path.is_dir():
            if path.name not in _NOT_IN_GUEST and not path.name.startswith("config-"):
                yield from _walk(path)
        elif path.is_file() and path.suffix not in (".a", ".safetensors", ".pyi") and ".opt-" not in path.name:
            yield path
