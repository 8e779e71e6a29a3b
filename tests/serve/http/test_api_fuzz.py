"""schemathesis on the description of the API, over the scripted engine: no 500, no status, header or body that the
description does not have, no method or missing key that gets through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from fake_hub import FakeHub, serving
from running import running

CONFIG = f"""
hooks = "{Path(__file__).with_name("fuzz_hooks.py")}"

[checks.positive_data_acceptance]
# What a template, a tokenizer or the length of the context refuses is not in a schema, nor how long it takes until a
# request has its turn, for `queue_timeout`.
expected-statuses = ["2xx", 400, 404, 429]
"""


@pytest.mark.parametrize(
    "seconds", [pytest.param(20, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.soak)]
)
def test_all_checks_of_schemathesis_hold(tmp_path: Path, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that fetch and delete models ask a hub on loopback, which has one, and have a folder of their own."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    engine = FakeEngine()
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"x" * 2000}
    with serving(FakeHub("acme/tiny-1b", files)) as hub, running(engine, api_key="key") as url:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
                *("run", f"{url}/openapi.json", "--checks", "all", "--header", "Authorization: Bearer key"),
                *("--max-time", str(seconds), "--seed", "1", "--suppress-health-check", "all", "--no-color"),
                "--continue-on-failure",
            ],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=seconds + 240,
        )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "Tested: 0" not in done.stdout
    assert len(engine.calls) >= 3, "requests got as far as the model"
    assert any(path.endswith("/model.safetensors") for _, path, _ in hub.asked), hub.asked
