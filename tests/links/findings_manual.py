"""The findings that docs/doctor.md lists: the one table of them."""

import re
from pathlib import Path

_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (note|warning|error) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def listed(probe: bool = False) -> dict[str, str]:
    """Each id with its worst severity; ``probe``: those of measured links instead of those of the doctor."""
    manual = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    found = {name: severity for name, severity, _, _ in _ROW.findall(manual)}
    return {name: severity for name, severity in found.items() if name.startswith("probe-") is probe}
