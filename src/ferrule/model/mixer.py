"""Recurrent mixers, which keep a state of fixed size of each sequence instead of keys and values of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MixerKind = Literal["convolution", "delta", "kda", "mamba2"]

STATE_BYTES = 4
"""Of a number of a recurrence's state: transformers' mixers (and the kernels of flash-linear-attention and mamba-ssm)
keep it in float32, whatever the model computes in."""
_OPERATIONS = {"convolution": 0, "delta": 7, "kda": 7, "mamba2": 5}
"""Floating point operations per token and number of the state: 1 for its decay, 2 for what is added and 2 for what is
read (Mamba-2: Dao and Gu 2024, equation 1); by the delta rule 2 more for what is read ahead of the update (Gated
DeltaNet: Yang et al. 2024, equation 10; Kimi Delta Attention decays each channel by itself). Convolutions multiply each
of their weights once, which are counted as all weights are."""


@dataclass(frozen=True)
class MixerSpec:
    """One layer's recurrent mixer: short ``convolution`` (LFM2), gated ``delta`` rule (Qwen3-Next), ``kda`` (Kimi
    Linear) or ``mamba2``.

    ``channels`` and ``kernel``: of its convolutions, all together; of each sequence the last ``kernel`` inputs are
    kept. ``state``: numbers of the recurrence's state. No tensor parallel plan divides what is kept: every rank has all
    of it, and computes all of the recurrence.
    """

    kind: MixerKind
    channels: int
    kernel: int
    state: int = 0

    def state_bytes(self, element_bytes: float) -> float:
        """Bytes kept of one sequence, however long it is. ``element_bytes``: of a number that the model computes in,
        as the inputs of convolutions are."""
        return self.channels * self.kernel * element_bytes + self.state * STATE_BYTES

    def flops(self, tokens: int) -> int:
        """Floating point operations of the recurrence for ``tokens`` new tokens, beside those of its weights."""
        return _OPERATIONS[self.kind] * self.state * tokens
