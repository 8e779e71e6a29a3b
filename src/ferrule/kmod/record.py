"""Installation record on disk of what was installed, and what is just being done: see `Record`."""

from __future__ import annotations

from msgspec.structs import replace

from ferrule.errors import DriverError
from ferrule.kmod.files import LOAD, OPTIONS
from ferrule.kmod.state import SCHEMA, Record
from ferrule.links.doctor.fix import Target
from ferrule.links.doctor.fix.machine import read_state, write_state

PLACE = "/var/lib/ferrule/driver.json"


def read_record(target: Target) -> Record | None:
    """None where nothing was installed. Raises `DriverError` if it is damaged."""
    text = target.read(PLACE)
    if text is None:
        return None
    try:
        found = read_state(text, Record, SCHEMA)
    except (ValueError, RecursionError) as error:
        raise DriverError(
            f"{PLACE} is damaged ({error}); `dkms status` shows what there is. Remove it and run this again"
        ) from error
    if found is None:
        raise DriverError(f"{PLACE} was written by another version of Ferrule; uninstall with that one")
    return replace(found, written=tuple(path for path in (OPTIONS, LOAD) if path in found.written))


def write_record(target: Target, record: Record) -> None:
    """Replaces it in one go; it is on the disk when this returns. Raises `DriverError`."""
    place = target.at(PLACE)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_state(place, record, 0o644)
    except OSError as error:
        raise DriverError(f"cannot write {PLACE}: {error.strerror}; nothing more is done") from error


def forget_record(target: Target) -> None:
    target.at(PLACE).unlink(missing_ok=True)
