"""`ferrule plan --prompts-on`: prompts on some machines, tokens on the others."""

from __future__ import annotations

from msgspec.structs import asdict
from rich.console import Console
from rich.text import Text

from ferrule.cli.output import print_json
from ferrule.cli.plan import text
from ferrule.cli.plan.json import CandidateJson, MemoryJson, QuestionJson
from ferrule.plan import BUILT_IN_ENGINE, Plan, Question, Stage, search_apart
from ferrule.plan.explain import apart_verdict
from ferrule.plan.prediction import Between
from ferrule.units import format_seconds


class ApartJson(QuestionJson, frozen=True):
    """``prompts`` and ``tokens``: by stages; of the former the time to the first token, of the latter all else. The one
    of ``plans`` is that plan as `ferrule serve --plan` reads it, and ``verdict`` what is said of it."""

    prompts: tuple[Stage, ...]
    tokens: tuple[Stage, ...]
    ttft_seconds: float
    ttft_seconds_between: Between
    tokens_per_s: float
    tokens_per_s_between: Between
    throughput: float
    throughput_between: Between
    memory: tuple[MemoryJson, ...]
    plans: tuple[CandidateJson, ...]
    best: int
    verdict: str


def show(console: Console, question: Question, names: str, *, as_json: bool) -> None:
    """``names``: of devices, with commas. Errors as of `search_apart`."""
    found = search_apart(question, [each.strip() for each in names.split(",") if each.strip()])
    prediction, plan = found.prediction, found.plan
    assert plan.prompts is not None
    verdict = apart_verdict(question, found, None)
    if as_json:
        print_json(
            ApartJson(
                **asdict(QuestionJson.of(question)),
                prompts=plan.prompts.stages,
                tokens=plan.stages,
                ttft_seconds=prediction.ttft_seconds,
                ttft_seconds_between=prediction.ttft_between,
                tokens_per_s=prediction.tokens_per_s,
                tokens_per_s_between=prediction.tokens_between,
                throughput=prediction.throughput,
                throughput_between=prediction.throughput_between,
                memory=tuple(map(MemoryJson.of, prediction.memory)),
                plans=(CandidateJson.of(found),),
                best=0,
                verdict=verdict,
            )
        )
        return
    many = f", {prediction.throughput:.1f} of all sequences" if question.work.concurrency > 1 else ""
    lines = (
        f"prompts   {_of(question, plan.prompts)}: first token after {format_seconds(prediction.ttft_seconds)}",
        f"tokens    {_of(question, plan.alone)}: {prediction.tokens_per_s:.1f} tok/s{many}",
    )
    for line in (text.header(question), "", *lines, verdict, text.expected(question, prediction), ""):
        console.print(line, highlight=False)
    console.print(text.memory_table(question, found))
    if question.runtime is BUILT_IN_ENGINE and plan.obstacle is not None:
        console.print(Text(f"the built-in engine does not do this: {plan.obstacle}", style="yellow"))
    for warning in text.warnings(question):
        console.print(warning)


def _of(question: Question, plan: Plan) -> str:
    return f"{plan.strategy}, " + text.where(question.model, plan).replace("\n", "; ")
