"""Sampling under a grammar: no bias, penalty or cut leads out of it, and an answer goes on in another process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from ferrule.engine.grammar import GrammarError, any_of
from ferrule.engine.rank.sampling import constrained
from ferrule.engine.rank.sampling.constrained import Grammars, Matcher
from ferrule.engine.rank.sampling.sampler import Sampler
from ferrule.engine.source import demo_path
from ferrule.engine.types import Constraint, SamplingParams

VOCABULARY, END = 3072, 0
CONSTRAINT = Constraint("regex", "[a-f]{12}")
FIXED = (
    Constraint(
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "severity": {"enum": ["warning", "warnings", "information"]},
                    "naïve": {"type": "array", "items": {"const": "a b"}, "minItems": 2, "maxItems": 3},
                    "where": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
                },
                "required": ["severity", "naïve", "where"],
                "additionalProperties": False,
            }
        ),
    ),
    Constraint("regex", "(import [a-c]+ as [a-c]\\n){2}"),
    any_of(["a network link", "a network host"]),
    Constraint("lark", 'start: text <[7]> "the answer is: " /[ab]/\ntext[max_tokens=3]: /(?s:.*)/'),
)
"""Texts with parts that have no alternative."""
TOKENIZER = Path(demo_path()) / "tokenizer.json"


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    made = Grammars(VOCABULARY, [END])
    made.learn(TOKENIZER.read_text())
    return made


def logits_of(step: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(step)) * 3


def tokens_of(matcher: Matcher) -> list[int]:
    return np.unpackbits(matcher.mask(), bitorder="little").nonzero()[0].tolist()


def answer(
    grammars: Grammars,
    params: SamplingParams,
    made: tuple[int, ...] = (),
    constraint: Constraint = CONSTRAINT,
    *,
    skips: bool = False,
) -> tuple[list[int], set[int]]:
    """Its tokens, and the places of those that were not sampled."""
    matcher = grammars.open(constraint, made, skips=skips)
    matcher.begin()
    sampler, tokens, forced = Sampler(params, len(made), matcher), list(made), set(matcher.forced)
    while not tokens or tokens[-1] != END:
        choice = sampler.choose(logits_of(len(tokens)), tokens, 0)
        assert choice.logprob is None or choice.logprob <= 0
        tokens.append(choice.token)
        for token in sampler.go_on() if choice.token != END else ():
            forced.add(len(tokens))
            tokens.append(token)
        assert len(tokens) <= 100
    return tokens, forced


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1, temperature=1.5),
        SamplingParams(temperature=0.0, logprobs=3),
        SamplingParams(seed=2, top_k=1, logit_bias={5: 100.0, 9: 100.0, END: 100.0}),
        SamplingParams(seed=3, presence_penalty=2.0, frequency_penalty=2.0, repetition_penalty=2.0),
        SamplingParams(seed=4, min_p=1.0, top_p=0.1),
        SamplingParams(seed=5, ignore_eos=True),
    ],
)
def test_answers_follow_the_grammar_and_go_on_where_they_were(grammars: Grammars, params: SamplingParams) -> None:
    tokens, _ = answer(grammars, params)
    text = Tokenizer.from_file(str(TOKENIZER)).decode(tokens[:-1])
    assert len(text) == 12
    assert set(text) <= set("abcdef")
    for place in (1, len(tokens) // 2, len(tokens) - 1):
        assert answer(grammars, params, tuple(tokens[:place])) == (tokens, set())


@pytest.mark.parametrize("handover", [constrained.HANDOVER, 0.0])
def test_tokens_without_alternative_are_those_that_would_be_sampled(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch, handover: float
) -> None:
    """In whatever state the matcher is, also where an answer goes on, and where another thread computes the masks."""
    monkeypatch.setattr(constrained, "HANDOVER", handover)
    for number, constraint in enumerate(FIXED):
        params = SamplingParams(seed=number, temperature=1.5, presence_penalty=1.0, logit_bias={END: 50.0, 300: 50.0})
        expected, sampled = answer(grammars, params, constraint=constraint)
        tokens, forced = answer(grammars, params, constraint=constraint, skips=True)
        assert (tokens, sampled) == (expected, set())
        assert forced
        for place in range(1, len(tokens)):
            if place not in forced:  # ranks are told of a run as a whole
                assert answer(grammars, params, tuple(tokens[:place]), constraint, skips=True) == (tokens, forced)


def test_logprobs_are_those_of_what_the_grammar_allows(grammars: Grammars) -> None:
    matcher = grammars.open(Constraint("regex", "[ab]"), ())
    matcher.begin()
    allowed = tokens_of(matcher)
    choice = Sampler(SamplingParams(temperature=0.0, logprobs=2), 0, matcher).choose(logits_of(1), (), 0)
    expected = logits_of(1)[allowed].log_softmax(-1)
    assert choice.token in allowed
    assert choice.logprob == pytest.approx(float(expected.max()), abs=1e-6)
    assert sorted(token for token, _ in choice.top) == sorted(allowed)
    assert END in tokens_of(matcher)


def test_a_grammar_that_cannot_be_compiled_says_so_before_the_answer_begins(grammars: Grammars) -> None:
    matcher = grammars.open(Constraint("json_schema", json.dumps({"type": "strin"})), ())
    with pytest.raises(GrammarError, match="strin"):
        matcher.begin()
    assert matcher.ready()


def test_a_token_that_the_grammar_does_not_allow_ends_the_answer(grammars: Grammars) -> None:
    matcher = grammars.open(CONSTRAINT, ())
    matcher.begin()
    assert END not in tokens_of(matcher)
    matcher.took(END)
    assert matcher.go_on() == []
    with pytest.raises(GrammarError, match="grammar"):
        matcher.mask()


def test_a_bound_on_reasoning_goes_on_where_it_was(grammars: Grammars) -> None:
    """As within every grammar of tokens that are counted: those that were made are counted again."""
    made, close, bound = [300, 301, 302, 303, 304], 7, 5
    constraint = Constraint("lark", f"start: text <[{close}]> /[ab]/\ntext[max_tokens={bound}]: /(?s:.*)/")
    for cut in range(bound + 1):
        matcher = grammars.open(constraint, made[:cut])
        matcher.begin()
        for place in range(cut, bound + 1):
            allowed = tokens_of(matcher)
            assert close in allowed
            assert (len(allowed) == 1) == (place == bound)
            matcher.took((*made, close)[place])
        assert len(tokens_of(matcher)) == 2
