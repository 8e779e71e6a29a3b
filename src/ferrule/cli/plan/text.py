"""Text output of `ferrule plan`: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ferrule.cli.output import new_table
from ferrule.model import ModelSpec
from ferrule.plan import (
    BUILT_IN_ENGINE,
    Candidate,
    Objective,
    Plan,
    Prediction,
    Question,
    SearchResult,
    Stage,
    Term,
)
from ferrule.plan.explain import Bottleneck, Shortage, WhatIf, cautions, tight
from ferrule.plan.replicas import Replicated
from ferrule.units import format_bytes, format_number, format_seconds

MANY = 6
"""Stages or devices up to this number are named one by one."""
HELPED = 3
_FORMULAS = {
    "weights": "bytes of weights that a step reads ÷ memory bandwidth",
    "cache": "bytes of keys and values before this token, and of states, ÷ memory bandwidth",
    "compute": "operations ÷ operations per second",
    "launch": "operations of all layers × time to start one",
    "collective": "sums over ranks: count × (latency + bytes ÷ bandwidth)",
    "hop": "messages between stages or ranks: latency + bytes ÷ bandwidth",
    "disk": "bytes that do not fit ÷ disk bandwidth",
    "step": "scheduler and sampling: of a step, and of each sequence in it",
}


def header(question: Question) -> Text:
    """The model, what is asked, and of which machines."""
    model, work = question.model, question.work
    size = f"{format_bytes(model.bytes)} as {model.stored}" if model.stored else format_bytes(model.bytes)
    active = model.active_parameters
    some = f", {_billions(active)} active" if active < model.parameters * 0.95 else ""
    devices = question.cluster.devices
    machines = len({device.host_name for device in devices})
    among = f" with {len(devices)} devices" if len(devices) > machines else ""
    text = Text(model.name, style="bold")
    state = model.state_bytes(question.runtime.cache_of(model))
    kept = f", {format_bytes(round(state))} of state per sequence" if model.recurrent else ""
    kept += f", keys and values in int{model.cache_bits}" if model.cache_bits else ""
    kept += ", embeddings only" if model.encoder else ""
    kept += f", draft model {model.draft.name} of {format_bytes(model.draft.bytes)}" if model.draft else ""
    text += Text(f"  {_billions(model.parameters)} parameters{some}, {size}, {model.layers} layers{kept}\n")
    text += Text(
        f"{machines} machine{'s' * (machines > 1)}{among}, engine {question.runtime.name}, best {question.objective}, "
        f"{work.context:,} tokens of context, prompt {work.prompt:,}"
        + (f", answer {work.answer:,}" if question.objective == "answer" else "")
        + (f", {work.concurrency} sequences at once" if work.concurrency > 1 else "")
    )
    return text


def _billions(number: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number / 1e6:.3g}M"


def plans_table(
    question: Question,
    candidates: Sequence[Candidate],
    best: Candidate,
    single: Candidate,
    copies: Replicated | None = None,
) -> Table:
    """A row per plan, the best first, and the best machine alone at the end unless it is among them; then whole
    ``copies``."""
    at_once = question.work.concurrency
    known = [*candidates, single]
    vectors = question.model.encoder
    table = _table("", "strategy", "where", ">fullest machine", *_times(vectors=vectors))
    if question.objective == "answer":
        table.add_column("answer", justify="right")
    if at_once > 1 and not vectors:
        table.add_column(f"at {at_once}", justify="right")
    if question.objective == "context":
        table.add_column("context", justify="right")
    watts = any(each.prediction.watts is not None for each in known)
    dollars = not vectors and any(each.prediction.dollars_per_million is not None for each in known)
    energy = question.objective == "energy" and watts and not vectors
    for title, wanted in (("W", watts), ("J/token", energy), ("$/M tok", dollars)):
        if wanted:
            table.add_column(title, justify="right")
    rows = [(str(place), each) for place, each in enumerate(candidates, 1)]
    if not any(each.plan.all_devices == single.plan.devices for each in candidates):
        rows.append(("–", single))
    for place, each in rows:
        prediction = each.prediction
        starred = each.plan.obstacle is not None and question.runtime is BUILT_IN_ENGINE
        cells = [place, _strategy(each.plan) + " *" * starred, where(question.model, each.plan), _fullest(each)]
        if prediction.fits:
            cells.append(format_seconds(prediction.ttft_seconds))
            cells += [] if vectors else [_rate(prediction.tokens_per_s)]
            cells += [format_seconds(prediction.answer_seconds)] * (question.objective == "answer")
            cells += [_rate(prediction.throughput)] * (at_once > 1 and not vectors)
            cells += [f"{prediction.largest_context:,}"] * (question.objective == "context")
            cells += [_number(prediction.watts, ".0f")] * watts
            cells += [_number(prediction.joules, ".3g")] * energy
            cells += [_number(prediction.dollars_per_million, ".2f")] * dollars
        else:
            cells += ["does not fit"]
        table.add_row(*cells, style="bold" if each is best else "" if prediction.fits else "dim")
    if copies is not None:
        better = copies.throughput > best.prediction.throughput
        table.add_row(*_copies(question.model, copies), style="bold" if better else "")
    return table


def _copies(model: ModelSpec, copies: Replicated) -> Iterator[str]:
    """Cells of `plans_table` where many sequences are answered at once."""
    plans = [each.plan for each in copies.copies]
    yield from ("×", f"replicas {len(plans)}")
    if len(plans) <= MANY:
        yield "\n".join(" / ".join(where(model, plan).splitlines()) for plan in plans)
    else:
        yield f"{len(plans)} of {_strategy(plans[0])}, from {plans[0].devices[0]} to {plans[-1].devices[-1]}"
    yield _fullest(min(copies.copies, key=lambda each: min(use.margin for use in each.prediction.memory)))
    yield format_seconds(copies.ttft_seconds)
    yield from (_rate(copies.tokens_per_s), _rate(copies.throughput))


def _strategy(plan: Plan) -> str:
    if plan.prompts is not None:
        return f"{_strategy(plan.prompts)} / {_strategy(plan.alone)}"
    name: str = plan.strategy
    if name == "single":
        return name
    if name == "hybrid":
        widths = {stage.width for stage in plan.stages}
        wide = f"{max(widths)}" if len(widths) == 1 else f"{min(widths)}–{max(widths)}"
        name = f"{'context' if plan.context > 1 else 'tensor'} {wide} × pipeline {len(plan.stages)}"
    else:
        name = f"{name} {len(plan.devices)}"
    return name


def where(model: ModelSpec, plan: Plan) -> str:
    """Layers, heads or experts by device, short; prompts first, where they have devices of their own."""
    if plan.prompts is not None:
        parts = (("prompts", plan.prompts), ("tokens", plan.alone))
        return "\n".join(f"{name}: {where(model, each)}" for name, each in parts)
    if len(plan.stages) == 1:
        return _stage(model, plan.stages[0])
    if len(plan.stages) > MANY:
        counts = [stage.last_layer - stage.first_layer for stage in plan.stages]
        span = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        return f"{len(plan.stages)} stages of {span} layers, from {plan.devices[0]} to {plan.devices[-1]}"
    return "\n".join(f"{_stage(model, stage)}: {_layers(stage)}" for stage in plan.stages)


def _layers(stage: Stage) -> str:
    first, last = stage.first_layer, stage.last_layer - 1
    return f"layer {first}" if first == last else f"layers {first}–{last}"


def _stage(model: ModelSpec, stage: Stage) -> str:
    names = _joined(stage.devices)
    if stage.width == 1:
        return names
    if stage.context:
        return f"{names}: each all of it, and 1 in {stage.width} pages of keys and values"
    if stage.experts:
        count = model.experts
        given = [round(share.experts * count) for share in stage.shares]
        return f"{names}: {_given(given, count)} experts{', tokens sent' * stage.exchange}"
    if not model.attention_cut:
        return f"{names}: a slice of {'every expert' if model.experts else 'the vocabulary'}"
    given = [round(share.query * model.query_heads) for share in stage.shares]
    return f"{names}: {_given(given, model.query_heads)} heads"


def _given(numbers: Sequence[int], total: int) -> str:
    if len(set(numbers)) == 1:
        return f"each {numbers[0]} of {total}"
    if len(numbers) > MANY:
        return f"{min(numbers)} to {max(numbers)} of {total}"
    return f"{' + '.join(map(str, numbers))} of {total}"


def _joined(names: Sequence[str]) -> str:
    return " + ".join(names) if len(names) <= MANY else f"{names[0]} … {names[-1]} ({len(names)})"


def _fullest(candidate: Candidate) -> str:
    use = min(candidate.prediction.memory, key=lambda each: each.margin)
    if use.margin < 0:
        return f"{_gib(-use.margin)} GiB too little"
    return f"{_gib(use.total)} of {_gib(use.room)} GiB"


def _gib(count: float) -> str:
    value = count / 2**30
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def memory_table(question: Question, candidate: Candidate) -> Table:
    """Of one plan, in GiB by device; only the fullest where there are many."""
    uses = sorted(candidate.prediction.memory, key=lambda use: use.margin)
    reserved = [">kept free"] if any(use.reserve for use in uses) else []
    cached = ">keys, values, states" if question.model.recurrent else ">keys and values"
    parts = (">weights", cached, ">activations", ">process", *reserved, ">margin", ">of")
    table = _table("memory (GiB)", *parts)
    shown = uses[:MANY]
    for use in sorted(shown, key=candidate.prediction.memory.index):
        kept = [use.reserve] if reserved else []
        numbers = (use.weights, use.cache, use.activations, use.runtime, *kept, use.margin, use.room)
        table.add_row(use.device, *(_gib(number) if number >= 0 else f"–{_gib(-number)}" for number in numbers))
    if len(uses) > MANY:
        table.add_row(f"and {len(uses) - MANY} emptier")
    return table


def reasons(question: Question, found: Bottleneck, changes: Sequence[WhatIf], *verdicts: str) -> Iterator[Text]:
    """The bottleneck with the change that helps it most, other changes, and before them whether to split at all."""
    for verdict in filter(None, verdicts):
        yield Text(verdict, style="bold")
    fitting = [each for each in changes if found.kind in each.helps]
    first = fitting[0] if fitting else None
    yield Text(found.text + (f"; {_changed(question, first)}" if first else ""))
    for each in [change for change in changes if change is not first][:HELPED]:
        yield Text(_changed(question, each))


def expected(question: Question, prediction: Prediction) -> Text:
    """Within what four of five measurements should be."""
    between, unit = prediction.tokens_between, "tok/s"
    if question.model.encoder:
        between, unit = prediction.ttft_between, "s for a vector"
    elif question.objective == "ttft":
        between, unit = prediction.ttft_between, "s to the first token"
    elif question.objective == "answer":
        between, unit = prediction.answer_between, f"s for an answer of {question.work.answer:,} tokens"
    elif question.objective == "throughput":
        between, unit = prediction.throughput_between, "tok/s of all sequences"
    return Text(f"expect {format_number(between.low)} to {format_number(between.high)} {unit} in four of five cases")


def _changed(question: Question, change: WhatIf) -> str:
    return f"{change.text}: {_figure(question.objective, change.before)} → " + (
        f"{_figure(question.objective, change.after)} {question.aim.unit}"
    )


def _figure(objective: Objective, value: float) -> str:
    if objective == "context":
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def obstacles(question: Question, candidates: Sequence[Candidate]) -> Iterator[Text]:
    """Reasons why plans marked with a star do not run here."""
    if question.runtime is not BUILT_IN_ENGINE:
        return
    for reason in dict.fromkeys(each.plan.obstacle for each in candidates if each.plan.obstacle):
        told = reason if reason.startswith("the built-in engine") else f"not with the built-in engine: {reason}"
        yield Text(f"* {told}", style="yellow")


def warnings(question: Question, best: Candidate | None = None) -> Iterator[Text]:
    for each in (*cautions(question), *(tight(best) if best else ())):
        yield Text(each, style="yellow")


def notes(question: Question, answers: SearchResult) -> Iterator[Text]:
    for note in (*answers.notes, *question.model.notes, *question.cluster.notes):
        yield Text(f"note: {note}", style="dim")


def terms_tables(candidate: Candidate, *, vectors: bool) -> Iterator[RenderableType]:
    """Each term of the time of a token and of the prompt; of the prompt alone where a model makes ``vectors``."""
    prediction = candidate.prediction
    if not vectors:
        yield _terms_table("one token", prediction.terms, prediction.token_seconds)
        yield Text("")
    yield _terms_table("a vector" if vectors else "first token", prediction.prompt_terms, prediction.ttft_seconds)


def _terms_table(title: str, terms: Sequence[Term], total: float) -> Table:
    table = _table(title, ">ms", ">%", "where", "what it is")
    for term in sorted(terms, key=lambda term: -term.seconds):
        part = term.seconds / total if total else 0.0
        table.add_row(term.kind, _milliseconds(term.seconds), f"{part * 100:.1f}", term.where, _FORMULAS[term.kind])
    table.add_row("all", _milliseconds(total), "100", "", "")
    return table


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 1000 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def shortage_lines(question: Question, found: Shortage) -> Iterator[RenderableType]:
    """Shortage in lines: what is missing where, and what would fit."""
    yield memory_table(question, found.closest)
    yield Text("")
    if not found.nearest:
        yield Text("nothing near would fit: fewer tokens, smaller weights and a few more hosts were tried")
        return
    vectors = question.model.encoder
    table = _table("what would fit", "plan", "where", *_times(vectors=vectors))
    for each in found.nearest:
        prediction, plan = each.candidate.prediction, each.candidate.plan
        rates = [] if vectors else [_rate(prediction.tokens_per_s)]
        first = format_seconds(prediction.ttft_seconds)
        table.add_row(each.text, _strategy(plan), where(question.model, plan), first, *rates)
    yield table


def _times(*, vectors: bool) -> tuple[str, ...]:
    """Titles of the columns of times."""
    return (">a vector",) if vectors else (">first token", ">tok/s")


def _table(*columns: str) -> Table:
    return new_table(*columns, padding=(0, 1), pad_edge=False)
