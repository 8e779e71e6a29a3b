"""Make a native program of a description and the weights that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import singledispatchmethod

import torch

from ferrule._native import Matrix, Program
from ferrule.engine.rank.step import operations as described
from ferrule.engine.rank.step.load import Weights
from ferrule.engine.rank.step.operations import SHARINGS, Description, Operation, View, head_part
from ferrule.engine.weights.matrix import PackedMatrix
from ferrule.fabric import Group

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "gpt_oss")
SCORINGS = ("softmax", "softmax_of_chosen", "sigmoid")
ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)
"""In the order of the native library's numbers."""
CODES = ("int8", "int4")
"""Ways to keep keys and values behind those of `ELEMENTS`."""
BLOCK = 16


class Assembled:
    """A native program, and the numbers of its registers. ``group``: the ranks that share its layers, or (``context``)
    hold them whole and share out the pages of keys and values. ``lengths``: of
    the program, by how many operations of the description it has. ``read_with``: of parts that stay on disk, by their
    operations in the description, a matrix of each."""

    def __init__(
        self, description: Description, weights: Weights, buffers: dict[str, torch.Tensor], dtype: torch.dtype,
        group: Group, threads: int, kv_cache: str = "auto",
        read_with: Mapping[tuple[int, int], PackedMatrix] | None = None, context: bool = False,
    ) -> None:  # fmt: skip
        self.weights, self.group = weights, group
        element = ELEMENTS.index(dtype)
        cached = len(ELEMENTS) + CODES.index(kv_cache) if kv_cache in CODES else element
        layers = [(each.heads, each.width, each.value_width) for each in description.layers]
        address = group.native_address if group.size > 1 else 0
        exact = dtype is torch.float32
        alone = 0, 1, 0
        given = address, group.size, group.rank
        places = (*alone, *given) if context else (*given, *alone)
        self.program = Program(threads, layers, cached, element, exact, *places)
        self.registers = {name: self.program.add_register(width) for name, width in description.registers.items()}
        self.tables = {
            name: self.program.add_rotary(buffers[buffer].float().tolist(), factor)
            for name, (buffer, factor) in description.rotary.items()
        }
        read = (read_with or {}).items()
        begins = {first: matrix.matrix for (first, _), matrix in read}
        ends = {last: matrix.matrix for (_, last), matrix in read}
        self.lengths = [0]
        for place, operation in enumerate(description.operations):
            if place in begins:
                self.program.enter(begins[place])
            self._add(operation)
            if place + 1 in ends:
                self.program.leave(ends[place + 1])
            self.lengths.append(self.program.length)

    def _view(self, view: View) -> tuple[int, int]:
        return self.registers[view.register], view.offset

    def _vector(self, name: str, added: float = 0.0) -> list[float]:
        return (self.weights.vectors[name] + added).tolist() if name else []

    def _matrix(self, name: str) -> Matrix:
        return self.weights.matrices[name].matrix

    def _biases(self, names: Sequence[str], matrices: Sequence[str]) -> list[float]:
        """One after the other, each filled up with zeros as the results are."""
        if not names:
            return []
        joined: list[float] = []
        for name, matrix in zip(names, matrices, strict=True):
            rows = self.weights.matrices[matrix].shape[0]
            bias = self._vector(name) if name else [0.0] * rows
            joined += bias + [0.0] * (-len(bias) % BLOCK)
        return joined

    @singledispatchmethod
    def _add(self, operation: Operation) -> None:
        raise TypeError(f"no native operation for {operation!r}")

    @_add.register
    def _(self, it: described.Embed) -> None:
        self.program.embed(self._matrix(it.table), it.first, it.factor, it.shared, self.registers[it.to])

    @_add.register
    def _(self, it: described.Norm) -> None:
        weight, bias = self._vector(it.weight, it.added), self._vector(it.bias)
        self.program.norm(self._view(it.source), self._view(it.to), it.width, it.count, weight, bias, it.eps, it.mean)

    @_add.register
    def _(self, it: described.Product) -> None:
        matrices = [self._matrix(name) for name in it.matrices]
        bias = self._biases(it.biases, it.matrices)
        self.program.product(self._view(it.source), self.registers[it.to], matrices, bias)

    @_add.register
    def _(self, it: described.Adapt) -> None:
        found = [(number, scale, a.matrix, b.matrix) for number, scale, a, b in self.weights.adapters[it.module]]
        self.program.adapt(self._view(it.source), self._view(it.to), found)

    @_add.register
    def _(self, it: described.HeadProduct) -> None:
        matrices = [self._matrix(head_part(it.weight, it.part, head)) for head in range(it.heads)]
        strides = it.source_stride, it.to_stride
        self.program.head_product(self._view(it.source), self.registers[it.to], *strides, it.kept, matrices)

    @_add.register
    def _(self, it: described.Rotate) -> None:
        self.program.rotate(self._view(it.heads), it.count, it.width, self.tables[it.table], it.interleaved)

    @_add.register
    def _(self, it: described.Attend) -> None:
        views = self._view(it.query), self._view(it.key), self._view(it.value)
        to, sinks = self.registers[it.to], self._vector(it.sinks)
        self.program.attend(*views, to, it.layer, it.heads, it.scale, it.softcap, it.window, sinks)

    @_add.register
    def _(self, it: described.Gate) -> None:
        up = it.up or it.gate
        kind = ACTIVATIONS.index(it.activation)
        self.program.gate(self._view(it.gate), self._view(up), it.up is not None, self.registers[it.to], it.width, kind)

    @_add.register
    def _(self, it: described.Reduce) -> None:
        source, to = self.registers[it.source], self.registers[it.to]
        self.program.reduce(source, to, it.add, it.shared, it.factor, self._vector(it.bias))

    @_add.register
    def _(self, it: described.ReduceScatter) -> None:
        self.program.reduce_scatter(self.registers[it.register])

    @_add.register
    def _(self, it: described.AllGather) -> None:
        self.program.all_gather(self.registers[it.register], it.exact)

    @_add.register
    def _(self, it: described.Scale) -> None:
        self.program.scale(self.registers[it.register], it.factor, it.softcap)

    @_add.register
    def _(self, it: described.Select) -> None:
        self.program.select(self.registers[it.source], self.registers[it.to])

    @_add.register
    def _(self, it: described.Gather) -> None:
        self.program.gather(self.registers[it.source], self.registers[it.to], it.widths)

    @_add.register
    def _(self, it: described.Experts) -> None:
        matrices: list[Matrix] = []
        biases: list[list[float]] = []
        for expert in range(it.held):
            matrices += [self._matrix(f"{it.gate_up}[{expert}]"), self._matrix(f"{it.down}[{expert}]")]
            if it.gate_up_bias:
                biases += [self.weights.vectors[name][expert].tolist() for name in (it.gate_up_bias, it.down_bias)]
        self.program.experts(
            self._view(it.x), self.registers[it.logits], self.registers[it.to], it.total, it.chosen,
            SCORINGS.index(it.scoring), it.normalize, it.factor, self._vector(it.choice_bias), it.groups,
            it.chosen_groups, it.group_best, it.first, SHARINGS.index(it.sharing), it.bounds, it.inner,
            ACTIVATIONS.index(it.activation), it.interleaved, matrices, biases,
        )  # fmt: skip
