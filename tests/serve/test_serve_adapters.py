"""A model and its LoRA adapters as the API names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake_engine import TEXT, FakeEngine

from ferrule.serve.answer.adapters import with_adapters
from ferrule.serve.answer.service import Service
from ferrule.serve.http.errors import ApiError
from ferrule.serve.tools.families import AUTO, dialect

BASE = "acme/fake-1b"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def test_adapters_are_models_beside_their_base(serving: Callable[..., openai.OpenAI]) -> None:
    engine = FakeEngine(adapters=("poet", "coder"))
    client = serving(engine)
    cards = {card.id: card.to_dict() for card in client.models.list()}
    assert list(cards) == [BASE, f"{BASE}:poet", f"{BASE}:coder"]
    assert [card.get("parent") for card in cards.values()] == [None, BASE, BASE]
    assert client.models.retrieve("poet").to_dict() == cards[f"{BASE}:poet"]
    for name, adapter in ((f"{BASE}:poet", "poet"), ("fake-1b:coder", "coder"), ("coder", "coder"), (BASE, None)):
        answer = client.chat.completions.create(model=name, messages=HELLO)
        assert answer.choices[0].message.content == TEXT
        assert answer.model == (BASE if adapter is None else f"{BASE}:{adapter}")
        assert engine.calls[-1].params.adapter == adapter
    text = client.completions.create(model="poet", prompt="Hello", temperature=0, stop="quick")
    assert (text.choices[0].text, engine.calls[-1].params.adapter) == ("The ", "poet")
    with pytest.raises(openai.NotFoundError, match=f"served are '{BASE}', '{BASE}:poet', '{BASE}:coder'"):
        client.chat.completions.create(model="fake-1b:painter", messages=HELLO)


def test_sequences_of_all_adapters_count_together() -> None:
    engine = FakeEngine(adapters=("poet",))
    base, poet = with_adapters(Service(engine, dialect(engine.tokenizer.chat_template, AUTO), max_sequences=2))
    with poet.admit(1), base.admit(1), pytest.raises(ApiError, match="2 sequences are being served"), poet.admit(1):
        pass
    with poet.admit(2):
        pass
