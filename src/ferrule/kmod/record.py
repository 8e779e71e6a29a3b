"""What was installed, and what is just being done, on disk: see `Record`."""

from __future__ import annotations

import dataclasses
import secrets

import msgspec

from ferrule.errors import DriverError
from ferrule.kmod.files import LOAD, OPTIONS
from ferrule.kmod.state import SCHEMA, Record
from ferrule.links.doctor.fix import Target
from ferrule.links.doctor.fix.machine import write_synced

PLACE = "/var/lib/ferrule/driver.json"


class _Header(msgspec.Struct):
    schema: int


def read_record(target: Target) -> Record | None:
    """None where nothing was installed. Raises `DriverError` if it is damaged."""
    text = target.read(PLACE)
    if text is None:
        return None
    try:
        if msgspec.json.decode(text, type=_Header).schema != SCHEMA:
            raise DriverError(f"{PLACE} was written by another version of Ferrule; uninstall with that one")
        found = msgspec.json.decode(text, type=Record)
        return dataclasses.replace(found, written=tuple(path for path in (OPTIONS, LOAD) if path in found.written))
    except (ValueError, RecursionError) as error:
        raise DriverError(
            f"{PLACE} is damaged ({error}); `dkms status` shows what there is. Remove it and run this again"
        ) from error


def write_record(target: Target, record: Record) -> None:
    """Replaces it in one go; it is on the disk when this returns. Raises `DriverError`."""
    place = target.at(PLACE)
    fresh = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    text = msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_synced(fresh, text, 0o644)
        fresh.replace(place)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise DriverError(f"cannot write {PLACE}: {error.strerror}; nothing more is done") from error


def forget_record(target: Target) -> None:
    target.at(PLACE).unlink(missing_ok=True)
