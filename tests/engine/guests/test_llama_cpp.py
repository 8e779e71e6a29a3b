"""What is said to llama-server, what is read of its answers, and how it is started; no process is."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from guest_engines import demo

from ferrule.engine.abilities import BUILT_IN, CONSTRAINTS, FIELDS, Abilities
from ferrule.engine.guests import start
from ferrule.engine.guests.guest import Ask, Launch, Piece, Program, Room
from ferrule.engine.guests.llama_cpp import guest as module
from ferrule.engine.guests.llama_cpp.answer import Stream, post_of, whole_of
from ferrule.engine.guests.llama_cpp.guest import LlamaCpp, room_in
from ferrule.engine.options import Adapter, EngineOptions
from ferrule.engine.types import Constraint, SamplingParams, Token
from ferrule.errors import ConfigError, EngineError, ModelError, PlanError, RequestError
from ferrule.plan import make_plan

PARAMS = SamplingParams(seed=4)


def event(*tokens: int, count: int, content: str = "x", stop: str | None = None, **more: object) -> bytes:
    said = {"tokens": tokens, "content": content, "tokens_predicted": count, **more}
    return json.dumps(said | ({"stop": True, "stop_type": stop} if stop else {"stop": False})).encode()


def read(*events: bytes, params: SamplingParams = PARAMS) -> list[Piece]:
    stream = Stream(params)
    return [piece for each in events for piece in stream.read(each)]


def test_a_request_says_all_that_a_build_could_have_another_default_of() -> None:
    params = replace(
        PARAMS,
        repetition_penalty=1.1,
        logit_bias={7: -100.0, 3: 1.0},
        logprobs=0,
        constraint=Constraint("json_schema", '{"a": 1}'),
    )
    post = post_of(Ask((1, 2), params, 10, (3,)), stream=True)
    assert post.path == "/completion"
    told = {
        "prompt": (1, 2, 3), "n_predict": 10, "stream": True, "return_tokens": True, "temperature": 1.0, "top_k": 0,
        "top_p": 1.0, "min_p": 0.0, "seed": 4, "repeat_penalty": 1.1, "repeat_last_n": 13, "n_probs": 1,
        "ignore_eos": False, "logit_bias": [(3, 1.0), (7, -100.0)], "json_schema": {"a": 1},
    }  # fmt: skip
    assert {name: post.body[name] for name in told} == told


def test_tokens_in_the_midst_of_a_character_are_told_by_their_number_only() -> None:
    assert read(event(5, count=1), event(6, count=4), event(count=4, content="", stop="limit")) == [
        Piece((Token(5),)),
        Piece((Token(6),), None, 2),
        Piece((), "length"),
    ]
    assert read(event(5, count=1), event(count=2, content="", stop="limit"))[-1] == Piece((), "length", 1)


def test_a_token_without_text_may_be_the_end() -> None:
    ended = read(event(5, count=1), event(2, count=2, content=""), event(count=2, content="", stop="eos"))
    assert ended == [Piece((Token(5),)), Piece((Token(2),), "stop")]
    went_on = read(event(2, count=1, content=""), event(5, count=2), event(count=2, content="", stop="limit"))
    assert went_on == [Piece((Token(2),)), Piece((Token(5),)), Piece((), "length")]


def test_probabilities() -> None:
    top = [{"id": 5, "logprob": -0.5}, {"id": 6, "logprob": -2.0}]
    one = event(5, count=1, completion_probabilities=[{"id": 5, "logprob": -0.5, "top_logprobs": top}])
    assert read(one, params=replace(PARAMS, logprobs=1)) == [Piece((Token(5, -0.5, ((5, -0.5),)),))]
    with pytest.raises(ValueError, match="1 tokens with 0 probabilities"):
        read(event(5, count=1), params=replace(PARAMS, logprobs=1))


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (b"{", ValueError, "truncated"),
        (b'{"tokens": ["a"]}', ValueError, "Expected `int`"),
        (event(count=1, stop="word"), ValueError, "for the reason 'word'"),
        (event(5, 6, count=1), ValueError, "1 tokens after 0"),
        (b'{"error": {"code": 400, "message": "too long"}}', RequestError, "llama.cpp: too long"),
        (b'{"error": {"code": 500, "message": "out of memory"}}', EngineError, "llama.cpp: out of memory"),
    ],
)
def test_what_is_no_answer(said: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(said)


def test_an_answer_in_one_piece() -> None:
    ask = Ask((1,), PARAMS, 2)
    assert whole_of(ask, event(5, 6, count=2, stop="limit")) == Piece((Token(5), Token(6)), "length")
    assert whole_of(ask, event(2, count=1, stop="eos")) == Piece((Token(2),), "stop")


def test_room_for_sequences_is_what_half_of_the_memory_holds() -> None:
    spec, _ = demo()
    one = int(spec.cache_bytes(1000))
    assert room_in(5 * one, spec, Room(1000, 64), 1.0, None) == (1000, 5)
    assert room_in(500 * one, spec, Room(1000, 64), 1.0, None) == (1000, 16)
    assert room_in(10 * one, spec, Room(1000, 64), 2.0, None).sequences == 5
    smaller = room_in(int(spec.cache_bytes(6000)), spec, Room(8000, 64), 1.0, None)
    assert smaller.sequences == 1
    assert 5900 < smaller.context <= 6000
    with pytest.raises(PlanError, match="use --max-context with less"):
        room_in(one // 2, spec, Room(1000, 64), 1.0, 1000)


def test_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_flags", lambda program: frozenset({"--fit", "--no-webui", "--no-cache-prompt"}))
    spec, _ = demo()

    def line(**options: object) -> str:
        asked = EngineOptions("m", **options)
        launch = Launch(Program(Path("llama")), Path("m.gguf"), "m", spec, make_plan(spec), asked, Room(256, 2), 3)
        return " ".join([*module._arguments(launch), *module._place(asked)])

    assert "--ctx-size 512 --parallel 2 --threads 3 --cache-type-k f16" in line()
    assert "--fit off --no-webui --device none --n-gpu-layers 0" in line()
    assert "--cache-type-k f32 --cache-type-v f32" in line(dtype="float32")
    assert "--cache-type-k q8_0" in line(kv_cache="int8")
    assert "--no-cache-prompt" in line(prefix_cache=False)
    assert "--n-gpu-layers 9999 --split-mode none --main-gpu 1" in line(device="cuda:1")


@pytest.mark.parametrize(
    ("said", "fits"), [("Available devices:\n  CUDA0: H100 (80 GiB)\n", True), ("(none)\n", False)]
)
def test_a_device_that_the_build_does_not_find(monkeypatch: pytest.MonkeyPatch, said: str, fits: bool) -> None:
    monkeypatch.setattr(module, "said_by", lambda program, *arguments: said)
    monkeypatch.setattr(module, "_flags", lambda program: frozenset({"--list-devices"}))
    monkeypatch.setattr(LlamaCpp, "find", lambda self: Program(Path("/bin/llama-server")))
    with nullcontext() if fits else pytest.raises(ConfigError, match="finds no device beside the processor"):
        LlamaCpp().check(Path("model.gguf"), demo()[0], EngineOptions("m", device="cuda"))


def test_what_it_does_not_run_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    guest, (spec, _), file = LlamaCpp(), demo(), Path("model.gguf")
    with pytest.raises(ModelError, match="GGUF files only"):
        guest.check(Path("directory"), spec, EngineOptions("directory"))
    with pytest.raises(ConfigError, match="--dtype bfloat16"):
        guest.check(file, spec, EngineOptions("m", dtype="bfloat16"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="rpc-server for that, which is not on the PATH"):
        guest.check(file, spec, EngineOptions("m", pipeline=2))
    with pytest.raises(ConfigError, match=r"--engine llama\.cpp: its program is not on this machine; install"):
        start.found(guest)
    for flag, options in (("--tp", {"tensor": 2}), ("--adapter", {"adapters": (Adapter("a", "/a"),)})):
        with pytest.raises(ConfigError, match=f"{flag} is not for the engine llama.cpp"):
            start.check_options(guest, EngineOptions("m", **options))
    start.check_options(guest, EngineOptions("m", pipeline=2, kv_cache="int8", prefix_cache=False, dtype="float32"))


def test_abilities_refuse_each_field_by_its_name() -> None:
    changes = {
        "min_p": 0.1, "seed": 1, "presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.5,
        "logit_bias": {1: 1.0}, "logprobs": 0, "prompt_logprobs": 0, "ignore_eos": True, "adapter": "a",
    }  # fmt: skip
    assert set(changes) == set(FIELDS)
    for name, value in changes.items():
        nothing = Abilities("some", frozenset(FIELDS) - {name}, frozenset())
        params = replace(SamplingParams(), **{name: value})
        with pytest.raises(RequestError, match=f"{name}: the engine some does not do this") as raised:
            nothing.check(params)
        assert (raised.value.param, raised.value.code) == (name, "unsupported")
        BUILT_IN.check(params)
    few = Abilities("some", frozenset(FIELDS), frozenset({"regex"}), most_logprobs=5)
    few.check(replace(SamplingParams(), logprobs=5, constraint=Constraint("regex", "a")))
    with pytest.raises(RequestError, match="more than the 5"):
        few.check(replace(SamplingParams(), logprobs=6))
    for kind in set(CONSTRAINTS) - {"regex"}:
        with pytest.raises(RequestError, match=f"of kind {kind}"):
            few.check(replace(SamplingParams(), constraint=Constraint(kind, "")))
