"""The trial run of an encoder after loading: texts together must give what they give alone."""

from __future__ import annotations

import time

import torch

from ferrule.engine.rank.encoder.runner import EncoderRunner
from ferrule.engine.rank.warm_up import Trial
from ferrule.engine.selftest.compare import error, tolerance
from ferrule.engine.selftest.prompts import token_ids
from ferrule.errors import EngineError, ModelError

LENGTHS = (24, 9, 17)
"""Tokens of the texts: the shorter ones are filled up."""


def try_encoder(runner: EncoderRunner, vocabulary: int) -> Trial:
    """Run a few texts. As there are no caches, as many run as are asked for. Unless the user has the self-test left
    out, raises `EngineError` where texts that are computed together have other hidden states than alone, or none that
    are numbers, and `ModelError` where a token sees none behind it: a decoder's class need not heed its configuration.
    """
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
    first, last = texts[0][:-1], texts[0][-1]
    with torch.inference_mode():
        changed = runner.device.download(runner.hidden([[*first, (last + 1) % vocabulary]])[0]).numpy()
    if options.self_test and first and (changed[-2] == alone[0][-2]).all():
        raise ModelError(
            f"{type(runner.encoder.model).__name__} sees no later tokens, though its config.json says so: this model "
            "needs code of its own, which is not run here"
        )
    return Trial(options.context * options.max_sequences, options.max_sequences, seconds, 0)
