"""What is asked of prompts: their log-probabilities, vectors, and texts to be filled in; with the real client."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest
from fake_engine import TEXT, FakeEngine, byte_level

from ferrule.model import Embedding

MODEL = "acme/fake-1b"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [0, 1, 5])
def test_echo_with_log_probabilities(client: openai.OpenAI, engine: FakeEngine, stream: bool, most: int) -> None:
    """As lm-eval asks for them."""
    prompts = ["Grüße, fox", "The dog"]
    made: Any = client.completions.create(
        model=MODEL, prompt=prompts, echo=True, logprobs=2, max_tokens=most, temperature=0, stream=stream
    )
    answers: list[dict[str, Any]] = [{"text": "", "tokens": 0} for _ in prompts]
    for event in made if stream else [made]:
        for choice in event.choices:
            mine = answers[choice.index]
            mine["text"] += choice.text
            mine["finish"] = choice.finish_reason
            for name, values in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                mine[name] = mine[name] + values if mine.get(name) else values
    first = [engine.tokenizer.encode(prompt) for prompt in prompts]
    script = engine.tokenizer.encode(TEXT)[:most]
    for prompt, tokens, answer in zip(prompts, first, answers, strict=True):
        assert answer["text"] == prompt + engine.tokenizer.decode(script)
        assert answer["finish"] == "length"
        assert answer["token_logprobs"][0] is None
        assert answer["top_logprobs"][0] is None
        told = [*(-0.001 * token for token in tokens[1:]), *[math.log(0.5)] * most]
        assert answer["token_logprobs"][1:] == pytest.approx(told)
        assert len(answer["tokens"]) == len(answer["top_logprobs"]) == len(tokens) + most
        assert answer["top_logprobs"][1][answer["tokens"][1]] == pytest.approx(-0.001 * tokens[1])
        assert len(answer["top_logprobs"][1]) in (2, 3)
        offsets = answer["text_offset"]
        assert offsets == sorted(offsets)
        assert [offsets[0], *offsets[len(tokens) : len(tokens) + 1]] == [0, *[len(prompt)] * bool(most)]
        for token, at in zip(answer["tokens"], offsets, strict=True):
            assert "\ufffd" in token or answer["text"].startswith(token, at)
    if not stream:
        assert made.usage.completion_tokens == most * len(prompts)
    assert {call.params.prompt_logprobs for call in engine.calls} == {2}


def test_vectors(client: openai.OpenAI, engine: FakeEngine) -> None:
    texts = ["The fox", "Köln"] * 20
    engine.embedded.clear()
    found = client.embeddings.create(model=MODEL, input=texts)  # in base64, which the client asks for and decodes
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    tokens = [engine.tokenizer.encode(text) for text in texts]
    assert [each.index for each in found.data] == list(range(40))
    for given, same, prompt in zip(found.data, plain.data, tokens, strict=True):
        right = np.bincount(np.array(prompt) % 4, minlength=4)
        np.testing.assert_allclose(given.embedding, right / np.linalg.norm(right), rtol=1e-6)
        assert given.embedding == pytest.approx(same.embedding, rel=1e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(map(len, tokens))
    assert [len(each) for each in engine.embedded] == [32, 8, 32, 8]
    raw = client.embeddings.with_raw_response.create(model=MODEL, input=tokens[0], encoding_format="base64")
    body = raw.http_response.json()
    assert np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4").tolist() == found.data[0].embedding
    assert (body["object"], body["data"][0]["object"], body["model"]) == ("list", "embedding", MODEL)


@pytest.mark.parametrize(
    ("given", "param", "why"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "must be"),
        ({"input": ["a", "b" * 4000]}, "input", "more than this model"),
        ({"input": [1, 99999]}, "input", "not a token"),
        ({"input": "a", "dimensions": 3}, "dimensions", "does not say that they can be cut"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float"),
    ],
)
def test_vectors_that_are_not_made(client: openai.OpenAI, given: dict[str, Any], param: str, why: str) -> None:
    with pytest.raises(openai.BadRequestError, match=why) as caught:
        client.embeddings.create(**({"model": MODEL, "encoding_format": "float"} | given))
    assert caught.value.param == param


def test_texts_are_made_lower_case_where_the_model_was_trained_so(serving: Callable[..., openai.OpenAI]) -> None:
    engine = FakeEngine(embedding=Embedding(lower=True))
    serving(engine).embeddings.create(model=MODEL, input=["The Fox", "É"], encoding_format="float")
    assert engine.embedded == [[tuple(engine.tokenizer.encode(text)) for text in ("the fox", "é")]]


def test_vectors_are_cut_where_the_model_was_trained_for_it(serving: Callable[..., openai.OpenAI]) -> None:
    client = serving(FakeEngine(embedding=Embedding(dimensions=(2,))))
    whole = np.array(client.embeddings.create(model=MODEL, input="The fox", dimensions=4).data[0].embedding)
    cut = client.embeddings.create(model=MODEL, input="The fox", dimensions=2).data[0].embedding
    np.testing.assert_allclose(cut, whole[:2] / np.linalg.norm(whole[:2]), rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="or give 2"):
        client.embeddings.create(model=MODEL, input="The fox", dimensions=3)


@pytest.mark.parametrize(
    ("marks", "shape", "ends"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"), "{0}{p}{1}{s}{2}", (3,)),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "{0}{p}{1}{s}{2}", ()),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "{0}{p}{1}{s}{2}", ()),
        (("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"), "{0}{p}{1}{s}{2}", (3,)),
        (("[SUFFIX]", "[PREFIX]"), "{0}{s}{1}{p}", ()),
    ],
)
def test_a_text_is_filled_in(
    serving: Callable[..., openai.OpenAI], marks: tuple[str, ...], shape: str, ends: tuple[int, ...]
) -> None:
    engine = FakeEngine(tokenizer=byte_level(specials=marks))
    client = serving(engine)
    answer = client.completions.create(model=MODEL, prompt="def fox(", suffix="  return dog", max_tokens=8)
    tokens = engine.tokenizer
    assert tokens.decode(engine.calls[0].prompt, skip_special_tokens=False) == shape.format(
        *marks, p="def fox(", s="  return dog"
    )
    assert engine.calls[0].params.stop_token_ids == tuple(tokens.encode(marks[at])[0] for at in ends)
    assert answer.choices[0].text == tokens.decode(tokens.encode(TEXT)[:8])
