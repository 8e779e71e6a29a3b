from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark's ranks spin on every core: beside other work a live one may be silent for a second."""
    monkeypatch.setenv("FERRULE_HEARTBEAT", "10s")
