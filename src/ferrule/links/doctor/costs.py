"""Cost of a link in tokens/s: an estimate from latency and bandwidth, so that findings can be compared.

The model: tensor parallel over two hosts, a dense model of about 70B parameters: 80 layers of hidden size 8192 with two
all-reduces each, so 160 messages of 16 KiB (bf16) per token, one after the other. A token waits
``messages × (latency + bytes / bandwidth)``. A prompt sends the same bytes for each of its tokens, but many at a time,
so only bandwidth counts. Computing comes on top: the limits here are those of the cable alone.
"""

from __future__ import annotations

MESSAGES_PER_TOKEN = 160
MESSAGE_BYTES = 16384
PROMPT_TOKENS = 8192

TCP_ETHERNET = 30e-6
"""Seconds one way for a small message; about what is published for small messages over a home LAN (28 µs)."""
TCP_THUNDERBOLT = 65e-6
"""Published for small messages over thunderbolt-net."""
RDMA_ETHERNET = 5e-6
"""Published for E810 with RoCE: 5.2 µs."""
RDMA_INFINIBAND = 3e-6
RDMA_THUNDERBOLT = 10e-6
"""Macs: 4 to 12 µs are published."""
_LEAST_GB_S = 1e-3
"""Least Gbit/s to divide by, whatever a damaged record tells."""
WIFI = 2e-3
WIFI_GB_S = 0.5
"""Assumed; Wi-Fi differs from minute to minute."""


def token_seconds(latency: float, gb_s: float) -> float:
    """Seconds that one token waits for the link. ``latency`` in seconds one way, ``gb_s`` in Gbit/s each way."""
    return MESSAGES_PER_TOKEN * (latency + MESSAGE_BYTES * 8 / (max(gb_s, _LEAST_GB_S) * 1e9))


def prompt_seconds(gb_s: float) -> float:
    """Seconds that the link is busy with a prompt of `PROMPT_TOKENS`."""
    return PROMPT_TOKENS * MESSAGES_PER_TOKEN * MESSAGE_BYTES * 8 / (max(gb_s, _LEAST_GB_S) * 1e9)


def limit(latency: float, gb_s: float) -> str:
    """Limits of a link of that kind, in words."""
    token = token_seconds(latency, gb_s)
    return (
        f"Tensor parallel over it waits {_milliseconds(token)} per token, so it stays below {_rate(token)} tokens/s, "
        f"and a prompt of {PROMPT_TOKENS} tokens keeps it busy for {prompt_seconds(gb_s):.3g} s (70B model, estimated)."
    )


def instead(now: tuple[float, float], then: tuple[float, float]) -> str:
    """Costs of a link ``now`` and ``then``, each as latency and Gbit/s, in words."""
    waits = [_milliseconds(token_seconds(*one)) for one in (now, then)]
    prompts = [f"{prompt_seconds(gb_s):.3g} s" for _, gb_s in (now, then)]
    told = []
    if prompts[0] != prompts[1]:
        told.append(f"a prompt of {PROMPT_TOKENS} tokens keeps it busy for {prompts[0]} instead of {prompts[1]}")
    if waits[0] != waits[1]:
        told.append(f"each token waits {waits[0]} instead of {waits[1]} for it")
    elif told:
        told.append("tokens/s hardly change, as small messages wait for latency, not for bandwidth")
    return f"With tensor parallel {'; '.join(told)} (70B model, estimated)."


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def _rate(seconds: float) -> str:
    return f"{1 / seconds:.2g}" if seconds > 0.01 else f"{1 / seconds:.0f}"
