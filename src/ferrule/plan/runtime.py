"""Runtimes, the programs that run models: operations of a layer, cost of a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ferrule.model.families.program import OUTER_OPERATIONS
from ferrule.model.holding import MOST_COMPUTED_BYTES
from ferrule.model.layer import BUILT_IN, COMPACT, AttentionSpec, CachePolicy, LayerSpec
from ferrule.model.mixer import MixerKind
from ferrule.model.spec import ModelSpec
from ferrule.plan.cluster.spec import LAUNCH_SECONDS, DeviceSpec
from ferrule.plan.kernels import (
    EXO_GRPC_KERNELS,
    LLAMA_CPP_KERNELS,
    MLX_KERNELS,
    PLAIN,
    VLLM_KERNELS,
    Kernels,
)

EXPERT_OPERATIONS = 3
"""Of a step program, for every expert that is touched: two products and what lies between."""
FROM_PYTHON = 8
"""An operation that is started from Python through transformers' modules takes as long as so many of a step program:
14 us and 1.8 us, where both were measured with the embedded model."""


class Calls(NamedTuple):
    """Calls of a recurrent mixer through transformers' modules: for one token, or for several at once and for each
    `CHUNK` of them."""

    one: int
    several: int
    chunk: int

    def of(self, tokens: int) -> int:
        return self.one if tokens == 1 else self.several + self.chunk * -(-tokens // CHUNK)


CHUNK = 64
MIXER_CALLS: dict[MixerKind, Calls] = {
    "convolution": Calls(21, 23, 0),
    "mamba2": Calls(83, 127, 0),
    "delta": Calls(111, 136, 16),
    "kda": Calls(103, 707, 31),
}
"""As a test counts them; usual attention is 45. Without kernels of their own, which few machines have."""


WINDOW_CALLS, ENTRIES_CALLS, CHOICE_CALLS = 137, 50, 145
"""Of compressed attention (DeepSeek-V4), as a test counts them: with its window, for entries, and for a choice of them
besides."""
STREAM_CALLS = 300
"""By which its layers mix hidden states before and behind both of their parts, in 20 iterations each."""


def compressed_calls(attention: AttentionSpec) -> int:
    """Calls of a layer with compressed attention beside its experts."""
    entries = ENTRIES_CALLS if attention.rate else 0
    return STREAM_CALLS + WINDOW_CALLS + entries + (CHOICE_CALLS if attention.index_width else 0)


class CacheRoom(NamedTuple):
    """Room that caches need: bytes that must be free after loading for each byte of keys and values of one sequence,
    and for each byte that recurrent layers keep of it."""

    keys: float
    state: float


WORDS = 100_000


@dataclass(frozen=True)
class Runtime:
    """An engine, as far as time and memory are concerned.

    ``attention_operations``, ``dense_operations`` and ``expert_operations``: how many operations (kernels) those parts
    of a layer are, norms and residual sums included; ``each_expert_operations``: more for every expert that is touched,
    where an engine works through them one by one. ``end_operations``: embedding, last norm, output matrix, sampling.
    ``program_end_operations``: the same where the engine runs a native program for the model (`LayerSpec`), in whose
    operations all are counted then; None: it has no such programs.
    ``latent_operations``: more of latent attention, whose queries, keys and values come out of two products each with a
    norm between, and are led into the latents' space and back; ``mixer_operations``: of a recurrent mixer (0: as many
    as attention). ``sums``: all-reduces of a layer at most, and nothing gathered, since attention is cut by heads and
    shared experts are summed with the others; None: what transformers' plans exchange. ``cuts_states``: ranks keep
    only their heads' part of a recurrence. ``tile``: rows in which products of experts' many rows are worked
    through: on average half a tile of every expert is empty. ``kernels``: by a device's maker; "": of any other.
    ``adds_up``: what products move and what they compute take time one after the other, as far as kernels do not hide
    the one behind the other; else the longer of the two. ``step_seconds``: scheduler, sampling and what else a step is
    for the engine, and ``sequence_seconds``: more for each sequence of it, by the 100,000 words of the vocabulary.
    ``stage_operations``: of every stage but the first before its layers. ``message_seconds``: its own work for a
    message between stages, and ``collective_seconds`` for a collective, beside
    what the fabric's model counts. ``layer_message_bytes``: what goes to another stage for each of its layers with
    every token, beside activations. ``announcement_bytes``: of what the last stage tells the others before
    they run a step; 0: nothing.
    ``batches``: keeps as many batches on their way as there are stages. ``streams``: weights that do not fit are read
    from disk with every token, and ``reads_ahead`` those of layers that follow, of mixtures only what tokens choose.
    ``batch_tokens``: of a prompt, at once. ``activation_bytes``: of one number on its way
    through a layer. ``eager``: starts each operation from Python; ``call_operations``: as how many a call of
    `MIXER_CALLS` counts (0: recurrent mixers are as many as attention). ``cache_computed``: keys and values are kept in
    what the model computes in or by codes of `ModelSpec.cache_bits`, whatever ``cache`` says of their bytes.
    ``cache_share``: of the memory that is free
    after loading, how much caches may fill; ``cache_ahead``: by how many tokens that of each sequence may be larger
    than what it holds; ``max_sequences``: at once, by default, as long as states take no more than ``state_share`` of
    that memory (1: room is made for those that run). ``packs``: weights lie in memory as `ModelSpec.in_engine` says,
    otherwise as they are stored.
    """

    name: str
    cache: CachePolicy = COMPACT
    attention_operations: int = 12
    dense_operations: int = 6
    expert_operations: int = 16
    each_expert_operations: int = 0
    end_operations: int = 8
    program_end_operations: int | None = None
    latent_operations: int = 0
    mixer_operations: int = 0
    sums: int | None = None
    cuts_states: bool = False
    tile: int = 0
    kernels: Mapping[str, Kernels] = field(default_factory=dict, hash=False)
    adds_up: bool = False
    step_seconds: float = 0.0
    sequence_seconds: float = 0.0
    stage_operations: int = 0
    message_seconds: float = 0.0
    collective_seconds: float = 0.0
    layer_message_bytes: int = 0
    announcement_bytes: int = 0
    batches: bool = True
    streams: bool = False
    reads_ahead: bool = False
    batch_tokens: int = 512
    activation_bytes: float = 4.0
    eager: bool = False
    call_operations: int = 0
    cache_computed: bool = False
    cache_share: float = 1.0
    cache_ahead: int = 0
    state_share: float = 1.0
    max_sequences: int = 64
    packs: bool = False

    def held(self, model: ModelSpec) -> ModelSpec:
        """``model`` with the bytes that its weights take in memory."""
        return model.in_engine if self.packs else model

    def cache_of(self, model: ModelSpec) -> CachePolicy:
        """Cache policy of the runtime for ``model``."""
        if not self.cache_computed:
            return self.cache
        computed = min(model.activation_bytes, MOST_COMPUTED_BYTES)
        unpacks = self.program_end_operations is None
        return replace(self.cache, element_bytes=computed, code_bits=model.cache_bits, unpacks=unpacks)

    def sequences(self, free: float, state_bytes: float, most: int) -> int:
        """Number of sequences at once, ``most`` at most, so that what recurrent layers keep of them, ``state_bytes`` of
        each, takes its share of what is for caches of ``free`` bytes."""
        room = self.cache_share * self.state_share * free
        return most if not state_bytes else max(1, min(most, int(room // state_bytes)))

    def cache_tokens(self, free: float, bytes_per_token: float, sequences: int, state_bytes: float = 0.0) -> int:
        """Number of tokens that the caches of ``sequences`` hold together, where ``free`` bytes are left after loading
        and each takes ``state_bytes`` beside its tokens. The engine serves no longer context than this."""
        room = self.cache_share * max(0.0, free) - sequences * state_bytes
        tokens = int(max(0.0, room) // max(1.0, bytes_per_token))
        # Caches grow ahead of their sequences: by so many tokens each, or by as much again as they hold.
        return max(tokens - sequences * self.cache_ahead, tokens // 2)

    def cache_room(self, model: ModelSpec, context: int, concurrency: int) -> CacheRoom:
        """The inverse of `cache_tokens` and `sequences`: what must be free on each rank so that ``concurrency``
        sequences of ``context`` tokens run at once there.

        There is room for the states of all sequences, or for as many as fit beside as much of keys and values: of
        these two what takes less for the whole model, so that layers add up alike in any split.
        """
        tokens = context * concurrency
        ahead = min(1 + self.max_sequences * self.cache_ahead / tokens, 2.0) / self.cache_share
        running = concurrency / (self.state_share * self.cache_share)
        if not model.recurrent or self.state_share == 1.0:
            return CacheRoom(ahead * concurrency, running)
        policy = self.cache_of(model)
        every = CacheRoom(ahead * concurrency, max(self.max_sequences / self.cache_share, running))
        fewer = CacheRoom(ahead * concurrency / (1 - self.state_share), running)
        keys, state = model.cache_bytes(context, policy), model.state_bytes(policy)
        return min(every, fewer, key=lambda room: room.keys * keys + room.state * state)

    def launch_seconds(self, device: DeviceSpec) -> float:
        """Seconds of an operation there beside its bytes and arithmetic."""
        if self.eager and device.eager_seconds is not None:
            return device.eager_seconds
        return device.launch_seconds * self.kernels_of(device).launch_seconds / LAUNCH_SECONDS

    def kernels_of(self, device: DeviceSpec) -> Kernels:
        return self.kernels.get(device.maker) or self.kernels.get("", PLAIN)

    def step_of(self, model: ModelSpec, sequences: int) -> float:
        """Seconds of a step beside what devices do."""
        return self.step_seconds + self.sequence_seconds * sequences * model.vocab_size / WORDS

    def resume_seconds(self, device: DeviceSpec) -> float:
        """Seconds that a stage there takes longer after it has waited for others."""
        return device.resume_seconds if self.eager else 0.0

    def end_of(self, model: ModelSpec) -> int:
        """Of what is no layer of ``model``."""
        program = model.decoder[0].program_operations is not None
        return self.program_end_operations if program and self.program_end_operations else self.end_operations

    def operations(self, layer: LayerSpec, experts_touched: float = 0.0, tokens: int = 1) -> float:
        """Of one pass through ``layer`` with ``tokens`` of each sequence on a device that needs so many of its
        experts."""
        if self.program_end_operations is not None and layer.program_operations is not None:
            return layer.program_operations + EXPERT_OPERATIONS * experts_touched
        mixing = self.attention_operations if layer.attention is not None else 0
        if layer.attention is not None and layer.attention.kind == "latent":
            mixing += self.latent_operations
        if layer.attention is not None and layer.attention.kind == "compressed":
            mixing = self.call_operations * compressed_calls(layer.attention) or mixing
        if layer.mixer is not None:
            calls = MIXER_CALLS[layer.mixer.kind].of(tokens)
            mixing += self.call_operations * calls or self.mixer_operations or self.attention_operations
        if layer.experts is None:
            return mixing + (self.dense_operations if layer.width else 0)
        shared = self.dense_operations if layer.weights.shared.bytes else 0
        routed = self.expert_operations + self.each_expert_operations * experts_touched
        return mixing + shared + routed


BUILT_IN_ENGINE = Runtime(
    "ferrule",
    cache=BUILT_IN,
    # Counted in the layers of transformers: reshapes and views are calls too, on a CPU as dear as small kernels.
    attention_operations=40 * FROM_PYTHON,
    dense_operations=14 * FROM_PYTHON,
    expert_operations=24 * FROM_PYTHON,
    each_expert_operations=8 * FROM_PYTHON,
    end_operations=30 * FROM_PYTHON,
    program_end_operations=OUTER_OPERATIONS + 60,  # what Python does for a token takes as long as 60
    # What is to be run and what has come, about as long.
    stage_operations=30,
    message_seconds=20e-6,
    collective_seconds=5e-6,
    announcement_bytes=4096,  # one frame of fixed size (engine/rank/batch.py)
    eager=True,
    call_operations=FROM_PYTHON,
    cache_computed=True,
    cache_share=0.5,  # what else runs on the machine has the rest
    cache_ahead=1024,
    state_share=0.5,
    packs=True,
)
STREAMED = replace(BUILT_IN_ENGINE, streams=True, reads_ahead=True)
"""The same engine with ``--stream-weights``: what does not fit stays on disk."""
CAPTURED_SHARE = 1 / 16
"""Part of an accelerator's free memory that the engine keeps for captured steps."""
ON_ACCELERATORS = replace(
    BUILT_IN_ENGINE,
    cache_share=BUILT_IN_ENGINE.cache_share * (1 - CAPTURED_SHARE),
    program_end_operations=None,
    call_operations=1,
    attention_operations=BUILT_IN_ENGINE.attention_operations // FROM_PYTHON,
    dense_operations=BUILT_IN_ENGINE.dense_operations // FROM_PYTHON,
    expert_operations=BUILT_IN_ENGINE.expert_operations // FROM_PYTHON,
    each_expert_operations=BUILT_IN_ENGINE.each_expert_operations // FROM_PYTHON,
    end_operations=BUILT_IN_ENGINE.end_operations // FROM_PYTHON,
)
"""The same engine where a rank has a GPU: all ranks run transformers' modules then, and a call takes as long as it
takes to start a kernel."""
OTHERS: dict[str, Any] = {
    "latent_operations": 8,
    "mixer_operations": 30,
    "sums": 2,
    "cuts_states": True,
    "tile": 32,
    "adds_up": True,
    "sequence_seconds": 141e-6,
}
"""Of all engines but ours. Operations are counted in their code; how many rows a tile has is a choice among what
kernels have. Seconds here and below are fitted as the kernels are (plan/kernels.py)."""
MLX = Runtime(
    "mlx",
    **OTHERS,
    kernels=MLX_KERNELS,
    step_seconds=392e-6,
    collective_seconds=37.1e-6,
    message_seconds=299e-6,
)
"""mlx-lm, and exo on it: the graph of a token is built once and its kernels are started one after the other."""
VLLM = Runtime(
    "vllm",
    **OTHERS,
    kernels=VLLM_KERNELS,
    step_seconds=747e-6,
    collective_seconds=50.9e-6,
    message_seconds=300e-6,  # a choice: as MLX's
)
LLAMA_CPP_RPC = Runtime(
    "llama.cpp-rpc",
    **OTHERS,
    kernels=LLAMA_CPP_KERNELS,
    step_seconds=268e-6,
    message_seconds=2.17e-3,
    # rpc_tensor is 296 bytes; a layer with experts is about 70 tensors (ggml-rpc sends the graph with every token).
    layer_message_bytes=70 * 296,
    batches=False,
    streams=True,
)
EXO_GRPC = Runtime(
    "exo-grpc",
    **OTHERS,
    kernels=EXO_GRPC_KERNELS,
    step_seconds=7.77e-3,
    collective_seconds=1.56e-3,
    message_seconds=1.11e-3,
)
"""exo of 2024: tensors from Python to Python by gRPC."""
RUNTIMES = {runtime.name: runtime for runtime in (BUILT_IN_ENGINE, MLX, VLLM, LLAMA_CPP_RPC, EXO_GRPC)}
ALIASES = {"llama.cpp": LLAMA_CPP_RPC.name}
"""Names by which ``ferrule serve --engine`` calls some of them."""


def runtime_named(name: str) -> Runtime | None:
    """The runtime of this name or alias."""
    return RUNTIMES.get(ALIASES.get(name, name))
