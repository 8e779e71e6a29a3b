"""Package archive of this host: read from its own apt configuration, so that no address stands in our code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email import message_from_string
from pathlib import Path

from ferrule.errors import LabError

SOURCES = Path("/etc/apt")
OS_RELEASE = Path("/etc/os-release")
_STABLE = ("bookworm", "trixie")
"""Releases with backports, the newest one last."""


@dataclass(frozen=True)
class Source:
    """One suite of an archive. ``signed_by``: the keyring's path, or empty for apt's own trusted keys."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""

    def stanza(self) -> str:
        """The source in apt's deb822 format."""
        lines = ["Types: deb", f"URIs: {self.uri}", f"Suites: {self.suite}", f"Components: {' '.join(self.components)}"]
        if self.signed_by:
            lines.append(f"Signed-By: {self.signed_by}")
        return "\n".join(lines) + "\n"


def parse_deb822(text: str) -> list[Source]:
    """Sources of a ``*.sources`` file that give binary packages and are not disabled."""
    found = []
    for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text).strip()):
        fields = message_from_string(stanza)  # fields of mail headers have the same form
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in ("no", "false"):
            continue
        signed_by, components = fields.get("signed-by", ""), tuple(fields.get("components", "").split())
        found += [
            Source(uri, suite, components, "" if "\n" in signed_by else signed_by)
            for uri in fields.get("uris", "").split()
            for suite in fields.get("suites", "").split()
        ]
    return found


def parse_list(text: str) -> list[Source]:
    """Sources of a one-line-style ``*.list`` file that give binary packages."""
    found = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line.strip())
        if match:
            options, uri, suite, components = match.groups()
            signed = re.search(r"signed-by=(\S+)", options or "")
            found.append(Source(uri, suite, tuple(components.split()), signed.group(1) if signed else ""))
    return found


def host_sources(directory: Path = SOURCES) -> list[Source]:
    """All package sources that this host's apt is configured with."""
    parsers = {".sources": parse_deb822, ".list": parse_list}
    found: list[Source] = []
    for path in (directory / "sources.list", *sorted((directory / "sources.list.d").glob("*"))):
        if path.is_file() and path.suffix in parsers:
            found += parsers[path.suffix](path.read_text())
    return found


def host_release(os_release: Path = OS_RELEASE) -> str:
    """The code name of the host's Debian release, such as ``bookworm``. Raises `LabError` on other systems."""
    lines = os_release.read_text().splitlines() if os_release.exists() else []
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    name = fields.get("VERSION_CODENAME", "").strip('"')
    if fields.get("ID", "").strip('"') != "debian" or not name:
        what = fields.get("PRETTY_NAME", "an unknown system").strip('"')
        raise LabError(f"the VM lab takes kernels from Debian's archive, and this host runs {what}; run it on Debian")
    return name


def suite_sources(suite: str, sources: Iterable[Source], release: str) -> list[Source]:
    """The sources for ``suite`` and its security and point updates, at the mirror that the host itself uses.

    ``suite``: a release's code name, or one with ``-backports``. ``release``: the host's own. Raises `LabError`
    if the host has no source of its own release.
    """
    names = (release, f"{release}-updates", f"{release}-security")
    own = [source for source in sources if source.suite in names and "main" in source.components]
    archive = next((source for source in own if not source.suite.endswith("-security")), None)
    if archive is None:
        raise LabError(
            f"the host's apt configuration ({SOURCES}/sources.list.d) names no archive for {release}; "
            "add the distribution's own sources"
        )
    security = next((source for source in own if source.suite.endswith("-security")), None)
    base = base_suite(suite)
    if base == release:
        chosen = own
    else:
        chosen = [Source(archive.uri, name, ("main",), archive.signed_by) for name in (base, f"{base}-updates")]
        if security is not None:
            chosen.append(Source(security.uri, f"{base}-security", ("main",), security.signed_by))
    if suite != base:
        chosen.append(Source(archive.uri, suite, ("main",), archive.signed_by))
    return chosen


def newest_suite(release: str) -> str:
    """Suite in which a host with this release finds the newest stable kernel and emulator: its own suite if that is
    newer than the last stable release."""
    return f"{_STABLE[-1]}-backports" if release in _STABLE else release


def base_suite(suite: str) -> str:
    """The release to which ``suite`` belongs: ``trixie`` of ``trixie-backports``."""
    return re.split(r"[-/]", suite, maxsplit=1)[0]
