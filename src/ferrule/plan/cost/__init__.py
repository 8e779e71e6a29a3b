"""Predict time and memory of a plan."""

from ferrule.plan.cost.calibration import (
    Calibration,
    Record,
    calibrate,
    calibrated,
    read_calibrations,
    read_records,
    record_of,
    save_calibrations,
    save_record,
)
from ferrule.plan.cost.context import BLOCK_PAGES, PAGE_TOKENS, shares_out
from ferrule.plan.cost.memory import largest_context, memory_of, weight_bytes
from ferrule.plan.cost.predictor import predict, predicted

__all__ = [
    "BLOCK_PAGES",
    "PAGE_TOKENS",
    "Calibration",
    "Record",
    "calibrate",
    "calibrated",
    "largest_context",
    "memory_of",
    "predict",
    "predicted",
    "read_calibrations",
    "read_records",
    "record_of",
    "save_calibrations",
    "save_record",
    "shares_out",
    "weight_bytes",
]
