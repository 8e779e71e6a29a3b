"""Messages between stages, and the pieces in which a prompt goes through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferrule.plan.cost.exchange import Exchange
from ferrule.plan.cost.stage import Pass
from ferrule.plan.plan import fellows
from ferrule.plan.question import Question
from ferrule.plan.runtime import Runtime

WORD_BYTES = 8.0
"""Of the next token of each sequence, from the last stage to the first."""


def pieces(question: Question) -> Iterator[Pass]:
    """Of a prompt, one after the other."""
    prompt, size = question.work.prompt, question.runtime.batch_tokens
    for start in range(0, prompt, size):
        yield Pass(min(size, prompt - start), start)


def message_bytes(question: Question, which: Pass, layers: int) -> float:
    """To a stage of so many layers."""
    return float(which.rows * question.model.hidden_bytes + question.runtime.layer_message_bytes * layers)


def word_bytes(runtime: Runtime, which: Pass) -> float:
    """From the last stage to the first: the words that were chosen, or all that a step is."""
    return max(which.sequences * WORD_BYTES, float(runtime.announcement_bytes))


def hop(exchange: Exchange, here: Sequence[str], there: Sequence[str], size: float) -> tuple[float, str]:
    """Seconds of the slowest message from one stage to the next, and which way that goes."""
    pairs = [(here[place], b) for place, b in zip(fellows(len(there), len(here)), there, strict=True)]
    return max((exchange.message(a, b, size), exchange.route(a, b).where) for a, b in pairs)


def entry_seconds(question: Question, there: Sequence[str], *, last: bool) -> float:
    """Seconds that a hop to a stage costs beside the message: the engine's work for it, and what the stage needs to
    begin. ``last``: the hop from the last stage back to the first, which has only the word of the next step to take."""
    runtime, devices = question.runtime, [question.cluster.by_name[name] for name in there]
    begin = 0.0 if last else runtime.stage_operations * max(map(runtime.launch_seconds, devices))
    return runtime.message_seconds + max(map(runtime.resume_seconds, devices)) + begin


def announcement(exchange: Exchange, runtime: Runtime, devices: Sequence[str]) -> tuple[float, str]:
    """Seconds in which the ranks of the only stage wait for the driver's word, and which way that goes."""
    size = float(runtime.announcement_bytes)
    if not size or len(devices) == 1:
        return 0.0, ""
    routes = [exchange.route(devices[0], other) for other in devices[1:]]
    return max((route.alpha + size * route.beta, route.where) for route in routes)
