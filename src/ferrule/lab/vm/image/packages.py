"""Debian packages by name, without touching the host's: an apt of our own in a cache directory.

Its package lists, downloads and (empty) status file are private, so no rights are needed and nothing is installed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ferrule.errors import LabError
from ferrule.lab.vm.image.cache import locked, made_once
from ferrule.lab.vm.image.commands import run
from ferrule.lab.vm.image.sources import Source

_UPDATE_SECONDS = 300
_DOWNLOAD_SECONDS = 900
_STALE_SECONDS = 3600  # older lists may name files that the mirror no longer has
_UPDATED = "updated"

# As `dpkg-deb --extract`, but a package's /lib does not replace the link that leads to /usr/lib.
_EXTRACT = 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink --no-same-owner'
_UNPACK = ("bash", "-o", "pipefail", "-c", _EXTRACT, "unpack")

_CONFIGURATION = """\
Dir::State "{root}/state";
Dir::State::lists "{root}/lists";
Dir::State::status "{root}/state/status";
Dir::Cache "{root}/cache";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{root}/empty";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{root}/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{root}/empty";
APT::Sandbox::User "";
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::Retries "3";
"""


@dataclass(frozen=True)
class Archive:
    """The packages of one suite of the host's mirror.

    ``directory``: where its lists live; ``suite``: what is preferred where several have a package; ``sources``: see
    `ferrule.lab.vm.image.sources.suite_sources`. Lists are fetched anew when they are an hour old.
    """

    directory: Path
    suite: str
    sources: Sequence[Source]

    def depends(self, package: str) -> list[str]:
        """Names of the packages that ``package`` depends on, virtual ones and alternatives left out."""
        text = self._apt("apt-cache", "depends", "--no-recommends", "--no-suggests", package, what=f"look up {package}")
        words = (line.strip().removeprefix("|").split(": ", 1) for line in text.splitlines())
        names = [word[1] for word in words if len(word) == 2 and word[0] == "Depends"]
        return [name for name in names if not name.startswith("<")]

    def version(self, package: str) -> str:
        """The version that would be fetched. Raises `LabError` if there is none."""
        for line in self._apt("apt-cache", "policy", package, what=f"look up {package}").splitlines():
            name, _, value = line.strip().partition(": ")
            if name == "Candidate" and value != "(none)":
                return value
        raise LabError(f"the suite {self.suite} has no package {package}")

    def unpack(self, packages: Sequence[str], into: Path) -> None:
        """Fetch exactly these packages (``name`` or ``name=version``) and unpack them below ``into``."""
        with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
            self._apt("apt-get", "download", *packages, what=self._purpose(packages), cwd=Path(scratch))
            _unpack_all(Path(scratch), into)

    def unpack_with_dependencies(self, packages: Sequence[str], into: Path) -> None:
        """Fetch these packages and all that they depend on, and unpack them; their scripts do not run."""
        with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
            self.fetch_with_dependencies(packages, Path(scratch))
            _unpack_all(Path(scratch), into)

    def fetch_with_dependencies(self, packages: Sequence[str], into: Path, *, status: Path | None = None) -> None:
        """Fetch the ``.deb`` files of these packages, and of all that they depend on, into the directory ``into``.

        ``status``: dpkg's list of what is installed where they shall go; that is left out.
        """
        (into / "partial").mkdir()
        options = [f"-oDir::Cache::archives={into}"]
        if status is not None:
            options.append(f"-oDir::State::status={status}")
        self._apt("apt-get", "install", "--download-only", *options, *packages, what=self._purpose(packages))

    def _purpose(self, packages: Sequence[str]) -> str:
        return f"fetch {', '.join(packages)} from {self.suite}"

    def _apt(self, *command: str, what: str, cwd: Path | None = None) -> str:
        made_once(self.directory, self._make)
        with locked(self.directory / "lock", _DOWNLOAD_SECONDS):
            updated = self.directory / _UPDATED
            if not updated.exists() or time.time() - updated.stat().st_mtime > _STALE_SECONDS:
                self._update(self.directory)
            return run(command, timeout=_DOWNLOAD_SECONDS, what=what, cwd=cwd, env=self._env(self.directory))

    def _make(self, root: Path) -> None:
        for name in ("state", "lists/partial", "cache/archives/partial", "empty", "sources"):
            (root / name).mkdir(parents=True)
        (root / "state" / "status").touch()
        (root / "sources" / "lab.sources").write_text("\n".join(source.stanza() for source in self.sources))
        # How the host reaches its mirror (proxies, methods, time limits) holds for us too; its hooks do not.
        acquire = run(["apt-config", "dump", "Acquire"], timeout=30, what="read apt's configuration")
        (root / "acquire.conf").write_text(acquire)
        self._update(root)

    def _update(self, root: Path) -> None:
        what = f"fetch the package lists of {self.suite}: what the cache lacks comes from this host's package archive"
        run(["apt-get", "update", "-q"], timeout=_UPDATE_SECONDS, what=what, env=self._env(root))
        (root / _UPDATED).touch()

    def _env(self, root: Path) -> dict[str, str]:
        # Written anew because the directory was made under another name.
        configuration = root / "apt.conf"
        text = (root / "acquire.conf").read_text() + _CONFIGURATION.format(root=root)
        if self.suite.endswith("-backports"):  # apt takes nothing from there unless it is told to
            text += f'APT::Default-Release "{self.suite}";\n'
        if not configuration.exists() or configuration.read_text() != text:
            configuration.write_text(text)
        return {"APT_CONFIG": str(configuration)}


def _unpack_all(archives: Path, into: Path) -> None:
    """Unpack every package in ``archives`` below ``into``, whose /usr is merged as in every current release."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (into / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (into / name).exists():
            (into / name).symlink_to(f"usr/{name}")
    for archive in sorted(archives.glob("*.deb")):
        run([*_UNPACK, archive, into], timeout=300, what=f"unpack {archive.name}")
