"""Speed of a model that has just been loaded, measured and as the planner predicted it."""

from __future__ import annotations

import logging
import time
from contextlib import aclosing
from dataclasses import dataclass

from ferrule.engine.types import Engine, SamplingParams
from ferrule.errors import FerruleError
from ferrule.model import ModelSpec
from ferrule.plan import Prediction, Question, Workload, predict
from ferrule.plan.cluster import DeviceSpec, machine_of_ranks
from ferrule.plan.cost import calibrated, record_of, save_record
from ferrule.plan.prediction import Between

_log = logging.getLogger(__name__)

PROMPT = 32
TOKENS = 24
SECONDS = 2.0
"""After which measuring stops, if there are two tokens at least."""


@dataclass(frozen=True)
class Speed:
    """Tokens per second of a single stream. ``predicted``, and within what that was expected: None where the planner
    knows nothing of the machine. ``guessed``: the model's family is not known, so that it counts as another would."""

    measured: float
    predicted: float | None = None
    between: Between | None = None
    guessed: bool = False


async def measure_speed(engine: Engine) -> float | None:
    """Seconds per token of a single stream, the mean of a few, since some come in one go where this process had to wait
    for a core; None where the model has room for less than that."""
    prompt = min(PROMPT, engine.max_context // 4)
    tokens = min(TOKENS, engine.max_context - prompt - 1)
    if prompt < 1 or tokens < 3:
        return None
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    begin, times = time.perf_counter(), []
    async with aclosing(
        engine.generate([token % engine.vocab_size for token in range(3, 3 + prompt)], params)
    ) as stream:
        async for _ in stream:
            times.append(time.perf_counter())
            if len(times) > 2 and times[-1] - begin > SECONDS:
                break
    # The first interval still has the prompt's last traces in it.
    return (times[-1] - times[1]) / (len(times) - 2)


def predict_speed(engine: Engine, spec: ModelSpec, device: DeviceSpec, measured: float) -> Prediction:
    """What the planner predicts on ``device`` (as measured, not calibrated). Keeps a record."""
    ranks = engine.plan.world_size
    work = Workload(context=engine.max_context, prompt=PROMPT, depth=PROMPT + TOKENS // 2)
    raw = machine_of_ranks(device, ranks)
    plan = engine.plan.on([part.name for part in raw.devices])
    record = record_of(Question(spec, raw, work), plan, measured, at=time.time())
    if record is not None:
        save_record(record)
    return predict(Question(spec, machine_of_ranks(calibrated(device), ranks), work), plan)


async def speed_of(engine: Engine, device: DeviceSpec | None) -> Speed | None:
    """None where it cannot be measured; nothing that goes wrong here stops a model that has been loaded."""
    try:
        measured = await measure_speed(engine)
        if measured is None:
            return None
        if device is None:
            return Speed(1 / measured)
        found = predict_speed(engine, engine.spec, device, measured)
        return Speed(1 / measured, found.tokens_per_s, found.tokens_between, not engine.spec.known_family)
    except FerruleError as error:
        _log.warning("the speed is not measured: %s", error)
        return None
