"""The trial run of an encoder after loading: texts together must give what they give alone."""

from __future__ import annotations

import time

import torch

from ferrule.engine.rank.encoder.runner import EncoderRunner
from ferrule.engine.rank.warm_up import Trial
from ferrule.engine.selftest.compare import error, tolerance
from ferrule.engine.selftest.prompts import token_ids
from ferrule.errors import EngineError

LENGTHS = (24, 9, 17)
"""Tokens of the texts: the shorter ones are filled up."""


def try_encoder(runner: EncoderRunner, vocabulary: int) -> Trial:
    """Run a few texts. As there are no caches, as many run as are asked for. Raises `EngineError` where texts that are
    computed together have other hidden states than alone, or none that are numbers; unless the user has the self-test
    left out."""
    options, layers = runner.options, runner.plan.layers
    ids = token_ids(max(LENGTHS), vocabulary)
    texts = [ids[: min(length, options.context)] for length in LENGTHS]
    with torch.inference_mode():
        together = [runner.device.download(each).numpy() for each in runner.hidden(texts)]
        begin = time.perf_counter()
        alone = [runner.device.download(runner.hidden([text])[0]).numpy() for text in texts]
        seconds = (time.perf_counter() - begin) / sum(map(len, texts))
    off, allowed = max(map(error, together, alone)), tolerance(runner.dtype, layers)
    if options.self_test and not off <= allowed:
        raise EngineError(
            f"self-test: texts that are computed together have hidden states {off:.3g} off those of each alone (in "
            f"{runner.dtype} up to {allowed:.2g} is rounding), so vectors would be wrong. Try --dtype float32 or "
            "another device, and report it. --no-self-test serves it all the same"
        )
    return Trial(options.context * options.max_sequences, options.max_sequences, seconds, 0)
