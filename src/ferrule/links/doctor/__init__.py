"""Name what is wrong with cables, and the cure: pure functions from inventories to findings, a file per topic."""

from ferrule.links.doctor.cures import relevant
from ferrule.links.doctor.diagnosis import diagnose, diagnosis_json, finding_json

__all__ = ["diagnose", "diagnosis_json", "finding_json", "relevant"]
