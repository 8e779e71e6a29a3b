"""Describe the step of a model: from its modules, built and cut but without memory, to the operations of a program."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from ferrule.engine.rank.attention import WINDOW
from ferrule.engine.rank.layers import GatheredLinear, RowParallelLinear, VocabularyParallelEmbedding
from ferrule.engine.rank.step.families import ACTIVATIONS, FAMILIES, SCORING, STATIC_ROTARY, Family
from ferrule.engine.rank.step.operations import (
    Adapt,
    AllGather,
    Attend,
    CacheLayer,
    Description,
    Embed,
    Experts,
    Gate,
    Gather,
    HeadParts,
    HeadProduct,
    Norm,
    Operation,
    Product,
    Reduce,
    ReduceScatter,
    Rotate,
    Scale,
    Select,
    View,
)
from ferrule.model import Range
from ferrule.plan import Shard

BLOCK = 16
"""The results of a product are filled up to a multiple of this."""


class Unfit(Exception):
    """The model has something for which there is no operation. Its text says what."""


def describe(
    model: Any, base: nn.Module, shard: Shard, ranks: int, adapted: Collection[str] = frozenset()
) -> Description:
    """The program of this rank's stage. ``ranks``: that share its layers. ``adapted``: the layers that have adapters.
    Raises `Unfit`."""
    return _Describer(model, base, shard, ranks, adapted).description()


class _Describer:
    def __init__(self, model: Any, base: nn.Module, shard: Shard, ranks: int, adapted: Collection[str]) -> None:
        if model.config.get_text_config() is not model.config:
            raise Unfit(f"{type(model).__name__} takes images, which no step program reads")
        self.model, self.base, self.shard, self.ranks, self.adapted = model, base, shard, ranks, adapted
        self.config = model.config
        self.hidden = int(self.config.hidden_size)
        self.names = {id(module): name for name, module in model.named_modules()}
        self.operations: list[Operation] = []
        self.registers: dict[str, int] = {"hidden": self.hidden, "normed": self.hidden, "sum": _padded(self.hidden)}
        if self._predicts:
            self.registers = {"before": self.hidden, **self.registers}
        self.rotary: dict[str, tuple[str, float]] = {}
        self.caches: list[CacheLayer] = []
        self.depths: list[int] = []
        self.normed = 0
        self.matrices: set[str] = set()
        self.by_head: dict[str, HeadParts] = {}
        self.exchange = shard.exchange and ranks > 1
        self.apart = False
        """Whether each rank is at rows of its own."""

    def description(self) -> Description:
        layers = list(self.base.layers)  # type: ignore[arg-type]
        if self.shard.has_embedding:
            self._embed()
        if self._predicts:
            self._join_before(layers[0])
        for index in range(self.shard.first_layer, self.shard.last_layer):
            family = FAMILIES.get(type(layers[index]).__name__)
            if family is None:
                raise Unfit(f"{type(layers[index]).__name__} has no step program")
            self._layer(layers[index], family)
            self.depths.append(len(self.operations))
        result = "hidden"
        if self.shard.has_head:
            self._head(FAMILIES[type(layers[self.shard.first_layer]).__name__])
            result = "logits"
        return Description(
            tuple(self.operations), self.registers, self.rotary, tuple(self.caches), tuple(self.depths), result,
            self.normed, frozenset(self.matrices), self.by_head,
        )  # fmt: skip

    def _embed(self) -> None:
        module: Any = self.model.get_input_embeddings()
        first, shared = 0, isinstance(module, VocabularyParallelEmbedding)
        if shared:
            first, module = module.first, module.table
        factor = float(getattr(module, "scalar_embed_scale", 1.0)) * float(
            getattr(self.config, "embedding_multiplier", None) or 1.0
        )
        self._add(Embed(self._weight(module), "hidden", first, factor, shared))

    @property
    def _predicts(self) -> bool:
        """Whether its only layer is that for multi-token prediction (`draft.mtp_layer`)."""
        return hasattr(next(iter(self.base.layers)), "eh_proj")  # type: ignore[arg-type]

    def _join_before(self, layer: Any) -> None:
        """Its input, of each token and the hidden state before it."""
        family = FAMILIES.get(type(layer).__name__, Family())
        self._widen("joined", 2 * self.hidden)
        self._norm(layer.enorm, family, View("hidden"), View("joined"))
        self._norm(layer.hnorm, family, View("before"), View("joined", self.hidden))
        self._product(View("joined"), "sum", layer.eh_proj)
        self._add(Reduce("sum", "hidden", add=False))

    def _layer(self, layer: Any, family: Family) -> None:
        self._norm(getattr(layer, family.attention_norm), family, View("hidden"), View("normed"))
        self._join("normed")
        if getattr(layer.self_attn, "kv_b_proj", None) is not None:
            self._latent_attention(layer.self_attn, family)
        else:
            self._attention(layer.self_attn, family)
        self._residual(layer, family, family.attention_after, layer.self_attn.o_proj)
        self._norm(getattr(layer, family.mlp_norm), family, View("hidden"), View("normed"))
        mlp = layer.mlp
        if hasattr(mlp, "experts"):
            summed = self._experts(mlp)
            self._residual(layer, family, family.mlp_after, None, summed=summed)
        else:
            self._join("normed")
            down = self._dense(mlp, "sum")
            self._residual(layer, family, family.mlp_after, down)

    def _join(self, register: str, *, exact: bool = False) -> None:
        """``register`` whole on every rank, if each has rows of its own."""
        if self.apart:
            self._add(AllGather(register, exact))
        self.apart = False

    def _residual(self, layer: Any, family: Family, after: str, linear: Any, *, summed: bool = False) -> None:
        """Sum the ranks' parts, if that is not done, and add them to the hidden states, through the norm ``after``
        where there is one. ``linear``: what makes them; None: experts."""
        shared = not summed and self.ranks > 1 and (linear is None or isinstance(linear, RowParallelLinear))
        if shared and self.exchange:  # each rank goes on with rows of its own
            self._add(ReduceScatter("sum"))
            self.apart, shared = True, False
        bias = "" if linear is None or linear.bias is None else f"{self._name(linear)}.bias"
        factor = float(getattr(layer, "residual_multiplier", 1.0))
        if not after:
            self._add(Reduce("sum", "hidden", shared=shared, factor=factor, bias=bias))
            return
        self._add(Reduce("sum", "sum", add=False, shared=shared, bias=bias))
        self._norm(getattr(layer, after), family, View("sum"), View("sum"))
        self._add(Reduce("sum", "hidden", factor=factor))

    def _norm(
        self, module: Any, family: Family, source: View, to: View, width: int | None = None, count: int = 1
    ) -> None:
        eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
        if eps is None or not isinstance(getattr(module, "weight", None), nn.Parameter):
            raise Unfit(f"{self._name(module)} is no norm that is known")
        weight = f"{self._name(module)}.weight"
        if width is not None and module.weight.shape != (width,):
            raise Unfit(f"{weight} is for several heads at once")
        mean = isinstance(module, nn.LayerNorm)
        bias = f"{self._name(module)}.bias" if mean and module.bias is not None else ""
        self._add(Norm(source, to, width or self.hidden, float(eps), weight, bias, count, family.added, mean))

    def _attention(self, attention: Any, family: Family) -> None:
        width = int(attention.head_dim)
        fused = getattr(attention, "qkv_proj", None)
        if fused is not None:
            heads, held = self._fused_heads(attention, width)
            parts = (0, heads * width, (heads + held) * width)
            self._product(View("normed"), "qkv", fused)
        else:
            linears = attention.q_proj, attention.k_proj, attention.v_proj
            heads, held = (each.weight.shape[0] // width for each in linears[:2])
            parts = (0, _padded(heads * width), _padded(heads * width) + _padded(held * width))
            self._product(View("normed"), "qkv", *linears)
        query, key, value = (View("qkv", part) for part in parts)
        for name, view, count in (("q_norm", query, heads), ("k_norm", key, held)):
            if getattr(attention, name, None) is not None:
                self._norm(getattr(attention, name), family, view, view, width, count)
        table = self._rotary(attention)
        for view, count in ((query, heads), (key, held)):
            self._add(Rotate(view, count, width, table, family.interleaved))
        window = getattr(attention, "sliding_window", None)
        if family.window:
            window = getattr(self.config, "sliding_window", None)
        window = window or getattr(attention, WINDOW, None) or 0
        softcap = getattr(attention, "attn_logit_softcapping", None)
        if softcap is not None and "Gemma2" not in type(attention).__name__:
            raise Unfit(f"{type(attention).__name__} says that its logits are bounded, and does not do it")
        sinks = f"{self._name(attention)}.sinks" if hasattr(attention, "sinks") else ""
        self._widen("attended", heads * width)
        scale, cap = float(attention.scaling), float(softcap or 0.0)
        self._add(Attend(query, key, value, "attended", len(self.caches), heads, scale, cap, window, sinks))
        self.caches.append(CacheLayer(held, width, width))
        self._product(View("attended"), "sum", attention.o_proj, biased=False)

    def _latent_attention(self, attention: Any, family: Family) -> None:
        """Latent attention (DeepSeek-V2, 2024) on its latents: queries are brought among them by the keys' part of the
        last projection, so that one key and value is kept for all heads."""
        key, turned = int(attention.qk_nope_head_dim), int(attention.qk_rope_head_dim)
        rank, value = int(attention.kv_lora_rank), int(attention.v_head_dim)
        heads = attention.kv_b_proj.weight.shape[0] // (key + value)
        if attention.q_lora_rank is None:
            self._product(View("normed"), "query", attention.q_proj)
            self._product(View("normed"), "latent", attention.kv_a_proj_with_mqa)
            latent = View("latent")
        else:
            self._product(View("normed"), "latent", attention.q_a_proj, attention.kv_a_proj_with_mqa)
            latent = View("latent", _padded(attention.q_lora_rank))
            first = View("latent")
            self._norm(attention.q_a_layernorm, family, first, first, int(attention.q_lora_rank))
            self._product(first, "query", attention.q_b_proj)
        self._norm(attention.kv_a_layernorm, family, latent, latent, rank)
        table = self._rotary(attention)
        pairs = family.interleaved or bool(getattr(self.config, "rope_interleave", False))
        self._add(Rotate(View("query", key), heads, key + turned, table, pairs))
        self._add(Rotate(View("latent", latent.offset + rank), 1, turned, table, pairs))
        weight = self._weight(attention.kv_b_proj)
        if attention.kv_b_proj.bias is not None:
            raise Unfit(f"{self._name(attention.kv_b_proj)} has a bias")
        self.by_head[weight] = HeadParts(key, value)
        self._widen("absorbed", heads * (rank + turned))
        self._add(HeadProduct(View("query"), "absorbed", weight, "key", heads, key + turned, rank + turned, turned))
        self._widen("answers", heads * rank)
        self._add(
            Attend(View("absorbed"), latent, latent, "answers", len(self.caches), heads, float(attention.scaling))
        )
        self.caches.append(CacheLayer(1, rank + turned, rank))
        self._widen("attended", heads * value)
        self._add(HeadProduct(View("answers"), "attended", weight, "value", heads, rank, value))
        self._product(View("attended"), "sum", attention.o_proj, biased=False)

    def _widen(self, register: str, width: int) -> None:
        self.registers[register] = max(self.registers.get(register, 0), width)

    def _fused_heads(self, attention: Any, width: int) -> tuple[int, int]:
        """Query and key/value heads of a fused projection on this rank."""
        readers = int(attention.num_key_value_groups)
        held = attention.qkv_proj.weight.shape[0] // width // (readers + 2)
        return readers * held, held

    def _rotary(self, attention: Any) -> str:
        module: Any = getattr(self.base, "rotary_emb", None)
        kind = getattr(attention, "layer_type", None)
        prefix = f"{kind}_" if kind and hasattr(module, f"{kind}_inv_freq") else ""
        if not hasattr(module, f"{prefix}inv_freq"):
            raise Unfit("its rotary positions are not known")
        told = module.rope_type
        if (told[kind] if isinstance(told, dict) else told) not in STATIC_ROTARY:
            raise Unfit(f"its rotary positions are of the kind {told!r}")
        name = f"{self._name(module)}.{prefix}inv_freq"
        self.rotary[prefix or "all"] = name, float(getattr(module, f"{prefix}attention_scaling"))
        return prefix or "all"

    def _dense(self, mlp: Any, to: str) -> Any:
        """The block ``mlp``, whose result (this rank's part) goes to register ``to``. Returns its last linear layer."""
        up: View | None
        activation = self._activation(mlp)
        if getattr(mlp, "gate_up_proj", None) is not None:
            inner = mlp.gate_up_proj.weight.shape[0] // 2
            self._product(View("normed"), "gate_up", mlp.gate_up_proj)
            up = View("gate_up", inner)
        elif getattr(mlp, "c_fc", None) is not None:
            inner = mlp.c_fc.weight.shape[0]
            self._product(View("normed"), "gate_up", mlp.c_fc)
            up = None
        else:
            inner = mlp.gate_proj.weight.shape[0]
            self._product(View("normed"), "gate_up", mlp.gate_proj, mlp.up_proj)
            up = View("gate_up", _padded(inner))
        self._widen("inner", inner)
        self._add(Gate(View("gate_up"), up, "inner", inner, activation))
        down = mlp.c_proj if up is None else mlp.down_proj
        self._product(View("inner"), to, down, biased=False)
        return down

    def _experts(self, mlp: Any) -> bool:
        """Routed and shared experts. Returns whether the ranks' parts are summed: before shared ones are added that
        every rank has whole."""
        experts = mlp.experts
        router: Any = getattr(mlp, "gate", None) or getattr(mlp, "router", None)
        kind = type(router).__name__
        if kind not in SCORING:
            raise Unfit(f"{kind} chooses experts in its own way")
        gpt_oss = kind == "GptOssTopKRouter"
        held, dim = experts.gate_up_proj.shape[0], 2 if gpt_oss else 1
        name = self._name(experts)
        if gpt_oss and (experts.alpha, experts.limit) != (1.702, 7.0):
            raise Unfit(f"{name} has a gate of its own")
        ranges: tuple[Range, ...] = getattr(experts, "held_experts", ())
        sharing = ("dispatched" if self.apart else "combined") if self.exchange else "masked"
        greedy = getattr(router, "topk_method", None) == "greedy"
        bias = f"{self._name(router)}.e_score_correction_bias"
        self._product(View("normed"), "routed", router)
        self.matrices |= {f"{name}.gate_up_proj", f"{name}.down_proj"}
        self._add(
            Experts(
                View("normed"), "routed", "sum",
                total=int(router.num_experts), chosen=int(router.top_k), scoring=SCORING[kind],
                first=ranges[self.shard.part][0] if ranges else 0, held=held,
                inner=experts.gate_up_proj.shape[dim] // 2,
                activation="gpt_oss" if gpt_oss else self._activation(experts),
                gate_up=f"{name}.gate_up_proj", down=f"{name}.down_proj",
                gate_up_bias=f"{name}.gate_up_proj_bias" if gpt_oss else "",
                down_bias=f"{name}.down_proj_bias" if gpt_oss else "",
                normalize=kind == "MixtralTopKRouter" or bool(getattr(router, "norm_topk_prob", False)),
                factor=float(getattr(router, "routed_scaling_factor", 1.0)),
                choice_bias=bias if hasattr(router, "e_score_correction_bias") else "",
                groups=1 if greedy else int(getattr(router, "num_group", None) or 1),
                chosen_groups=int(getattr(router, "topk_group", None) or 1),
                group_best=1 if kind == "DeepseekV2TopkRouter" else 2,
                transposed=gpt_oss, interleaved=gpt_oss, sharing=sharing,
                bounds=() if sharing == "masked" else (0, *(last for _, last in ranges)),
            )
        )  # fmt: skip
        self.apart = self.exchange
        shared = getattr(mlp, "shared_experts", None)
        summed = shared is not None and self._shared_experts(shared)
        if sharing == "combined":
            self._join("sum")
        return summed or self.exchange

    def _shared_experts(self, shared: Any) -> bool:
        """Add what they make. Returns as `_experts`."""
        down = self._dense(shared, "shared")
        if down.bias is not None:
            raise Unfit(f"{self._name(down)} has a bias")
        whole = self.ranks > 1 and not isinstance(down, RowParallelLinear)
        if whole and not self.apart:
            self._add(Reduce("sum", "sum", add=False, shared=True))
        self._add(Reduce("shared", "sum"))
        return whole

    def _activation(self, module: Any) -> str:
        found = next((act for each in ("act_fn", "activation_fn", "act") if (act := getattr(module, each, None))), None)
        name = type(found).__name__
        if name not in ACTIVATIONS:
            raise Unfit(f"{name} is no activation that is known")
        return ACTIVATIONS[name]

    def _head(self, family: Family) -> None:
        norm: Any = getattr(self.base, "norm", None)
        if norm is None:
            raise Unfit("its last norm is not known")
        self.registers["last"] = self.hidden
        self._join("hidden", exact=True)
        self._add(Select("hidden", "last"))
        self._norm(norm, family, View("last"), View("last"))
        self.normed = len(self.operations)
        head: Any = self.model.get_output_embeddings()
        widths = head.widths if isinstance(head, GatheredLinear) else (head.out_features,)
        self._product(View("last"), "scores", head)
        self.registers["logits"] = sum(widths)
        self._add(Gather("scores", "logits", widths))
        factor = 1 / float(getattr(self.config, "logits_scaling", None) or 1.0)
        softcap = float(getattr(self.config, "final_logit_softcapping", None) or 0.0)
        if factor != 1.0 or softcap:
            self._add(Scale("logits", factor, softcap))

    def _product(self, source: View, to: str, *modules: Any, biased: bool = True) -> None:
        for module in modules:
            if isinstance(module, GatheredLinear) and module.root is None:
                raise Unfit(f"{self._name(module)} is gathered on all ranks")
            if isinstance(module, RowParallelLinear) and module.split_input:
                raise Unfit(f"{self._name(module)} takes its input whole")
        biases = [f"{self._name(each)}.bias" if getattr(each, "bias", None) is not None else "" for each in modules]
        width = sum(_padded(each.weight.shape[0]) for each in modules)
        self._widen(to, width)
        weights = tuple(self._weight(each) for each in modules)
        self._add(Product(source, to, weights, tuple(biases) if biased and any(biases) else ()))
        offset = 0
        for module in modules:
            if self._name(module) in self.adapted:
                self._add(Adapt(source, View(to, offset), self._name(module)))
            offset += _padded(module.weight.shape[0])

    def _weight(self, module: Any) -> str:
        name = f"{self._name(module)}.weight"
        self.matrices.add(name)
        return name

    def _name(self, module: nn.Module) -> str:
        return str(self.names[id(module)])

    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)


def _padded(width: int) -> int:
    return -(-width // BLOCK) * BLOCK
