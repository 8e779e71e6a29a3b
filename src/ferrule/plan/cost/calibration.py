"""Calibration by kind of device: measurements of engines beside predictions, and correction factors from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from ferrule.files import FileRecord, cache_directory, locked, read_record, write_record
from ferrule.plan.cluster.spec import DeviceSpec
from ferrule.plan.cost.predictor import predict
from ferrule.plan.plan import Plan
from ferrule.plan.question import Question
from ferrule.plan.runtime import BUILT_IN_ENGINE

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R", bound=FileRecord)
_Seconds = Annotated[float, msgspec.Meta(ge=0)]

MAX_RECORDS = 200
_LOCK_SECONDS = 2.0
LEAST, MOST = 0.25, 4.0
"""By how much a calibration may change a device's speed: more is no efficiency but another machine."""


@dataclass(frozen=True)
class Record:
    """One measurement of a single stream, in seconds per token.

    A prediction is ``moving + operations * launch_seconds + rest``: ``moving`` is the time of bytes and arithmetic on
    devices of ``kind`` as they were measured or published, ``operations`` how many of them follow one upon another,
    ``rest`` what cables take. ``predicted``: without any calibration.
    """

    at: _Seconds
    model: str
    plan: str
    kind: str
    measured: Annotated[float, msgspec.Meta(gt=0)]
    predicted: _Seconds
    moving: _Seconds
    operations: Annotated[float, msgspec.Meta(ge=0)]
    rest: _Seconds


@dataclass(frozen=True)
class Calibration:
    """``speed``: how much faster devices of ``kind`` are than was believed, in bytes and arithmetic alike;
    ``launch_seconds``: per operation. ``before`` and ``after``: mean absolute errors over the ``records``."""

    kind: str
    speed: Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
    launch_seconds: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    records: int
    before: float
    after: float


class _Records(FileRecord, frozen=True, tag="planner-records"):
    """Each decoded by itself, so that a damaged one does not hide the others."""

    records: list[msgspec.Raw]


class _Calibrations(FileRecord, frozen=True, tag="planner-calibrations"):
    """By kind of device; each decoded by itself."""

    calibrations: dict[str, msgspec.Raw]


def record_of(question: Question, plan: Plan, measured: float, *, at: float) -> Record | None:
    """``question.cluster``: not calibrated. None where devices of several kinds take part, since any of them may be to
    blame."""
    cluster, runtime = question.cluster, question.runtime
    devices = [cluster.by_name[name] for name in plan.devices]
    kind = devices[0].kind or devices[0].name
    if any((device.kind or device.name) != kind for device in devices):
        return None
    prediction = predict(question, plan)
    parts = {"weights": 0.0, "cache": 0.0, "compute": 0.0, "launch": 0.0}
    rest = 0.0
    for term in prediction.terms:
        if term.kind in parts:
            parts[term.kind] += term.seconds
        else:
            rest += term.seconds
    launching = parts.pop("launch")
    launch = max(runtime.launch_seconds(device) for device in devices)
    operations = launching / launch if launch else 0.0
    return Record(
        at,
        question.model.name,
        f"{plan.strategy} on {plan.world_size}",
        kind,
        measured,
        prediction.token_seconds,
        sum(parts.values()),
        operations,
        rest,
    )


def calibrate(records: Iterable[Record], devices: Mapping[str, DeviceSpec]) -> list[Calibration]:
    """One for every kind of device that there are records of; ``devices``: one of each kind, not calibrated."""
    by_kind: dict[str, list[Record]] = {}
    for record in records:
        by_kind.setdefault(record.kind, []).append(record)
    return [_fit(kind, those, devices[kind]) for kind, those in sorted(by_kind.items()) if kind in devices]


def _fit(kind: str, records: Sequence[Record], device: DeviceSpec) -> Calibration:
    """Least squares of relative errors over (1 / speed, launch_seconds). Where the records cannot tell the two apart,
    the seconds per operation alone; where that would become negative, the speed alone."""
    measured = np.array([record.measured for record in records])
    moving, operations, rest = (
        np.array([getattr(record, name) for record in records]) for name in ("moving", "operations", "rest")
    )
    goal = (measured - rest) / measured
    columns = np.stack((moving / measured, operations / measured), axis=1)
    slowness, launch = 1.0, _alone(columns[:, 1], goal - columns[:, 0])
    if len(records) > 1 and np.linalg.cond(columns / np.linalg.norm(columns, axis=0)) < 50:
        slowness, launch = np.linalg.lstsq(columns, goal, rcond=None)[0]
    if launch < 0 or not 1 / MOST <= slowness <= 1 / LEAST:
        launch = max(0.0, launch) if 1 / MOST <= slowness <= 1 / LEAST else BUILT_IN_ENGINE.launch_seconds(device)
        slowness = float(np.clip(_alone(columns[:, 0], goal - columns[:, 1] * launch), 1 / MOST, 1 / LEAST))
    after = np.abs(columns @ np.array([slowness, launch]) - goal)
    before = np.abs(np.array([record.predicted for record in records]) / measured - 1)
    return Calibration(
        kind, 1 / float(slowness), float(launch), len(records), float(before.mean()), float(after.mean())
    )


def _alone(column: Any, goal: Any) -> float:
    square = float(column @ column)
    return float(column @ goal) / square if square else 0.0


def calibrated(device: DeviceSpec, found: Mapping[str, Calibration] | None = None) -> DeviceSpec:
    """The device as its records have shown it; unchanged where there are none."""
    calibration = (read_calibrations() if found is None else found).get(device.kind or device.name)
    if calibration is None:
        return device
    return replace(
        device,
        memory_bandwidth=device.memory_bandwidth * calibration.speed,
        flops={dtype: rate * calibration.speed for dtype, rate in device.flops.items()},
        launch_seconds=calibration.launch_seconds,
        eager_seconds=None,
    )


def save_record(record: Record, folder: Path | None = None) -> None:
    """Keep it with the others of this user. Never raises: a measurement is worth less than what goes on."""
    file = (folder or cache_directory()) / "planner-records.json"
    try:
        with locked(file.with_suffix(".lock"), _LOCK_SECONDS):
            records = [*read_records(folder), record][-MAX_RECORDS:]
            write_record(file, _Records([_raw(each) for each in records]))
    except (OSError, RuntimeError) as error:
        _log.warning("a measurement is not kept: %s", error)


def read_records(folder: Path | None = None) -> list[Record]:
    """The oldest first. What cannot be read is left out."""
    found = _read((folder or cache_directory()) / "planner-records.json", _Records)
    entries = found.records if found else ()
    return [record for entry in entries if (record := _entry(entry, Record)) is not None]


def save_calibrations(calibrations: Iterable[Calibration], folder: Path | None = None) -> None:
    """Later predictions use them. Raises `OSError` where the file cannot be written."""
    file = (folder or cache_directory()) / "planner-calibrations.json"
    write_record(file, _Calibrations({each.kind: _raw(each) for each in calibrations}))


def read_calibrations(folder: Path | None = None) -> dict[str, Calibration]:
    """By kind of device. What cannot be read is left out."""
    found = _read((folder or cache_directory()) / "planner-calibrations.json", _Calibrations)
    entries = {kind: _entry(entry, Calibration) for kind, entry in found.calibrations.items()} if found else {}
    return {kind: calibration for kind, calibration in entries.items() if calibration is not None}


def _raw(value: Record | Calibration) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _read(file: Path, kind: type[_R]) -> _R | None:
    try:
        return read_record(file, kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s cannot be read: %s", file, error)
        return None


def _entry(entry: msgspec.Raw, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(entry, type=kind)
    except msgspec.DecodeError as error:
        _log.warning("a %s of the planner is left out: %s", kind.__name__.lower(), error)
        return None
