"""Cut a model on the meta device into this rank's part, by the plan that transformers has for its architecture.

transformers names a style for each module or parameter (`base_model_tp_plan`, and `base_model_ep_plan` for experts).
Each style here becomes a `Slicing` of the module's parameters and, where results must be put together, a layer that
does so over the fabric.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from math import lcm
from typing import Any, cast

from torch import nn

from ferrule.engine.architectures import key_value_heads
from ferrule.engine.devices import RankGroup
from ferrule.engine.rank.layers import (
    GatheredLinear,
    RowParallelLinear,
    VocabularyParallelEmbedding,
    hold_experts,
    shrink,
    sum_output,
)
from ferrule.engine.weights import slicing
from ferrule.engine.weights.slicing import Slicing
from ferrule.errors import PlanError
from ferrule.model import HeadSplit, Range, divide, split_heads
from ferrule.plan import Shard

WHOLE = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params"})
"""Styles that leave a module whole on every rank (they matter only to gradients)."""

KEY_VALUE = frozenset({"k_proj", "v_proj"})
QUERY = frozenset({"q_proj", "q_b_proj", "kv_b_proj", "query_key_value"})
BY_HEADS = (*KEY_VALUE, *QUERY, "qkv_proj")
UNITS = ((256, 8), (128, 8), (16, 1), (8, 1), (4, 1), (1, 1))
"""Blocks in which columns stay together where they are cut unevenly, each if there are so many of them for each rank:
groups of codes are not cut then, kernels' blocks are full, and rows begin at 16 bytes, as torch's grouped products ask.
"""
_SHARED = ".shared_expert"
"""In the names of shared experts."""
_BY_EXPERT = frozenset({"grouped_gemm", "ep_dispatch_experts"})

Border = Callable[[str, int], int]
"""Of a parameter's name and a dimension: at multiples of how many numbers its stored weight can be cut."""


class TensorParallel:
    """Applies a plan to a model; `slicings` then says for each parameter (by its name) what the rank of ``shard``
    holds. ``border``: of stored weights; None where there are none."""

    def __init__(
        self, model: nn.Module, config: Any, group: RankGroup, shard: Shard, border: Border | None = None
    ) -> None:
        self.model, self.config, self.group = model, config, group
        self.part, self.shard = group.rank, shard
        self.queries = [share.query for share in shard.shares]
        self.widths = [share.width for share in shard.shares]
        self.of_experts = [share.experts for share in shard.shares]
        self.of_shared = [share.shared for share in shard.shares]
        self.alone = shard.experts and min(self.queries) == 1.0
        """Whether every rank has all but routed experts."""
        self._border = border
        self._unit = 1
        self.slicings: dict[str, Slicing] = {}
        self.by_style: dict[str, Callable[[str, nn.Module], None]] = {
            "colwise": self._columns,
            "colwise_gather_output": self._gathered,
            "colwise_rep": self._gathered,
            "rowwise": self._rows,
            "rowwise_split_input": lambda name, module: self._rows(name, module, split_input=True),
            "rowwise_rep": lambda name, module: self._rows(name, module, split_input=True),
            "packed_colwise": self._packed_columns,
            "fused_qkv": self._fused_qkv,
            "moe_tp_experts": self._inside_experts,
            "all_reduce": lambda _, module: sum_output(module, self.group),
            "ep_dispatch_experts": self._experts,
        }

    def apply(self, base: nn.Module, prefix: str, plan: dict[str, str]) -> None:
        """Cut ``base`` (named ``prefix`` in the model) by ``plan``. Raises `PlanError` for what cannot be cut."""
        if self.alone:
            plan = {pattern: style for pattern, style in plan.items() if ".experts" in pattern}
        elif min(self.of_shared) == 1.0:
            plan = {pattern: style for pattern, style in plan.items() if _SHARED not in pattern}
        patterns = [(re.compile(re.escape(pattern).replace(r"\*", r"\d+")), style) for pattern, style in plan.items()]

        def style_of(name: str) -> str | None:
            return next((style for pattern, style in patterns if pattern.fullmatch(name)), None)

        modules = list(base.named_modules())
        self._unit = lcm(*self._borders(modules, prefix, style_of))
        for name, module in modules:
            whole_experts = self.shard.experts and style_of(name) == "moe_tp_experts"
            for parameter in list(module._parameters):
                style = style_of(f"{name}.{parameter}")
                if style is not None and style not in WHOLE and not whole_experts:
                    self._parameter(f"{prefix}{name}", module, parameter, style)
            style = style_of(name)
            if style is None or style in WHOLE:
                continue
            if style not in self.by_style:
                raise PlanError(f"{type(self.model).__name__}: {name} is to be split {style!r}, which is not supported")
            self.by_style[style](f"{prefix}{name}", module)
        for module in base.modules():
            self._count_heads(module)

    def _borders(
        self, modules: Iterable[tuple[str, nn.Module]], prefix: str, style_of: Callable[[str], str | None]
    ) -> Iterable[int]:
        """At which multiples the columns of dense blocks and experts can be cut: the same for what makes them and for
        what takes them."""
        if self._border is None:
            return
        for name, module in modules:
            for leaf, parameter in module._parameters.items():
                style = style_of(f"{name}.{leaf}") or style_of(name)
                if parameter is None or style is None or style in WHOLE or style in _BY_EXPERT:
                    continue
                if not self._by_heads(f"{prefix}{name}") and not (self.shard.experts and ".experts" in name):
                    dims = parameter.dim()
                    by_inputs = style in ("rowwise", "packed_rowwise")
                    yield self._border(f"{prefix}{name}.{leaf}", dims - 1 if by_inputs else max(0, dims - 2))

    def _divided(self, size: int, shares: list[float], what: str) -> tuple[Range, ...]:
        """Columns of each rank: equal parts where these are asked for and stored weights allow it, else in blocks."""
        ranks, unit = len(shares), self._unit
        if len(set(shares)) > 1 or size % (ranks * unit):
            blocks = ((lcm(unit, block), many) for block, many in UNITS)
            unit = next((block for block, many in blocks if size >= many * ranks * block), unit)
        return divide(size, shares, what, unit)

    def embedding(self, name: str) -> None:
        """Share out the vocabulary's rows of the input embedding."""
        table = cast(nn.Embedding, self.model.get_submodule(name))
        parts = divide(table.num_embeddings, self.widths, f"{name}: the vocabulary")
        self._cut(f"{name}.weight", table, "weight", slicing.vocabulary(table.num_embeddings, parts, self.part))
        self._replace(name, VocabularyParallelEmbedding(table, self.group, *parts[self.part]))
        self.slicings[f"{name}.table.weight"] = self.slicings.pop(f"{name}.weight")

    def head(self, name: str) -> None:
        """Share out the vocabulary's rows of the output layer; the stage's first rank, the driver, gets the logits."""
        linear = cast(nn.Linear, self.model.get_submodule(name))
        parts = divide(linear.out_features, self.widths, f"{name}: the vocabulary")
        self._cut_all(name, linear, slicing.vocabulary(linear.out_features, parts, self.part))
        self._replace(name, GatheredLinear(linear, self.group, [stop - start for start, stop in parts], root=0))

    def _cut(self, full_name: str, module: nn.Module, parameter: str, cut: Slicing) -> None:
        whole = module._parameters[parameter]
        if whole is not None:
            module._parameters[parameter] = shrink(whole, cut.shape(whole.shape))
            self.slicings[full_name] = cut

    def _cut_all(self, name: str, linear: nn.Linear, cut: Slicing) -> None:
        """Weight and bias."""
        for parameter in linear._parameters:
            self._cut(f"{name}.{parameter}", linear, parameter, cut)

    def _replace(self, name: str, module: nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        setattr(self.model.get_submodule(parent), child, module)

    def _output_slicing(self, name: str, size: int) -> Slicing:
        """Slicing of the output features of a column-wise layer: by heads in attention, else by columns."""
        parent, _, leaf = name.rpartition(".")
        attention = self.model.get_submodule(parent)
        if leaf in KEY_VALUE:
            return self._by_key_value_heads(name, size, attention)
        if leaf in QUERY:
            return self._by_query_heads(name, size, attention)
        if leaf == "o_a_proj":  # of groups of whole heads
            heads, groups = self.config.num_attention_heads, self.config.o_groups
            first, last = (end * groups // heads for end in self._heads_of(attention).query)
            return slicing.heads(size, 0, groups, (first, last), name)
        if self._by_heads(name) and size % self.config.num_attention_heads == 0:  # such as a gate
            return self._by_query_heads(name, size, attention)
        return slicing.columns(size, 0, self._divided(size, self._shares_of(name), f"{name}: width")[self.part])

    def _by_query_heads(self, name: str, size: int, attention: nn.Module) -> Slicing:
        return slicing.heads(size, 0, self.config.num_attention_heads, self._heads_of(attention).query, name)

    def _by_key_value_heads(self, name: str, size: int, attention: nn.Module) -> Slicing:
        return slicing.heads(size, 0, self._key_value_heads_of(attention), self._heads_of(attention).key_value, name)

    def _shares_of(self, name: str) -> list[float]:
        """What of a dense block, or of every expert, the ranks have."""
        if _SHARED in name:
            return self.of_shared
        return self.of_experts if ".experts" in name else self.widths

    def _by_heads(self, name: str) -> bool:
        """Whether linear layer ``name`` is one of attention that is cut by heads: its parent has projections."""
        parent = self.model.get_submodule(name.rpartition(".")[0])
        return any(isinstance(getattr(parent, each, None), nn.Linear) for each in BY_HEADS)

    def _key_value_heads_of(self, attention: nn.Module) -> int:
        """Number of key/value heads of ``attention`` in the whole model. Layers may differ from what the configuration
        says (MiMo's windowed ones have twice as many)."""
        projection, width = getattr(attention, "k_proj", None), getattr(attention, "head_dim", None)
        if isinstance(projection, nn.Linear) and isinstance(width, int) and projection.out_features % width == 0:
            return projection.out_features // width
        return key_value_heads(self.config)

    def _heads_of(self, attention: nn.Module) -> HeadSplit:
        """This rank's heads of ``attention``. Groups of heads that share an output projection stay together."""
        heads = self.config.num_attention_heads
        if hasattr(attention, "o_a_proj"):
            groups = self.config.o_groups
            if len(self.queries) > groups:
                raise PlanError(f"{groups} groups of attention heads cannot be shared by {len(self.queries)} ranks")
            return HeadSplit(split_heads(heads, groups, self.queries)[self.part].query, (0, 1))
        return split_heads(heads, self._key_value_heads_of(attention), self.queries)[self.part]

    def _columns(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        self._cut_all(name, linear, self._output_slicing(name, linear.out_features))

    def _packed_columns(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        self._cut_all(name, linear, self._packed(name, linear.out_features, 0))

    def _packed(self, name: str, size: int, dim: int) -> Slicing:
        what = f"{name}: width"
        held = self._divided(slicing.piece_length(size, what), self._shares_of(name), what)[self.part]
        return slicing.packed(size, dim, held, what)

    def _fused_qkv(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        heads = self._heads_of(self.model.get_submodule(name.rpartition(".")[0]))
        cut = slicing.fused_qkv(
            linear.out_features, 0, self.config.num_attention_heads, key_value_heads(self.config), heads, name
        )
        self._cut_all(name, linear, cut)

    def _gathered(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        parts = divide(linear.out_features, self.queries, f"{name}: width")
        self._cut_all(name, linear, slicing.columns(linear.out_features, 0, parts[self.part]))
        self._replace(name, GatheredLinear(linear, self.group, [stop - start for start, stop in parts]))

    def _rows(self, name: str, module: nn.Module, split_input: bool = False) -> None:
        linear = _linear(name, module)
        held = self._input_range(name, linear.in_features, split_input)
        self._cut(f"{name}.weight", linear, "weight", slicing.columns(linear.in_features, 1, held))
        self._replace(name, RowParallelLinear(linear, self.group, held[0] if split_input else None))

    def _input_range(self, name: str, size: int, whole: bool) -> Range:
        """Input features of this rank: as what makes them is cut, or (``whole``) as it likes."""
        if whole:
            border = self._border(f"{name}.weight", 1) if self._border else 1
            return divide(size, self.queries, f"{name}: width", border)[self.part]
        if not self._by_heads(name):
            return self._divided(size, self._shares_of(name), f"{name}: width")[self.part]
        heads = self.config.num_attention_heads
        first, last = self._heads_of(self.model.get_submodule(name.rpartition(".")[0])).query
        return first * size // heads, last * size // heads

    def _parameter(self, name: str, module: nn.Module, parameter: str, style: str) -> None:
        """Cut a bare parameter, such as the stacked weights of experts: (experts, out, in)."""
        whole = module._parameters[parameter]
        if whole is None:
            return
        shape, full_name = whole.shape, f"{name}.{parameter}"
        rows, last = max(0, len(shape) - 2), len(shape) - 1
        if style in ("packed_colwise", "packed_rowwise"):  # rowwise: experts that are stored with their inputs first
            dim = rows if style == "packed_colwise" else last
            cut = self._packed(full_name, shape[dim], dim)
        elif style == "query_heads" or (style == "colwise" and self._by_heads(full_name)):  # such as sinks
            cut = self._by_query_heads(full_name, shape[0], self._attention_above(name, module))
        elif style in ("colwise", "rowwise"):
            dim = rows if style == "colwise" else last
            held = self._divided(shape[dim], self._shares_of(full_name), f"{full_name}: width")[self.part]
            cut = slicing.columns(shape[dim], dim, held)
        elif style == "grouped_gemm":
            cut = slicing.columns(shape[0], 0, self._held_experts(name, shape[0])[self.part])
        elif style == "key_value_heads":
            cut = self._by_key_value_heads(full_name, shape[0], self._attention_above(name, module))
        else:
            raise PlanError(
                f"{type(self.model).__name__}: {full_name} is to be split {style!r}, which is not supported"
            )
        self._cut(full_name, module, parameter, cut)

    def _attention_above(self, name: str, module: nn.Module) -> nn.Module:
        """The attention that ``module`` is, or is a norm of."""
        return self.model.get_submodule(name.rpartition(".")[0]) if name.endswith("_norm") else module

    def _held_experts(self, name: str, count: int) -> tuple[Range, ...]:
        """Of each rank."""
        return divide(count, self.of_experts, f"{name}: the number of experts")

    def _inside_experts(self, name: str, module: nn.Module) -> None:
        if not self.shard.experts:
            sum_output(module, self.group)
            return
        held = self._held_experts(name, cast(int, module.num_experts))
        for parameter, whole in list(module._parameters.items()):
            if whole is not None:
                self._cut(f"{name}.{parameter}", module, parameter, slicing.columns(whole.shape[0], 0, held[self.part]))
        hold_experts(module, self.group, held)

    def _experts(self, name: str, module: nn.Module) -> None:
        hold_experts(module, self.group, self._held_experts(name, cast(int, module.num_experts)))

    def _count_heads(self, module: nn.Module) -> None:
        """Tell an attention module that was cut how many heads it has now; it may read them from its config."""
        names = {f"{name}.weight" for name in ("q_proj", "q_b_proj", "qkv_proj", "query_key_value")}
        cut = any(
            isinstance(child, nn.Linear) and f"{name}.weight" in names and child.weight.shape[0] < child.out_features
            for name, child in module.named_children()
        )
        if not cut:
            return
        heads = self._heads_of(module)
        counts = {
            "num_heads": heads.query_heads,
            "num_attention_heads": heads.query_heads,
            "num_key_value_heads": heads.key_value_heads,
            "num_key_value_groups": heads.query_heads // heads.key_value_heads,
        }
        for attribute, count in counts.items():
            if isinstance(getattr(module, attribute, None), int):
                setattr(module, attribute, count)
        config = copy.copy(self.config)
        config.num_attention_heads = heads.query_heads
        config.num_key_value_heads = heads.key_value_heads
        module.config = config


def _linear(name: str, module: nn.Module) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise PlanError(f"{name} is to be split like a linear layer but is a {type(module).__name__}")
    return module
