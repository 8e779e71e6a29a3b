from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENGINE = HERE.parent / "engine"
sys.path[:0] = map(
    str, (HERE, ENGINE, ENGINE / "gguf", ENGINE / "weights", ENGINE / "vision", ENGINE / "guests")
)  # the makers of servers and of tiny models

from server_process import Server, start_server  # noqa: E402


@pytest.fixture(scope="module")
def demo() -> Iterator[Server]:
    server = start_server("--demo", "--dtype", "float32")
    yield server
    server.stop()


@pytest.fixture
def fresh_demo() -> Iterator[Server]:
    server = start_server("--demo")
    yield server
    server.stop()
