"""Install and remove the driver so that it is there or is not: a record on disk is always a step ahead."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from ferrule.errors import DriverError, LinkError
from ferrule.files import locked
from ferrule.kmod.look import look
from ferrule.kmod.machine import as_driver_error
from ferrule.kmod.plan import (
    Action,
    NewTree,
    RemoveTree,
    Signed,
    Verify,
    plan_install,
    plan_removal,
    plan_return,
    source_tree,
)
from ferrule.kmod.record import forget_record, write_record
from ferrule.kmod.source import MODULE, PACKAGE, Source
from ferrule.kmod.state import Record, State
from ferrule.links import Inventory
from ferrule.links.doctor.fix import Command, NewFile, RemoveFile, Target, as_text

Tell = Callable[[str], None]

_LOCK_SECONDS = 5.0


def describe(action: Action) -> str:
    """As a person would type it."""
    match action:
        case NewTree(path, files):
            return f"write {len(files)} files to {path}"
        case RemoveTree(path):
            return f"remove {path}"
        case RemoveFile(path):
            return f"remove {path}, if it is as it was written"
        case Verify(version):
            return f"check that {MODULE} {version} is loaded"
        case Signed():
            return "check that the module is signed"
        case NewFile(path):
            return f"write {path}"
        case _:
            return as_text(action)


def install(target: Target, source: Source, inventory: Inventory, tell: Tell) -> None:
    """Do what `plan_install` says. If a step fails, or on a signal that raises, all of it is taken back, and what was
    there before is put back. Raises `DriverError`."""
    with _alone(target), as_driver_error():
        state = recover(target, inventory, tell)
        previous = state.record.version if state.record is not None else ""
        written = state.record.written if state.record is not None else ()
        record = Record("installing", source.version, previous, written)
        steps = plan_install(state, source)
        try:
            write_record(target, record)
            for step in steps:
                record = _noted(target, record, step)
                tell(describe(step))
                _do(target, step, tell)
        except BaseException as error:
            tell("that failed" if isinstance(error, LinkError | DriverError) else "interrupted")
            _roll_back(target, inventory, record, tell)
            raise
        write_record(target, replace(record, phase="installed", previous=""))


def uninstall(target: Target, inventory: Inventory, tell: Tell) -> bool:
    """Take away what `install` brought; False where there is nothing of it. What others installed or changed stays.

    Raises `DriverError` if a step fails; the next call goes on from there.
    """
    with _alone(target), as_driver_error():
        state = look(target, inventory, root=True)
        if state.record is None:
            return False
        write_record(target, replace(state.record, phase="removing"))
        for version in dict.fromkeys((state.record.version, state.record.previous)):
            if version:
                _all(target, plan_removal(look(target, inventory, root=True), version), tell)
        forget_record(target)
        return True


def recover(target: Target, inventory: Inventory, tell: Tell) -> State:
    """Take back what a killed process began; gives what there is then."""
    state = look(target, inventory, root=True)
    record = state.record
    if record is None or record.phase == "installed":
        return state
    tell(f"taking back what was begun and not finished ({record.phase} {record.version})")
    _take_back(target, inventory, record, tell)
    return look(target, inventory, root=True)


def _roll_back(target: Target, inventory: Inventory, record: Record, tell: Tell) -> None:
    """A failure in here is told, and the next call tries again: the record still says what was begun."""
    try:
        _take_back(target, inventory, record, tell)
    except (LinkError, DriverError) as error:
        tell(f"taking it back failed, too: {error}; `ferrule driver uninstall` tries again")


def _take_back(target: Target, inventory: Inventory, record: Record, tell: Tell) -> None:
    """A removal is finished; what was to replace another version is undone if that one's source is still there."""
    if record.phase == "installing" and record.previous == record.version:
        tell(f"{record.version} was there before; it stays as far as it goes")
        write_record(target, replace(record, phase="installed", previous=""))
        return
    if record.phase == "installing" and record.previous and target.at(source_tree(record.previous)).is_dir():
        tell(f"putting {record.previous} back")
        _all(target, plan_return(look(target, inventory, root=True), record.previous, record.version), tell)
        write_record(target, Record("installed", record.previous, "", record.written))
        return
    tell("taking it back")
    for version in dict.fromkeys((record.version, record.previous)):
        if version:
            _all(target, plan_removal(look(target, inventory, root=True), version), tell)
    forget_record(target)


def _noted(target: Target, record: Record, step: Action) -> Record:
    if isinstance(step, NewFile) and step.path not in record.written and target.read(step.path) is None:
        record = replace(record, written=(*record.written, step.path))
        write_record(target, record)
    return record


def _all(target: Target, steps: tuple[Action, ...], tell: Tell) -> None:
    for step in steps:
        tell(describe(step))
        _do(target, step, tell)


def _do(target: Target, step: Action, tell: Tell) -> None:
    match step:
        case Command(argv):
            code, told = target.run(argv)
            if code != 0:
                raise LinkError(f"`{shlex.join(argv)}` failed{_cause(target, argv, told)}")
        case NewFile(path, text, mode):
            if target.read(path) is None:
                target.create(path, text, mode)
            elif target.read(path) != text:
                tell(f"{path} was there already; it stays as it is")
        case NewTree(path, files):
            _write_tree(target, path, files)
        case RemoveTree(path):
            _remove_tree(target, path)
        case RemoveFile(path, text):
            found = target.read(path)
            if found == text:
                target.remove(path)
            elif found is not None:
                tell(f"{path} was changed; it stays")
        case Verify(version):
            _verify(target, version)
        case Signed(kernel):
            if not target.run(("modinfo", "-k", kernel, "-F", "sig_id", MODULE))[1].strip():
                raise LinkError(
                    "DKMS did not sign the module, and this kernel takes only signed ones; see /var/lib/dkms"
                )


def _verify(target: Target, version: str) -> None:
    found = target.read(f"/sys/module/{MODULE}/version")
    if found is None or found.strip() != version:
        what = "none" if found is None else found.strip()
        raise LinkError(
            f"{MODULE} {version} was installed, but {what} is loaded; `modinfo {MODULE}` shows which file is taken"
        )


def _write_tree(target: Target, path: str, files: dict[str, bytes]) -> None:
    _remove_tree(target, path)
    place = target.at(path)
    try:
        place.mkdir(parents=True)
        for name, data in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
            (place / name).chmod(0o644)
    except OSError as error:
        raise LinkError(f"cannot write {path}: {error.strerror}") from error


def _remove_tree(target: Target, path: str) -> None:
    try:
        if target.at(path).exists():
            shutil.rmtree(target.at(path))
    except OSError as error:
        raise LinkError(f"cannot remove {path}: {error.strerror}") from error


def _cause(target: Target, argv: tuple[str, ...], told: str) -> str:
    """Part of an output that a person needs to see: a compiler's first errors, or why the kernel refused the module."""
    log = re.search(
        r"consult (?:the )?(?:(\S+make\.log)|make\.log in the build directory\s+(\S+?)/? for)", told, re.IGNORECASE
    )
    lines = told.splitlines()[-8:]
    if argv[:2] == ("dkms", "build"):
        place = log[1] if log and log[1] else f"/var/lib/dkms/{PACKAGE}/{argv[5]}/build/make.log"
        built = (target.read(place) or "").splitlines()
        wrong = [line for line in built if re.search(r"\berror\b|Error \d|No such file", line)]
        lines = [*(wrong or built or lines)[:8], f"all of it: {place}"]
    elif "Key was rejected" in told or "Required key not available" in told:
        lines.append("the kernel does not trust the key that signed it: see Secure Boot in docs/driver.md")
    elif argv[:2] == ("modprobe", "-r") and "in use" in told:
        lines.append("end the programs that use RDMA, and run this again")
    elif argv[0] == "modprobe":
        lines.append("`sudo dmesg | tail` says more")
    return ":\n  " + "\n  ".join(lines)


@contextmanager
def _alone(target: Target) -> Iterator[None]:
    """One installation or removal at a time."""
    try:
        with locked(target.at("/run/ferrule-driver.lock"), _LOCK_SECONDS):
            yield
    except (TimeoutError, PermissionError) as error:
        raise DriverError(f"cannot be sure to be alone: {error}; as root it works") from error
