"""Name what is wrong with cables, and the cure: pure functions from inventories to findings, a file per topic."""

from ferrule.links.doctor.cures import relevant
from ferrule.links.doctor.diagnosis import FindingJson, UnreachedJson, diagnose, diagnosis_json

__all__ = ["FindingJson", "UnreachedJson", "diagnose", "diagnosis_json", "relevant"]
