"""Cut a model on the meta device into this rank's part, by the plan that transformers has for its architecture.

transformers names a style for each module or parameter (`base_model_tp_plan`, and `base_model_ep_plan` for experts).
Each style here becomes a `Slicing` of the module's parameters and, where results must be put together, a layer that
does so over the fabric.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
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
from ferrule.model import HeadSplit, part_of, split_heads

WHOLE = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params"})
"""Styles that leave a module whole on every rank (they matter only to gradients)."""

KEY_VALUE = frozenset({"k_proj", "v_proj"})
QUERY = frozenset({"q_proj", "q_b_proj", "kv_b_proj", "query_key_value"})


class TensorParallel:
    """Applies a plan to a model; `slicings` then says for each parameter (by its name) what this rank holds."""

    def __init__(self, model: nn.Module, config: Any, group: RankGroup) -> None:
        self.model, self.config, self.group = model, config, group
        self.part, self.parts = group.rank, group.size
        self.heads: HeadSplit = split_heads(config.num_attention_heads, key_value_heads(config), self.part, self.parts)
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
            "moe_tp_experts": lambda _, module: sum_output(module, self.group),
            "all_reduce": lambda _, module: sum_output(module, self.group),
            "ep_dispatch_experts": self._experts,
        }

    def apply(self, base: nn.Module, prefix: str, plan: dict[str, str]) -> None:
        """Cut ``base`` (named ``prefix`` in the model) by ``plan``. Raises `PlanError` for what cannot be cut."""
        patterns = [(re.compile(re.escape(pattern).replace(r"\*", r"\d+")), style) for pattern, style in plan.items()]

        def style_of(name: str) -> str | None:
            return next((style for pattern, style in patterns if pattern.fullmatch(name)), None)

        for name, module in list(base.named_modules()):
            for parameter in list(module._parameters):
                style = style_of(f"{name}.{parameter}")
                if style is not None and style not in WHOLE:
                    self._parameter(f"{prefix}{name}", module, parameter, style)
            style = style_of(name)
            if style is None or style in WHOLE:
                continue
            if style not in self.by_style:
                raise PlanError(f"{type(self.model).__name__}: {name} is to be split {style!r}, which is not supported")
            self.by_style[style](f"{prefix}{name}", module)
        for module in base.modules():
            self._count_heads(module)

    def embedding(self, name: str) -> None:
        """Share out the vocabulary's rows of the input embedding."""
        table = cast(nn.Embedding, self.model.get_submodule(name))
        cut = slicing.vocabulary(table.num_embeddings, self.part, self.parts)
        self._cut(f"{name}.weight", table, "weight", cut)
        (held,) = cut.ranges
        self._replace(name, VocabularyParallelEmbedding(table, self.group, *held))
        self.slicings[f"{name}.table.weight"] = self.slicings.pop(f"{name}.weight")

    def head(self, name: str) -> None:
        """Share out the vocabulary's rows of the output layer; the stage's first rank, the driver, gets the logits."""
        linear = cast(nn.Linear, self.model.get_submodule(name))
        features = linear.out_features
        cut = slicing.vocabulary(features, self.part, self.parts)
        self._cut_all(name, linear, cut)
        self._replace(name, GatheredLinear(linear, self.group, features, root=0))

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

    def _output_slicing(self, name: str, size: int, dim: int = 0) -> Slicing:
        """Slicing of the output features of a column-wise layer: by heads in attention, else evenly."""
        parent, _, leaf = name.rpartition(".")
        if leaf in KEY_VALUE:
            count, split = self._key_value_heads_of(self.model.get_submodule(parent))
            return slicing.heads(size, dim, count, split.key_value, name)
        if leaf in QUERY:
            return slicing.heads(size, dim, self.config.num_attention_heads, self.heads.query, name)
        if leaf == "o_a_proj":  # of groups of whole heads
            part_of(self.config.o_groups, self.part, self.parts, f"{name}: the number of groups")
        return slicing.even(size, dim, self.part, self.parts, f"{name}: width")

    def _key_value_heads_of(self, attention: nn.Module) -> tuple[int, HeadSplit]:
        """Number of key/value heads of ``attention`` in the whole model, and this rank's part of them. Layers may
        differ from what the configuration says (MiMo's windowed ones have twice as many)."""
        projection, width = getattr(attention, "k_proj", None), getattr(attention, "head_dim", None)
        count = key_value_heads(self.config)
        if isinstance(projection, nn.Linear) and isinstance(width, int) and projection.out_features % width == 0:
            count = projection.out_features // width
        return count, split_heads(self.config.num_attention_heads, count, self.part, self.parts)

    def _columns(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        cut = self._output_slicing(name, linear.out_features)
        self._cut_all(name, linear, cut)

    def _packed_columns(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        cut = slicing.packed(linear.out_features, 0, self.part, self.parts, f"{name}: width")
        self._cut_all(name, linear, cut)

    def _fused_qkv(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        cut = slicing.fused_qkv(
            linear.out_features, 0, self.config.num_attention_heads, key_value_heads(self.config), self.heads, name
        )
        self._cut_all(name, linear, cut)

    def _gathered(self, name: str, module: nn.Module) -> None:
        linear = _linear(name, module)
        features = linear.out_features
        cut = slicing.even(features, 0, self.part, self.parts, f"{name}: width")
        self._cut_all(name, linear, cut)
        self._replace(name, GatheredLinear(linear, self.group, features))

    def _rows(self, name: str, module: nn.Module, split_input: bool = False) -> None:
        linear = _linear(name, module)
        cut = slicing.even(linear.in_features, 1, self.part, self.parts, f"{name}: width")
        self._cut(f"{name}.weight", linear, "weight", cut)
        self._replace(name, RowParallelLinear(linear, self.group, split_input))

    def _parameter(self, name: str, module: nn.Module, parameter: str, style: str) -> None:
        """Cut a bare parameter, such as the stacked weights of experts: (experts, out, in)."""
        whole = module._parameters[parameter]
        if whole is None:
            return
        shape, full_name = whole.shape, f"{name}.{parameter}"
        what = f"{full_name}: width"
        if style == "packed_colwise":
            dim = max(0, len(shape) - 2)
            cut = slicing.packed(shape[dim], dim, self.part, self.parts, what)
        elif style == "packed_rowwise":  # of experts that are stored with their inputs first, as "colwise" then is
            cut = slicing.packed(shape[-1], len(shape) - 1, self.part, self.parts, what)
        elif style == "colwise":
            dim = max(0, len(shape) - 2)
            cut = slicing.even(shape[dim], dim, self.part, self.parts, what)
        elif style == "rowwise":
            cut = slicing.even(shape[-1], len(shape) - 1, self.part, self.parts, what)
        elif style == "grouped_gemm":
            cut = slicing.even(shape[0], 0, self.part, self.parts, f"{name}: the number of experts")
        elif style == "query_heads":
            cut = slicing.heads(shape[0], 0, self.config.num_attention_heads, self.heads.query, full_name)
        elif style == "key_value_heads":
            cut = slicing.heads(shape[0], 0, key_value_heads(self.config), self.heads.key_value, full_name)
        else:
            raise PlanError(
                f"{type(self.model).__name__}: {full_name} is to be split {style!r}, which is not supported"
            )
        self._cut(full_name, module, parameter, cut)

    def _experts(self, name: str, module: nn.Module) -> None:
        count = cast(int, module.num_experts)
        hold_experts(module, self.group, *part_of(count, self.part, self.parts, f"{name}: the number of experts"))

    def _count_heads(self, module: nn.Module) -> None:
        """Tell an attention module that was cut how many heads it has now; it may read them from its config."""
        names = {f"{name}.weight" for name in ("q_proj", "q_b_proj", "qkv_proj", "query_key_value")}
        cut = any(
            isinstance(child, nn.Linear) and f"{name}.weight" in names and child.weight.shape[0] < child.out_features
            for name, child in module.named_children()
        )
        if not cut:
            return
        _, heads = self._key_value_heads_of(module)
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
