"""Installation of this copy of Ferrule: what it lacks, and how to install more, so that it works on this machine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ferrule.errors import ConfigError

EXTRAS = {
    "engine": ("torch", "transformers", "safetensors", "tokenizers", "jinja2", "llguidance"),
    "serve": ("fastapi", "uvicorn", "pydantic", "PIL"),
    "bench": ("accelerate", "matplotlib"),
}
"""The packages that an extra adds to those of the extras before it, by the names that they are imported by."""


def require(extra: str, who: str) -> None:
    """Raises `ConfigError` where a package of ``extra`` is not installed. ``who``: what needs it, for the error."""
    package = missing(extra)
    if package is not None:
        raise lacking(extra, who, package)


def missing(extra: str) -> str | None:
    """The first package of ``extra`` that is not installed; None where all are. Nothing is imported: it takes a
    millisecond."""
    for name, packages in EXTRAS.items():
        for package in packages:
            if find_spec(package) is None:
                return package
        if name == extra:
            break
    return None


def lacking(extra: str, who: str, package: str) -> ConfigError:
    """The error that says how to install ``extra``, of which ``package`` is not there."""
    return ConfigError(f"{who} needs the {extra} extra ({package} is not installed): {pip_install(extra)}")


def pip_install(extra: str) -> str:
    """The shell command that adds the extra ``extra`` to the environment in which this Python runs."""
    return command(extra, _direct_url(), sys.executable)


def version_of(package: str) -> str | None:
    """The installed version, without importing the package: some take seconds. None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def command(extra: str, direct_url: Mapping[str, Any], python: str) -> str:
    """As `pip_install`. ``direct_url``: the record that installers leave of what they were given (PEP 610); empty for
    a package from an index."""
    url = str(direct_url.get("url", ""))
    flags = "-e " if direct_url.get("dir_info", {}).get("editable") else ""
    if url.startswith("file:"):
        what = f"{unquote(urlsplit(url).path)}[{extra}]"
    elif url:
        system = direct_url.get("vcs_info", {}).get("vcs")
        what = f"ferrule[{extra}] @ {f'{system}+' if system else ''}{url}"
    else:
        what = f"ferrule[{extra}]"
    return f"{shlex.quote(python)} -m pip install {flags}{shlex.quote(what)}"


def _direct_url() -> Mapping[str, Any]:
    try:
        text = metadata.distribution("ferrule").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # run from its source, by PYTHONPATH
        return {"url": Path(__file__).parents[2].as_uri(), "dir_info": {"editable": True}}
    found: Mapping[str, Any] = json.loads(text) if text else {}
    return found
