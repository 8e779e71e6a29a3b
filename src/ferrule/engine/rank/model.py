"""One rank's part of a model: built without memory, cut, and filled from the checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from ferrule.engine.architectures import (
    RECURRENT,
    WITHOUT_PAST,
    mask_chunks,
    mask_windows,
    plan_of,
    stages_of,
    streams_of,
)
from ferrule.engine.devices import Device, RankGroup
from ferrule.engine.options import Adapter
from ferrule.engine.rank import attention, recurrent
from ferrule.engine.rank.adapters.attach import ByModule, attach, read_adapters
from ferrule.engine.rank.adapters.lora import Adapters
from ferrule.engine.rank.draft.mtp_layer import MtpInput, add_input, with_one_layer
from ferrule.engine.rank.kv_cache import KVCache
from ferrule.engine.rank.layers import PassThrough, StageInput
from ferrule.engine.rank.packed import PACKS
from ferrule.engine.rank.special_attention import (
    compressed,
    indexer,
    latents,
    long_rope,
    shared_keys,
    temperature,
)
from ferrule.engine.rank.tensor_parallel import Border, TensorParallel
from ferrule.engine.rank.vision.parts import base_name, drop_tower
from ferrule.engine.source import HEAD, read_config, read_seeing, saved_dtype
from ferrule.engine.weights.checkpoint import Checkpoint, check_border
from ferrule.engine.weights.formats.packed import Packed, PackedStack
from ferrule.engine.weights.loading import BytesRead, load, recipes, whole_weight
from ferrule.engine.weights.pieces import Recipe, border_of
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import ModelError, PlanError
from ferrule.model import lacks_head, no_plan
from ferrule.plan import Shard


@dataclass
class ShardedModel:
    """This rank's layers of a model, ready to run.

    ``hidden_size``: numbers of a token that go from stage to stage. ``stage_input`` is where hidden states of an
    earlier stage enter; None where the embedding is held here. ``mtp_input``: of a layer for multi-token prediction.
    """

    model: nn.Module
    base: nn.Module
    shard: Shard
    cache: KVCache
    dtype: torch.dtype
    hidden_size: int
    weight_bytes: int
    stage_input: StageInput | None = None
    adapters: Adapters | None = None
    mtp_input: MtpInput | None = None

    def forward(self, inputs: Tensor, positions: Tensor, logit_rows: Tensor) -> Tensor:
        """Run this stage over the batch that the cache has begun.

        ``inputs``: token ids (1, tokens) on the first stage, hidden states (1, tokens, hidden) on the others.
        ``positions`` (1, tokens). Returns hidden states, or on the last stage's first rank the logits of tokens
        ``logit_rows``: (rows, vocabulary) in float32; on its other ranks (rows, 0).
        """
        given = self._given(inputs)
        if not self.shard.has_head:
            out = self.base(**given, position_ids=positions, use_cache=False)
            return cast(Tensor, out.last_hidden_state).flatten(2)
        out = self.model(**given, position_ids=positions, use_cache=False, logits_to_keep=logit_rows)
        return cast(Tensor, out.logits[0].float())

    def last_hidden(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """As `forward`, on the last stage, but the hidden states after the last norm: (tokens, hidden) in float32."""
        out = self.base(**self._given(inputs), position_ids=positions, use_cache=False)
        return cast(Tensor, out.last_hidden_state[0].float())

    def _given(self, inputs: Tensor) -> dict[str, Tensor]:
        given, streams = {"input_ids": inputs}, streams_of(self.base.config)
        if self.stage_input is not None:
            width = self.hidden_size // streams
            self.stage_input.hidden = inputs if streams == 1 else inputs.view(*inputs.shape[:2], streams, width)
            given = {"inputs_embeds": inputs[..., :width]}
        return given

    @property
    def kernels(self) -> list[str]:
        """By what packed weights are multiplied, the most frequent first."""
        held = (each for module in self.model.modules() for each in vars(module).values())
        found = Counter(each.kernel for each in held if isinstance(each, (Packed, PackedStack)))
        return [name for name, _ in found.most_common()]

    def check_trial(self, sequence: int) -> None:
        """Raise `ModelError` where ``sequence`` ran without every layer of this rank that looks back having kept its
        keys or its state: such a layer does so elsewhere, and would forget the tokens of earlier batches."""
        reading = {each.layer_idx for each in self.base.modules() if hasattr(each, attention.KEPT_BY)}
        cache = self.cache.sequences[sequence]
        kept = reading.union(cache.keys, cache.state.layers)
        kinds = enumerate(getattr(self.base.config, "layer_types", None) or ())
        kept.update(index for index, kind in kinds if kind in WITHOUT_PAST)
        forgetful = [index for index in range(self.shard.first_layer, self.shard.last_layer) if index not in kept]
        if forgetful:
            raise ModelError(
                f"{type(self.model).__name__} computes attention in its own way in layer {forgetful[0]}, "
                "which this engine does not run"
            )


@dataclass
class Blueprint:
    """One rank's part of a model without memory, and what it is to be filled from."""

    model: Any
    base: nn.Module
    dtype: torch.dtype
    hidden_size: int
    cache: KVCache
    made_of: dict[str, Recipe]
    slicings: dict[str, Slicing]
    aliases: dict[str, str]
    stage_input: StageInput | None
    mtp_input: MtpInput | None = None

    def read(self, adapters: Sequence[Adapter]) -> ByModule:
        """This part of ``adapters``; see `read_adapters`."""
        whole = empty(self.model.config, self.dtype)
        return read_adapters(self.model, whole, self.slicings, adapters, self.dtype)

    def fill(self, checkpoint: Checkpoint, on_bytes: BytesRead, device: torch.device) -> int:
        """Read this part; see `loading.load`."""
        return load(self.model, self.made_of, self.slicings, self.aliases, checkpoint, on_bytes, device, PACKS)


def blueprint(
    directory: Path, dtype: str, shard: Shard, group: RankGroup, checkpoint: Checkpoint, *, mtp: bool = False
) -> Blueprint:
    """Plan one rank's part. ``group`` is the ranks of its stage. ``mtp``: of the layer for multi-token prediction, as
    the ``checkpoint`` has it.

    Raises `ModelError` and `PlanError` where the model cannot be run or cut as planned.
    """
    config, seeing = read_config(directory), read_seeing(directory)
    if mtp:
        config = with_one_layer(config)
    torch_dtype: torch.dtype = getattr(torch, saved_dtype(config) if dtype == "auto" else dtype)
    stores_head = any(name.endswith(HEAD) for name in checkpoint.tensors)
    if lacks_head(directory, tied=getattr(config, "tie_word_embeddings", False), has_head=stores_head):
        config.tie_word_embeddings = True  # it is not run, and takes no memory so
        if seeing is not None:
            seeing.tie_word_embeddings = True
    model = empty(seeing or config, torch_dtype)
    config = model.config.get_text_config()  # which says how attention is computed
    mtp_input = None
    if mtp:
        base: Any = model.get_submodule(base_name(model))
        mtp_input = add_input(base.layers[0], config.hidden_size, torch_dtype)
    made_of = recipes(model, list(checkpoint.tensors))
    aliases = tied(model, made_of)

    def border(name: str, dim: int) -> int:
        recipe = made_of.get(aliases.get(name, name))
        return 1 if recipe is None else border_of(recipe, dim, model.get_parameter(name).dim(), checkpoint)

    part = cut_out(model, config, shard, group, aliases, border)
    for name, cut in part.slicings.items():
        recipe = made_of.get(aliases.get(name, name))  # None: missing, which is said when it is loaded
        weight = whole_weight(recipe, checkpoint) if recipe is not None else None
        if weight is not None:
            check_border(weight, cut)
    width = config.hidden_size * streams_of(config)
    return Blueprint(
        model, part.base, torch_dtype, width, part.cache, made_of, part.slicings, aliases, part.stage_input, mtp_input
    )


@dataclass
class Part:
    """Part of a model without memory that is one rank's: see `Blueprint`."""

    base: nn.Module
    slicings: dict[str, Slicing]
    stage_input: StageInput | None
    cache: KVCache


def cut_out(
    model: Any, config: Any, shard: Shard, group: RankGroup, aliases: dict[str, str], border: Border | None = None
) -> Part:
    """Leave of ``model`` what ``shard`` holds, whose layers the ranks of ``group`` share. ``aliases``: of `tied`; names
    that cutting changes are added. ``border``: as of `TensorParallel`. Raises `PlanError` where it cannot be cut so."""
    base = model.get_submodule(base_name(model))
    slicings = _cut(model, base, config, shard, group, aliases, border) if shard.parts > 1 else {}
    if not shard.has_embedding:
        drop_tower(model)
    stage_input = _keep_stage(model, base, config, shard)
    cache = KVCache()
    attention.attach(base, cache, mask_windows(config), mask_chunks(config))
    latents.attach(base)
    indexer.attach(base, cache)
    shared_keys.attach(base)
    temperature.attach(base)
    long_rope.attach(base, cache)
    recurrent.attach(base, cache)
    compressed.attach(base, cache)
    return Part(base, slicings, stage_input, cache)


def build(
    directory: Path,
    dtype: str,
    shard: Shard,
    group: RankGroup,
    device: Device,
    on_bytes: BytesRead,
    weights: str | None = None,
    adapters: Sequence[Adapter] = (),
    *,
    mtp: bool = False,
) -> ShardedModel:
    """Build and load one rank's part. ``group`` is the ranks of this stage, for tensors of ``device``. ``weights`` and
    ``mtp``: as in `Checkpoint`. ``adapters``: whose files are here.

    Raises `ModelError` and `PlanError` before any weight is read where the model cannot be run or cut as planned.
    """
    with Checkpoint(directory, weights, mtp=mtp) as checkpoint:
        plan = blueprint(directory, dtype, shard, group, checkpoint, mtp=mtp)
        added = None
        if adapters:
            added = attach(plan.model, plan.read(adapters), device)
        size = plan.fill(checkpoint, on_bytes, device.torch_device)
    restore_buffers(plan.model, device.torch_device)
    size += 0 if added is None else added.bytes
    width = plan.hidden_size
    inputs = plan.stage_input, added, plan.mtp_input
    return ShardedModel(plan.model, plan.base, shard, plan.cache, plan.dtype, width, size, *inputs)


def empty(config: Any, dtype: torch.dtype, attend: str = attention.NAME) -> Any:
    """The architecture as transformers builds it, without memory: with the part that sees, where ``config`` has one.
    ``attend``: the attention function of the language model. Raises `ModelError` for what is not run here."""
    attention.register()
    made_by: Any = AutoModelForCausalLM
    attends: Any = attend
    if config.get_text_config() is not config:
        made_by, attends = AutoModelForImageTextToText, {"text_config": attend, "vision_config": "sdpa"}
    try:
        with torch.device("meta"):
            model = made_by.from_config(config, dtype=dtype, attn_implementation=attends, trust_remote_code=False)
    except (KeyError, ValueError) as error:  # not a causal language model, or one with attention of its own
        raise ModelError(f"{type(config).__name__} cannot be built to run here: {error}") from None
    _check_supported(model)
    return model.eval()


def _check_supported(model: Any) -> None:
    name, config = type(model).__name__, model.config.get_text_config()
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise ModelError(f"{name} looks at later tokens too, as its config.json says, which this engine does not run")
    if config.model_type in RECURRENT:  # which transformers marks so for their other layers
        return
    if not model._supports_attention_backend:
        raise ModelError(f"{name} computes attention in its own way, which this engine does not run")
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{name} has layers that keep a state of their own (recurrent ones), which are not run here")


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    return next(str(name) for name, module in model.named_modules() if module is wanted)


def _input_name(model: Any) -> str:
    """The name of the input embedding's module."""
    return _name_of(model, model.get_input_embeddings())


def _output_name(model: Any) -> str:
    return _name_of(model, model.get_output_embeddings())


def tied(model: Any, made_of: dict[str, Recipe]) -> dict[str, str]:
    """Tied weights, where the output layer has none of its own in the checkpoint: its name -> the embedding's."""
    head, table = f"{_output_name(model)}.weight", f"{_input_name(model)}.weight"
    if head not in made_of and getattr(model.config, "tie_word_embeddings", False):
        return {head: table}
    return {}


def _cut(
    model: Any,
    base: nn.Module,
    config: Any,
    shard: Shard,
    group: RankGroup,
    aliases: dict[str, str],
    border: Border | None,
) -> dict[str, Slicing]:
    plan = plan_of(config)
    if plan is None:
        raise PlanError(f"{no_plan('tensor parallel', type(model).__name__)}; use --tp 1")
    parallel = TensorParallel(model, config, group, shard, border)
    parallel.apply(base, f"{base_name(model)}.", plan)
    if parallel.alone:
        return parallel.slicings
    table, head = _input_name(model), _output_name(model)
    parallel.embedding(table)
    parallel.head(head)
    aliases[f"{table}.table.weight"] = f"{table}.weight"
    if f"{head}.weight" in aliases:  # cut the same way, so one tensor still serves both
        model.get_submodule(head).weight = model.get_submodule(table).table.weight
    return parallel.slicings


def _keep_stage(model: nn.Module, base: nn.Module, config: Any, shard: Shard) -> StageInput | None:
    """Drop every module that other pipeline stages hold; a place left empty hands its input on. Returns the place
    where the hidden states of the stage before enter, if there is one."""
    names = stages_of(config)
    if shard.has_embedding and shard.has_head:
        return None
    layers = getattr(base, "layers", None)
    if "layers" not in names or not isinstance(layers, nn.ModuleList):
        raise PlanError(f"transformers has no pipeline plan that fits {type(model).__name__}; use --pp 1")
    if len(layers) != config.num_hidden_layers:
        raise PlanError(f"{type(model).__name__} holds its layers in groups, which cannot be cut here; use --pp 1")
    for index in range(len(layers)):
        if not shard.first_layer <= index < shard.last_layer:
            layers[index] = PassThrough(layers[index])
    at = names.index("layers")
    dropped = (names[:at] if not shard.has_embedding else []) + (names[at + 1 :] if not shard.has_head else [])
    for name in dropped:
        setattr(base, name, PassThrough())
    if not shard.has_head:
        setattr(model, _output_name(model), PassThrough())
    if shard.has_embedding:
        return None
    layers[0] = stage_input = StageInput(layers[0])
    return stage_input


def restore_buffers(model: Any, device: torch.device, base: Any = None) -> None:
    """Compute the buffers that no checkpoint holds (rotary frequencies, embedding scales), as transformers does.
    ``base``: the module that holds the layers, if it has not its usual name."""
    owners = []
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.full_like(buffer, _unset(buffer), device=device)
                owners.append((module, name))
    inner = model.get_submodule(base_name(model)) if base is None else base
    asked = {part: each for each in model.modules() if isinstance(each, PreTrainedModel) for part in each.modules()}
    for module in dict.fromkeys(module for module, _ in owners):
        asked[module]._init_weights(module)  # as transformers asks the innermost model
    if any(_is_unset(module._buffers[name]) for module, name in owners):  # what the whole model knows (Falcon-H1)
        inner._init_weights(inner)
    for module, name in owners:
        if _is_unset(module._buffers[name]):
            raise ModelError(f"{type(model).__name__}: transformers does not say how to compute its buffer {name}")


def _is_unset(buffer: Tensor | None) -> bool:
    if buffer is None or buffer.dtype is torch.bool:
        return True
    return bool((buffer.isnan() | (buffer == _unset(buffer))).any())


def _unset(buffer: Tensor) -> float:
    """A value that no computed buffer of this dtype holds."""
    if buffer.dtype is torch.bool:
        return 0
    return float("nan") if buffer.is_floating_point() else torch.iinfo(buffer.dtype).min
