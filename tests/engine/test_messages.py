"""Control messages: what is not one is refused where it is decoded."""

from __future__ import annotations

import pytest
from fake_ranks import rank_options

from ferrule.engine import messages
from ferrule.engine.messages import (
    Add,
    Attach,
    Embed,
    Embedded,
    Event,
    Failed,
    Hand,
    HandedOver,
    Join,
    NewToken,
    Order,
    Scores,
    Start,
    Tokens,
    Wanted,
    decode_event,
    decode_order,
)
from ferrule.engine.types import PromptToken, SamplingParams
from ferrule.errors import EngineError, RequestError
from ferrule.process.lifeline import BEAT


@pytest.mark.parametrize(
    "order",
    [
        Start(rank_options(2)),
        Add(7, (1, 2), (3,), SamplingParams(logit_bias={5: -1.5}, stop_token_ids=(9,), seed=2**62)),
        Add(7, (1, 2), (), SamplingParams(prompt_logprobs=2), scored=1),
        Attach(7, b"\x00\xff"),
        Embed(7, (1, 2), "mean"),
        Add(7, (1, 2), (), SamplingParams(), hand=Hand(3, 0, 4, 1)),
        Join(2, 1, 3, ("127.0.0.1:9000",)),
    ],
)
def test_an_order_arrives_as_it_was_sent(order: Order) -> None:
    assert decode_order(messages.encode(order)) == order


@pytest.mark.parametrize(
    "event",
    [
        Tokens((NewToken(7, 3, -0.5, ((3, -0.5),), "stop"),)),
        Scores(7, 2, (PromptToken(-0.5, 1, ((3, -0.5),)), PromptToken(-1.5, 2, ()))),
        Embedded(7, b"\x00\xff"),
        Failed("PeerLost", "gone", 1),
        Wanted(7, 0, 4, 2),
        HandedOver(7, 4096, 0.5, 0.25),
    ],
)
def test_an_event_arrives_as_it_was_sent(event: Event) -> None:
    assert decode_event(messages.encode(event)) == event


def test_the_heartbeat_of_a_process_is_an_event() -> None:
    assert isinstance(decode_event(BEAT), messages.Alive)


@pytest.mark.parametrize("line", [b"", b"[]", b'{"op": "halt"}', b'{"op": "cancel", "id": "7"}', b'{"event": "here"}'])
def test_what_is_no_order_is_refused(line: bytes) -> None:
    with pytest.raises(EngineError, match=r"control message cannot be read .* same version"):
        decode_order(line)


def test_an_order_with_parameters_that_choose_no_token_is_refused() -> None:
    params = b'{"temperature": -1.0}'
    with pytest.raises((EngineError, RequestError), match="temperature cannot be"):
        decode_order(b'{"op": "add", "id": 1, "prompt": [1], "made": [], "params": ' + params + b"}")


def test_a_message_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LINE_LIMIT", 10)
    with pytest.raises(EngineError, match="has 18 bytes, more than 10"):
        decode_order(b'{"op": "meet"}    ')


def test_parameters_are_finite() -> None:
    with pytest.raises(RequestError, match="presence_penalty cannot be inf"):
        SamplingParams(presence_penalty=float("inf"))
