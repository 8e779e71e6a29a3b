"""Keys and values that are quantised while they are stored (`--kv-cache`): to how many bits, and of which models."""

from __future__ import annotations

from dataclasses import replace

from ferrule.errors import ConfigError
from ferrule.model.spec import ModelSpec

CACHE_BITS = {"auto": 0, "int8": 8, "int4": 4}
"""By the name that a user gives; 0: they stay numbers of what the model computes in."""


def kept_in(spec: ModelSpec, kv_cache: str) -> ModelSpec:
    """``spec`` with keys and values as ``kv_cache``, of `CACHE_BITS`, says.

    Raises `ConfigError` where there are none to be quantised, and for latents in 4 bits: all heads read the same ones,
    and a tiny model with random weights was then 40 % off.
    """
    bits = CACHE_BITS.get(kv_cache)
    if bits is None:
        raise ConfigError(f"--kv-cache {kv_cache!r} is not one of {', '.join(CACHE_BITS)}")
    if not bits:
        return spec
    kinds = {layer.attention.kind for layer in spec.alike if layer.attention and not layer.attention.both_ways}
    if "latent" in kinds and bits < 8:
        raise ConfigError(f"--kv-cache {kv_cache}: {spec.name} keeps latents, which need 8 bits: --kv-cache int8")
    if kinds - {"compressed"}:
        return replace(spec, cache_bits=bits)
    kept = "nothing of a text" if spec.encoder else "recurrent states"
    if kinds:
        kept = "entries of compressed attention, which stand for several tokens each"
    raise ConfigError(f"--kv-cache {kv_cache}: {spec.name} keeps {kept}, which stay as they are: leave it out")
