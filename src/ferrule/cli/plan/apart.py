"""`ferrule plan --prompts-on`: prompts on some machines, tokens on the others."""

from __future__ import annotations

from msgspec.structs import asdict
from rich.console import Console
from rich.text import Text

from ferrule.cli.output import print_json
from ferrule.cli.plan import text
from ferrule.cli.plan.json import MemoryJson, QuestionJson
from ferrule.plan import BUILT_IN_ENGINE, Candidate, Plan, Question, Stage, search_apart
from ferrule.plan.prediction import Between
from ferrule.units import format_seconds


class ApartJson(QuestionJson, frozen=True):
    """``prompts`` and ``tokens``: by stages; of the former the time to the first token, of the latter all else."""

    prompts: tuple[Stage, ...]
    tokens: tuple[Stage, ...]
    ttft_seconds: float
    ttft_seconds_between: Between
    tokens_per_s: float
    tokens_per_s_between: Between
    throughput: float
    throughput_between: Between
    memory: tuple[MemoryJson, ...]


def show(console: Console, question: Question, names: str, *, as_json: bool) -> None:
    """``names``: of devices, with commas. Errors as of `search_apart`."""
    found = search_apart(question, [each.strip() for each in names.split(",") if each.strip()])
    prediction = found.prediction
    if as_json:
        print_json(
            ApartJson(
                **asdict(QuestionJson.of(question)),
                prompts=found.prompts.stages,
                tokens=found.tokens.stages,
                ttft_seconds=prediction.ttft_seconds,
                ttft_seconds_between=prediction.ttft_between,
                tokens_per_s=prediction.tokens_per_s,
                tokens_per_s_between=prediction.tokens_between,
                throughput=prediction.throughput,
                throughput_between=prediction.throughput_between,
                memory=tuple(map(MemoryJson.of, prediction.memory)),
            )
        )
        return
    many = f", {prediction.throughput:.1f} of all sequences" if question.work.concurrency > 1 else ""
    lines = (
        f"prompts   {_of(question, found.prompts)}: first token after {format_seconds(prediction.ttft_seconds)}",
        f"tokens    {_of(question, found.tokens)}: {prediction.tokens_per_s:.1f} tok/s{many}",
    )
    for line in (text.header(question), "", *lines, text.expected(question, prediction), ""):
        console.print(line, highlight=False)
    console.print(text.memory_table(question, Candidate(found.tokens, prediction)))
    if question.runtime is BUILT_IN_ENGINE:
        console.print(Text("the built-in engine does not do this", style="yellow"))
    for warning in text.warnings(question):
        console.print(warning)


def _of(question: Question, plan: Plan) -> str:
    return f"{plan.strategy}, " + text.where(question.model, plan).replace("\n", "; ")
