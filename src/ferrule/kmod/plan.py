"""Steps of installing and removing the driver, as data. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ferrule.kmod.files import LOAD, LOAD_TEXT, OPTIONS, OPTIONS_MODE, OPTIONS_TEXT
from ferrule.kmod.source import MODULE, PACKAGE, Source
from ferrule.kmod.state import Built, State
from ferrule.links.doctor.fix import Command, NewFile, RemoveFile


@dataclass(frozen=True, slots=True)
class NewTree:
    """A directory with files; what is there already is replaced."""

    path: str
    files: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class RemoveTree:
    path: str


@dataclass(frozen=True, slots=True)
class Verify:
    """That the module which is loaded is of this version."""

    version: str


@dataclass(frozen=True, slots=True)
class Signed:
    """That DKMS has signed what it built: it goes on without if it finds no tool for it."""

    kernel: str


Action = Command | NewFile | NewTree | RemoveTree | RemoveFile | Verify | Signed

FILES = {OPTIONS: OPTIONS_TEXT, LOAD: LOAD_TEXT}
_MODES = {OPTIONS: OPTIONS_MODE, LOAD: 0o644}


def source_tree(version: str) -> str:
    return f"/usr/src/{PACKAGE}-{version}"


def dkms(verb: str, version: str, *more: str) -> Command:
    return Command(("dkms", verb, "-m", PACKAGE, "-v", version, *more))


def plan_install(state: State, source: Source) -> tuple[Action, ...]:
    """Nothing if that version is installed and loaded. The one that was there runs until the new one is built."""
    version = source.version
    previous = _previous(state, version)
    steps: list[Action] = []
    if not state.installed(version):
        kernel = ("-k", state.kernel)
        steps.append(NewTree(source_tree(version), source.tree))
        steps += [] if any(one.version == version for one in state.built) else [dkms("add", version)]
        built = Built(version, state.kernel, "built") in state.built  # old versions of DKMS refuse to build it again
        steps += [] if built else [dkms("build", version, *kernel)]
        steps += [dkms("uninstall", previous, *kernel)] if state.installed(previous) else []
        steps.append(dkms("install", version, *kernel, "--force"))
        if state.signing.required:
            steps.append(Signed(state.kernel))
    if state.record is None or state.record.version != version:
        steps += [NewFile(path, text, _MODES[path]) for path, text in FILES.items()]
    if state.loaded != version:
        steps += [Command(("modprobe", "-r", MODULE))] if state.loaded is not None else []
        steps += [Command(("modprobe", MODULE)), Verify(version)]
    if previous and steps:
        steps += forget(state, previous)
    return tuple(steps)


def forget(state: State, version: str) -> list[Action]:
    """Take what DKMS and /usr/src have of ``version`` away."""
    known = any(one.version == version for one in state.built)
    return [*([dkms("remove", version, "--all")] if known else []), RemoveTree(source_tree(version))]


def plan_removal(state: State, version: str) -> tuple[Action, ...]:
    """All of ``version`` that there is; nothing where there is nothing."""
    steps: list[Action] = [Command(("modprobe", "-r", MODULE))] if state.loaded is not None else []
    steps += forget(state, version)
    written = state.record.written if state.record is not None else ()
    steps += [RemoveFile(path, FILES[path]) for path in reversed(written)]
    return tuple(steps)


def plan_return(state: State, version: str, failed: str) -> tuple[Action, ...]:
    """``version`` was there before ``failed`` was tried, and its source and its files still are: put it back."""
    kernel = ("-k", state.kernel)
    steps: list[Action] = []
    if state.loaded not in (None, version):
        steps.append(Command(("modprobe", "-r", MODULE)))
    steps += forget(state, failed)
    if not any(one.version == version for one in state.built):
        steps.append(dkms("add", version))
    if not state.installed(version):
        steps.append(dkms("install", version, *kernel, "--force"))
    if state.loaded != version:
        steps.append(Command(("modprobe", MODULE)))
    return tuple(steps)


def _previous(state: State, version: str) -> str:
    """The version that `ferrule driver install` had put there."""
    return state.record.version if state.record is not None and state.record.version != version else ""
