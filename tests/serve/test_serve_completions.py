"""Text completions with the real client, and the list of models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake_engine import TEXT, FakeEngine, byte_level

MODEL = "acme/fake-1b"


def test_a_whole_answer_has_sixteen_tokens_unless_asked_otherwise(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once")
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.usage
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == engine.tokenizer.decode(engine.tokenizer.encode(TEXT)[:16])
    assert engine.tokenizer.decode(engine.calls[0].prompt) == "Once"


def test_a_streamed_answer_with_usage(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        client.completions.create(model=MODEL, prompt="Once", max_tokens=400, stream=True, stream_options=options)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.prompt_tokens > 0


def test_every_form_of_prompt(client: openai.OpenAI, engine: FakeEngine) -> None:
    a, b = engine.tokenizer.encode("One day"), engine.tokenizer.encode("Two")
    forms: list[tuple[Any, list[list[int]]]] = [
        ("One day", [a]),
        (["One day", "Two"], [a, b]),
        (a, [a]),
        ([a, b], [a, b]),
    ]
    for prompt, expected in forms:
        engine.calls.clear()
        answer = client.completions.create(model=MODEL, prompt=prompt, n=2, seed=3)
        assert [choice.index for choice in answer.choices] == list(range(2 * len(expected)))
        assert [list(call.prompt) for call in engine.calls] == [tokens for tokens in expected for _ in range(2)]
        assert len({call.params.seed for call in engine.calls}) == 2, "the same prompt alone gets the same answers"
        assert answer.usage
        assert answer.usage.prompt_tokens == sum(map(len, expected))


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: openai.OpenAI, engine: FakeEngine, stream: bool) -> None:
    prompts: Any = ["Once ", "Twice "]
    texts = ["", ""]
    if stream:
        for chunk in client.completions.create(model=MODEL, prompt=prompts, echo=True, max_tokens=200, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        answer = client.completions.create(model=MODEL, prompt=prompts, echo=True, max_tokens=200)
        texts = [choice.text for choice in answer.choices]
    assert texts == ["Once " + TEXT, "Twice " + TEXT]
    tokens = engine.tokenizer.encode("Once")
    assert client.completions.create(model=MODEL, prompt=tokens, echo=True).choices[0].text.startswith("OnceThe")


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(client: openai.OpenAI, stream: bool) -> None:
    collected: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if stream:
        made: Any = client.completions.create(model=MODEL, prompt="x", logprobs=2, max_tokens=400, stream=True)
    else:
        made = [client.completions.create(model=MODEL, prompt="x", logprobs=2, max_tokens=400)]
    text = ""
    for answer in made:
        text += answer.choices[0].text
        for name, values in collected.items():
            values.extend(getattr(answer.choices[0].logprobs, name))
    assert text == TEXT
    assert len({len(values) for values in collected.values()}) == 1
    assert set(collected["token_logprobs"]) == {math.log(0.5)}
    for token, offset, top in zip(
        collected["tokens"], collected["text_offset"], collected["top_logprobs"], strict=True
    ):
        assert "\ufffd" in token or text[offset : offset + len(token)] == token
        assert token in top


def test_no_log_probabilities_unless_asked(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt="x").choices[0].logprobs is None


def test_ignoring_the_end_goes_on_to_the_limit(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="x", max_tokens=150, extra_body={"ignore_eos": True})
    assert answer.usage
    assert answer.usage.completion_tokens == 150
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text.startswith(TEXT + "The")


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.created) == (MODEL, "model", "ferrule", 1_700_000_000)
    assert client.models.retrieve(MODEL) == model
    assert client.models.retrieve("fake-1b") == model


def test_a_suffix_is_filled_in_by_models_that_can(serving: Callable[..., openai.OpenAI]) -> None:
    marks = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")
    engine = FakeEngine(tokenizer=byte_level(specials=marks))
    client = serving(engine)
    made = client.completions.create(model=MODEL, prompt="def f(", suffix="):\n", max_tokens=2, echo=True)
    assert made.choices[0].text.startswith("def f(The")
    asked = engine.tokenizer.decode(engine.calls[0].prompt, skip_special_tokens=False)
    assert asked == "<｜fim▁begin｜>def f(<｜fim▁hole｜>):\n<｜fim▁end｜>"
    assert engine.calls[0].prompt[0] == engine.tokenizer.backend.token_to_id(marks[0])
