"""``ferrule plan``: how to split a model over machines, how fast that is, and whether to split it at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ferrule.agent.device import RANK
from ferrule.cli.complete import lab_profiles, models
from ferrule.cli.extras import needs
from ferrule.cli.flags import RemoteCommand
from ferrule.cli.output import check_folders, print_json, wide_console
from ferrule.cli.plan.asked import Goal, asked_of
from ferrule.errors import ConfigError

if TYPE_CHECKING:
    from ferrule.plan import Candidate, ClusterSpec, Question, SearchResult

EXAMPLES = (
    "Examples:\n\nferrule plan qwen3-235b-a22b --profile two-strix --weights int4\n\n"
    "ferrule plan Qwen/Qwen3-30B-A3B --cluster desk.toml --objective throughput --concurrency 16\n\n"
    "ferrule plan llama-3.3-70b --hosts strix-b --save desk.toml\n\n"
    "ferrule plan llama-3.3-70b --profile mac-four --runtime mlx --explain\n\n"
    "ferrule plan qwen3-30b-a3b --profile two-strix --explain-step\n\n"
    "ferrule plan llama-3.3-70b --profile mac-four --plot hosts.png --over hosts"
)

LOCAL = "local"
"""Among --hosts: this machine, which is always there."""


Over = Literal["hosts", "latency", "context"]


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            autocompletion=models,
            help="A directory, a GGUF file, a hub id (owner/name), `demo`, or one that is known: llama-3.3-70b.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="LAB", help="Machines and cables of `ferrule lab profiles`.", autocompletion=lab_profiles),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Machines and cables that a TOML file describes.")
    ] = None,
    hosts: Annotated[str | None, typer.Option(metavar="A,B", help="This machine and these, asked over ssh.")] = None,
    tree: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A machine that `ferrule links record` saved, by its GPUs; also several."),
    ] = None,
    objective: Annotated[Goal, typer.Option(help="What the best plan is best in.")] = "latency",
    context: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="There must be room for so many per sequence.")
    ] = 4096,
    prompt: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Time to the first token is for such a prompt.")
    ] = 512,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Sequences at once.")] = 1,
    answer: Annotated[
        int, typer.Option(min=1, metavar="TOKENS", help="Tokens of an answer, for --objective answer.")
    ] = 256,
    prompts_on: Annotated[
        str | None, typer.Option(metavar="A,B", help="Prompts on these machines alone, tokens on the others.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="As if stored so: int4, mlx-4bit, q4_k_m, fp8...")
    ] = None,
    kv_cache: Annotated[
        Literal["auto", "int8", "int4"],
        typer.Option("--kv-cache", help="As if served with this `--kv-cache`: keys and values quantised."),
    ] = "auto",
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|mtp", help="As if served with `--speculate draft=MODEL`, or `mtp`: memory for that, too."
        ),
    ] = None,
    runtime: Annotated[
        str, typer.Option(metavar="NAME", help="The engine: ferrule, mlx, vllm, llama.cpp, exo-grpc.")
    ] = "ferrule",
    kwh_price: Annotated[
        float | None, typer.Option(min=0, metavar="DOLLARS", help="Of electricity, to count its price.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Show so many plans.")] = 5,
    explain: Annotated[bool, typer.Option("--explain", help="Show each term of the best plan's times.")] = False,
    explain_step: Annotated[
        bool, typer.Option("--explain-step", help="Show the operations of a rank's step in the best plan.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw tokens per second over --over.")
    ] = None,
    over: Annotated[Over, typer.Option(help="What --plot shows tokens per second over.")] = "hosts",
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine now, not only if it is not known yet.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Save machines and cables for --cluster.")
    ] = None,
    remote_command: RemoteCommand = "ferrule",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Fit this machine's efficiency to what `ferrule serve` measured on it.")
    ] = False,
    device_json: Annotated[
        bool, typer.Option("--device-json", hidden=True, help="Describe this machine to another one that plans.")
    ] = False,
) -> None:
    """Say how to split a model over machines, how fast that would be, and whether one machine is faster.

    Nothing is loaded: only headers or config.json of the model are read. Without --profile, --cluster, --hosts and
    --tree it plans for this machine, which is measured first. Exit code 4: nothing fits; what would is told.
    """
    if device_json:
        from ferrule.plan.cluster import report_text

        typer.echo(report_text(rank=RANK, fresh=measure))
        return
    if calibrate:
        from ferrule.cli.plan.calibrate import fit_and_show

        fit_and_show(Console())
        if model is None and save is None:
            return
    if model is None and save is None:
        raise ConfigError("which MODEL? Such as ferrule plan llama-3.3-70b; ferrule plan --help tells more")
    # What cannot be is told before machines are measured and asked.
    check_folders((save, picture))
    asked = None
    if model is not None:
        from ferrule.plan import Workload

        work = Workload(context, prompt, concurrency, kwh_price=kwh_price, answer=answer)
        asked = asked_of(model, weights, runtime, work, kv_cache, draft)
    if explain_step and asked is not None:
        from ferrule.cli.plan.step import check_engine

        check_engine(asked.runtime)
    if asked is not None and asked.model.encoder:
        if prompts_on is not None:
            raise ConfigError("--prompts-on is for tokens on other machines, and an encoder makes none; leave it out")
        if picture is not None:
            raise ConfigError("--plot draws tokens per second, and an encoder makes none; leave it out")
    if picture is not None:
        with needs("bench", "plan --plot"):
            import matplotlib  # noqa: F401
    machines = _machines(profile, cluster, hosts, tree, remote_command, measure=measure)
    if save is not None:
        from ferrule.plan.cluster import write_cluster

        write_cluster(machines, save)
        Console(stderr=True).print(f"wrote {save}", highlight=False)
    if asked is None:
        return
    question = asked.on(machines, objective)
    if prompts_on is not None:
        from ferrule.cli.plan.apart import show

        show(Console(), question, prompts_on, as_json=as_json)
        return
    from ferrule.plan import search, with_apart

    answers = with_apart(question, search(question))
    if answers.best is None:
        _nothing_fits(question, as_json=as_json)
    _show(question, answers, top, explain=explain, steps_of=model if explain_step else None, as_json=as_json)
    if picture is not None:
        _plot(question, picture, over)


def _machines(
    profile: str | None,
    file: Path | None,
    hosts: str | None,
    trees: list[Path] | None,
    remote_command: str,
    *,
    measure: bool,
) -> ClusterSpec:
    from ferrule.plan import read_cluster
    from ferrule.plan.cluster import cluster_from_profile, cluster_of_inventories, live_cluster

    if sum(bool(each) for each in (profile, file, hosts, trees)) > 1:
        raise ConfigError(
            "the machines come from one of --profile, --cluster, --hosts and --tree; leave the others out"
        )
    if measure and (profile or file or trees):
        raise ConfigError("--measure is for this machine: leave --profile, --cluster and --tree out")
    if trees:
        from ferrule.links import Probe

        return cluster_of_inventories([Probe.recorded(each).inventory() for each in trees])
    if file is not None:
        return read_cluster(file)
    if profile is not None:
        return cluster_from_profile(profile)
    others = [each for each in (hosts or "").split(",") if each.strip() and each.strip() != LOCAL]
    with Console(stderr=True).status("Measuring this machine" + (f" and asking {', '.join(others)}" if others else "")):
        return live_cluster([each.strip() for each in others], command=remote_command, rank=RANK, fresh=measure)


def _show(
    question: Question, answers: SearchResult, top: int, *, explain: bool, steps_of: str | None, as_json: bool
) -> None:
    """``steps_of``: the model, as it was asked for, where the steps of the best plan's ranks are to be shown."""
    from ferrule.cli.plan import step, text
    from ferrule.cli.plan.json import answer_json, replicas_json
    from ferrule.plan.explain import apart_verdict, bottleneck, verdict, what_ifs
    from ferrule.plan.explain.copies import copies_verdict
    from ferrule.plan.replicas import best_replicas

    best, candidates = _best(question, answers)
    shown = candidates[:top] if best in candidates[:top] else [*candidates[: top - 1], best]
    split = next((each for each in candidates if len(each.plan.devices) > 1 and each.prediction.fits), None)
    if best.plan.prompts is None:
        sentence = verdict(question, best, answers.single, split)
    else:
        sentence = apart_verdict(question, best, next((e for e in candidates if e.plan.prompts is None), None))
    together = question.objective == "throughput" and question.work.concurrency > 1
    copies = best_replicas(question) if together else None
    about_copies = copies_verdict(question, best, answers.single, copies) if together else ""
    found, changes = bottleneck(question, best), what_ifs(question, best, split)
    steps = step.steps_of(steps_of, best.plan) if steps_of is not None else []
    if as_json:
        told = replicas_json(copies, about_copies) if about_copies else None
        print_json(answer_json(question, answers, shown, best, found, changes, sentence, steps, told))
        return
    _print(text.header(question), "", text.plans_table(question, shown, best, answers.single, copies))
    _print(*text.obstacles(question, shown), "", *text.reasons(question, found, changes, sentence, about_copies))
    _print(text.expected(question, best.prediction), "", text.memory_table(question, best))
    if explain:
        _print("", *text.terms_tables(best, vectors=question.model.encoder))
    for each in steps:
        _print("", *step.step_text(each))
    _print("", *text.warnings(question, best), *text.notes(question, answers))


def _best(question: Question, answers: SearchResult) -> tuple[Candidate, list[Candidate]]:
    """The best plan that the engine can run, if there is one; and all that fit, the best first, with that one."""
    from ferrule.plan import BUILT_IN_ENGINE, best_plan
    from ferrule.plan.search.best import rank

    fitting = [each for each in answers.candidates if each.prediction.fits]
    if question.runtime is not BUILT_IN_ENGINE or fitting[0].plan.obstacle is None:
        return fitting[0], fitting
    able = [each for each in fitting if each.plan.prompts is not None and each.plan.obstacle is None]
    able += [found] if (found := best_plan(question)) is not None else []
    if not able:
        return fitting[0], fitting
    runnable = min(able, key=lambda each: rank(each, question.objective))
    if runnable not in fitting:
        better = [each for each in fitting if (question.times_better(each.prediction, runnable.prediction) or 0) > 1]
        fitting.insert(len(better), runnable)
    return runnable, fitting


def _nothing_fits(question: Question, *, as_json: bool) -> NoReturn:
    from ferrule.cli.plan import text
    from ferrule.cli.plan.json import shortage_json
    from ferrule.plan.explain import shortage

    found = shortage(question)
    if as_json:
        print_json(shortage_json(question, found))
    else:
        _print(text.header(question), "", *text.shortage_lines(question, found), *text.warnings(question), "")
    raise found.error(question.model.name)


def _plot(question: Question, path: Path, over: Over) -> None:
    from ferrule.bench.plan_plot import plot_plans

    plot_plans(question, path, over)
    Console(stderr=True).print(f"wrote {path}", highlight=False)


def _print(*parts: RenderableType) -> None:
    """Tables as wide as they need to be where the output is no terminal."""
    console = wide_console()
    for part in parts:
        console.print(part, highlight=False, soft_wrap=not isinstance(part, Table) and not isinstance(part, Text))
