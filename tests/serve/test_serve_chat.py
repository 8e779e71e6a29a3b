"""Chat completions with the real client."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from fake_engine import TEXT, FakeEngine

from ferrule.engine import SamplingParams

MODEL = "acme/fake-1b"
HELLO: Any = [{"role": "user", "content": "Hello"}]


def test_a_whole_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.created > 1_700_000_000
    assert answer.system_fingerprint
    assert answer.system_fingerprint.startswith("fp_")
    choice = answer.choices[0]
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", TEXT)
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.usage
    assert answer.usage.prompt_tokens == len(engine.calls[0].prompt)
    assert answer.usage.completion_tokens == len(engine.tokenizer.encode(TEXT)) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert engine.tokenizer.decode(engine.calls[0].prompt, skip_special_tokens=False) == (
        "<|user|>Hello<|end|><|assistant|>"
    )


def test_a_streamed_answer(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    contents = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(contents) == TEXT
    assert len([content for content in contents if content]) > 20, "it comes in pieces"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_when_asked_for(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, stream_options=options))
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])


def test_every_sampling_field_reaches_the_engine(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_completion_tokens=5,
        temperature=0.25,
        top_p=0.9,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"7": -100, "11": 2.5},
        logprobs=True,
        top_logprobs=3,
        extra_body={
            "top_k": 12,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "stop_token_ids": [9],
            "user": "somebody",
            "no_such_field": {"ignored": True},
        },
    )
    assert engine.calls[0].params == SamplingParams(
        max_tokens=5,
        temperature=0.25,
        top_p=0.9,
        top_k=12,
        min_p=0.05,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={7: -100.0, 11: 2.5},
        logprobs=3,
        stop_token_ids=(9,),
        ignore_eos=True,
    )


def test_what_is_left_out_comes_from_the_model(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"top_k": -1})
    client.chat.completions.create(model=MODEL, messages=HELLO, temperature=None, max_tokens=3)
    assert engine.calls[0].params == SamplingParams(temperature=0.6, top_k=0)
    assert engine.calls[1].params == SamplingParams(temperature=0.6, top_k=40, max_tokens=3)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_length_ends_an_answer(client: openai.OpenAI, field: str) -> None:
    limit: Any = {field: 4}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, **limit)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert answer.usage.completion_tokens == 4
    assert TEXT.startswith(answer.choices[0].message.content or "?")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (" lazy dog", "The quick brown fox jumps over the"),
        (["never", "你好"], "The quick brown fox jumps over the lazy dog. Grüße aus Köln, "),
        (["The"], ""),
        (["d", "c", "b", "a"], "The qui"),
        ("done.!", TEXT),
    ],
)
def test_stop_strings_are_never_sent(
    client: openai.OpenAI, engine: FakeEngine, stream: bool, stop: Any, expected: str
) -> None:
    if stream:
        chunks = list(client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, stop=stop)
        text, finish = answer.choices[0].message.content or "", answer.choices[0].finish_reason
    assert (text, finish) == (expected, "stop")
    assert engine.calls[0].ended == ("finished" if expected == TEXT else "cancelled")


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_at_once(client: openai.OpenAI, engine: FakeEngine, stream: bool) -> None:
    texts, finishes = [""] * 3, [""] * 3
    if stream:
        for chunk in client.chat.completions.create(model=MODEL, messages=HELLO, n=3, seed=5, stream=True):
            choice = chunk.choices[0]
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    else:
        answer = client.chat.completions.create(model=MODEL, messages=HELLO, n=3, seed=5)
        texts = [choice.message.content or "" for choice in answer.choices]
        finishes = [choice.finish_reason for choice in answer.choices]
        assert answer.usage
        assert answer.usage.completion_tokens == 3 * (len(engine.tokenizer.encode(TEXT)) + 1)
    assert texts == [TEXT] * 3
    assert finishes == ["stop"] * 3
    assert engine.most_active == 3
    seeds = [call.params.seed for call in engine.calls]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        made: Any = client.chat.completions.create(
            model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2, stream=True, max_tokens=20
        )
        entries = [entry for chunk in made if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    else:
        answer = client.chat.completions.create(
            model=MODEL, messages=HELLO, logprobs=True, top_logprobs=2, max_tokens=20
        )
        assert answer.choices[0].logprobs
        entries = answer.choices[0].logprobs.content or []
    assert len(entries) == 20
    assert TEXT.startswith("".join(entry.token for entry in entries))
    for entry in entries:
        assert entry.logprob == pytest.approx(math.log(0.5))
        assert bytes(entry.bytes or []).decode() == entry.token
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )
        assert len(entry.top_logprobs) == 2


def test_log_probabilities_of_the_chosen_tokens_only(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, logprobs=True, max_tokens=3)
    assert engine.calls[0].params.logprobs == 0
    assert answer.choices[0].logprobs
    assert [entry.top_logprobs for entry in answer.choices[0].logprobs.content or []] == [[], [], []]


def test_parts_and_roles(client: openai.OpenAI, engine: FakeEngine) -> None:
    messages: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "name": "ignored"},
        {"role": "user", "content": "three"},
    ]
    client.chat.completions.create(model="fake-1b", messages=messages)
    assert engine.tokenizer.decode(engine.calls[0].prompt, skip_special_tokens=False) == (
        "<|system|>Be brief.<|end|><|user|>one\ntwo<|end|><|assistant|><|end|><|user|>three<|end|><|assistant|>"
    )


def test_requests_run_together(client: openai.OpenAI, engine: FakeEngine) -> None:
    streams = [client.chat.completions.create(model=MODEL, messages=HELLO, stream=True) for _ in range(4)]
    assert ["".join(c.choices[0].delta.content or "" for c in each) for each in streams] == [TEXT] * 4
    assert all(call.ended == "finished" for call in engine.calls)
