"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
from fake_engine import FakeEngine
from running import running


@pytest.fixture
def serving() -> Iterator[Callable[..., openai.OpenAI]]:
    """Start a server for an engine and get a client of it; all are gone after the test."""
    with ExitStack() as stack:

        def start(engine: FakeEngine, *, key: str | None = None, **options: Any) -> openai.OpenAI:
            url = stack.enter_context(running(engine, api_key=key, **options))
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=key or "none", max_retries=0, timeout=10)
            return stack.enter_context(client)

        yield start


@pytest.fixture(scope="session")
def shared_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="session")
def shared_url(shared_engine: FakeEngine) -> Iterator[str]:
    with running(shared_engine) as url:
        yield url


@pytest.fixture
def engine(shared_engine: FakeEngine) -> FakeEngine:
    """The engine behind `client`, its calls forgotten."""
    shared_engine.calls.clear()
    shared_engine.most_active = 0
    return shared_engine


@pytest.fixture
def client(engine: FakeEngine, shared_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{shared_url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client
