"""``ferrule lab demo``: what cables do to a model, shown on emulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ferrule.cli.extras import needs
from ferrule.cli.output import new_table, write_file
from ferrule.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from ferrule.bench.latency import LatencyBench

EXAMPLES = (
    "Examples:\n\nferrule lab demo latency --plot latency.png\n\nferrule lab demo latency --delays 20us,200us,2ms\n\n"
    "ferrule lab demo latency --model demo"
)

_BUSY = 0.1

app = typer.Typer(no_args_is_help=True, help="Show what cables do to a model, on emulated ones.")


@app.callback()
def _demo() -> None:
    """Show what cables do to a model, on emulated ones."""


@app.command(epilog=EXAMPLES)
def latency(
    delays: Annotated[str, typer.Option(help="Latencies of the cable, one way.")] = "3us,10us,50us,300us,1ms,3ms",
    model: Annotated[
        str | None,
        typer.Option(help="demo (the model that ships with Ferrule), or a directory; else a random 0.5B Llama."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model: shows that it runs, not how fast.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per rank.")] = 1,
    rounds: Annotated[int, typer.Option(min=1, help="Turns at each latency.")] = 3,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens per turn.")] = 16,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw it to this file, such as latency.png.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write what was measured to this file.")] = None,
) -> None:
    """Tokens per second of a model over two emulated hosts, tensor parallel and as a pipeline, by the cable's latency.

    Tensor parallelism waits for the cable dozens of times in each token, a pipeline twice. Beside what was measured
    stands what arithmetic says: the time without any delay, and messages × latency.
    """
    with needs("bench", "lab demo latency"):
        from ferrule.bench.latency import bench_latency, to_json
        from ferrule.bench.latency_plot import plot

    console = Console()
    with console.status("Measuring (nothing else should run now)") as status:
        bench = bench_latency(
            delays=[parse_seconds(delay) for delay in delays.split(",")],
            model=model,
            quick=quick,
            threads=threads,
            rounds=1 if quick else rounds,
            tokens=tokens,
            say=status.update,
        )
    console.print(_table(bench))
    console.print(_verdict(bench))
    if bench.busy > _BUSY:
        console.print(
            f"Other programs used {bench.busy:.0%} of this machine's processors before this began. Ranks in step wait "
            "for the slowest core: end them and measure again before you believe these figures."
        )
    write_file(json_file, to_json(bench) + "\n")
    if plot_file is not None:
        plot(bench, plot_file)
        console.print(f"wrote {plot_file}")


def _table(bench: LatencyBench) -> Table:
    tensor, pipeline = bench.of("tensor"), bench.of("pipeline")
    title = f"{bench.model}, {bench.layers} layers, two emulated hosts"
    columns = (">!latency", ">!tensor", ">!predicted", ">!pipeline", ">!predicted", ">!tokens/s", ">!faster")
    caption = "ms per token; predicted: without delay + messages × latency"
    table = new_table(*columns, title=title, caption=caption, box=box.HEAVY_HEAD)
    for one, other in zip(tensor, pipeline, strict=True):
        guesses = [f"{row.predicted_ms:.1f} {row.error:+.0%}" if row.delay else "" for row in (one, other)]
        table.add_row(
            format_seconds(one.delay) if one.delay else "none",
            f"{one.median_ms:.1f}",
            guesses[0],
            f"{other.median_ms:.1f}",
            guesses[1],
            f"{one.tokens_per_s:.1f}, {other.tokens_per_s:.1f}",
            "tensor" if one.median_ms < other.median_ms else "pipeline",
        )
    return table


def _verdict(bench: LatencyBench) -> str:
    tensor, pipeline = bench.of("tensor")[0], bench.of("pipeline")[0]
    alone = f"One host alone: {1e3 / bench.alone_ms:.1f} tokens/s."
    crossover = bench.crossover
    counts = f"{tensor.messages} messages per token against {pipeline.messages}"
    if crossover is None:
        return f"{alone} This model is too small for tensor parallelism to win at any latency ({counts})."
    return f"{alone} Tensor parallelism wins below {format_seconds(crossover)}, the pipeline above ({counts})."
