"""Choose tokens from logits: in host memory by the native library, on an accelerator by its own operations."""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

from torch import Tensor

from ferrule._native import sample
from ferrule.engine.devices import Device
from ferrule.engine.rank.sampling.constrained import Matcher
from ferrule.engine.rank.sampling.device import Chosen, choose_there
from ferrule.engine.rank.sampling.logits import Context, allowed, penalised, reported
from ferrule.engine.types import SamplingParams
from ferrule.errors import EngineError

_WORD = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15

_NO_TOKEN = -1
_NO_NUMBERS = "the model's logits are not numbers; try --dtype bfloat16 or float32"


@dataclass(frozen=True)
class Choice:
    """A chosen token, its log-probability before temperature and cuts, and the likeliest alternatives."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Draws the tokens of one sequence; the same seed gives the same tokens.

    A token's random number depends on nothing but the seed and its place in the answer, so an answer can go on in
    another process. ``drawn``: how many of its tokens there are already. ``matcher``: of the grammar that they follow.
    """

    def __init__(self, params: SamplingParams, drawn: int = 0, matcher: Matcher | None = None) -> None:
        self.params, self.matcher = params, matcher
        self.seed = secrets.randbits(64) if params.seed is None else params.seed
        self.drawn = drawn

    def choose(self, logits: Tensor, tokens: Tokens[int], prompt: int) -> Choice:
        """The next token, from ``logits`` (vocabulary,) in host memory after ``tokens``, the first ``prompt`` of which
        were given. Raises `EngineError` where no logit is a number."""
        params, context = self.params, self.context(tokens, prompt)
        logits = allowed(logits.float().unsqueeze(0), [context], lambda host: host)
        scores = penalised(logits, [context], lambda host: host)[0].contiguous()
        token = sample(
            scores.data_ptr(), len(scores), params.temperature, params.top_k, params.top_p, params.min_p, self.chance()
        )
        if token == _NO_TOKEN:
            raise EngineError(_NO_NUMBERS)
        if self.matcher is not None:
            self.matcher.took(token)
        if params.logprobs is None:
            return Choice(token)
        logprobs = reported(logits[0])
        values, ids = logprobs.topk(min(params.logprobs, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        return Choice(token, float(logprobs[token]), top)

    @property
    def looks_back(self) -> bool:
        """Whether its choices depend on the tokens before."""
        params = self.params
        return (
            self.matcher is not None
            or params.repetition_penalty != 1.0
            or bool(params.presence_penalty or params.frequency_penalty)
        )

    def context(self, tokens: Tokens[int], prompt: int) -> Context:
        """What the next token depends on beside the logits. Waits for the grammar; raises `GrammarError`."""
        return Context(self.params, tokens, prompt, None if self.matcher is None else self.matcher.mask())

    def go_on(self) -> list[int]:
        """The tokens that have to follow by its grammar, as drawn; what may come behind them is computed meanwhile."""
        forced = [] if self.matcher is None else self.matcher.go_on()
        self.drawn += len(forced)
        return forced

    def give_back(self, tokens: int) -> None:
        """The last ``tokens`` that it drew are none of its answer."""
        self.drawn -= tokens

    def chance(self) -> float:
        """The random number of the next token, of [0, 1)."""
        self.drawn += 1
        return (mixed(self.seed, self.drawn) >> 11) * 2.0**-53  # as many bits as a float has


def choose_all(device: Device, logits: Tensor, wanted: Tokens[tuple[Sampler, Tokens[int], int]]) -> list[Choice]:
    """The next token of each sequence, from ``logits`` (sequences, vocabulary) on ``device``: its sampler, its tokens,
    and how many of these were given. Raises `EngineError` where no logit is a number."""
    if logits.is_cpu:
        return [one.choose(row, tokens, prompt) for row, (one, tokens, prompt) in zip(logits, wanted, strict=True)]
    return Choices(device, logits, wanted).read()


class Choices:
    """Choices that a device makes, as by `choose_all`, which the host reads later. ``tokens`` (sequences,): on the
    device."""

    def __init__(self, device: Device, logits: Tensor, wanted: Tokens[tuple[Sampler, Tokens[int], int]]) -> None:
        self._samplers = [one for one, _, _ in wanted]
        self._contexts = [one.context(tokens, prompt) for one, tokens, prompt in wanted]
        self._none = logits.shape[-1]
        self._choosing = choose_there(device, logits, self._contexts, [one.chance() for one in self._samplers])
        self.tokens = self._choosing.tokens

    def read(self) -> list[Choice]:
        """Raises `EngineError` where no logit of a sequence is a number."""
        chosen = self._choosing.read()
        if self._none in chosen.tokens:
            raise EngineError(_NO_NUMBERS)
        for one, token in zip(self._samplers, chosen.tokens, strict=True):
            if one.matcher is not None:
                one.matcher.took(token)
        return [_choice(chosen, row, context.params.logprobs) for row, context in enumerate(self._contexts)]


def _choice(chosen: Chosen, row: int, alternatives: int | None) -> Choice:
    if alternatives is None or chosen.logprobs is None or chosen.top is None or chosen.ids is None:
        return Choice(chosen.tokens[row])
    ids, values = chosen.ids[row, :alternatives].tolist(), chosen.top[row, :alternatives].tolist()
    return Choice(chosen.tokens[row], float(chosen.logprobs[row]), tuple(zip(ids, values, strict=True)))


def mixed(seed: int, place: int) -> int:
    """64 bits that look unrelated for seeds and places that are near to each other: the finaliser of SplitMix64
    (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied to each in turn."""
    state = _finalised(seed & _WORD)
    return _finalised((state + place * _GOLDEN) & _WORD)


def _finalised(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
