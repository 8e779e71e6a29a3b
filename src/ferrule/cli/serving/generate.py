"""``ferrule generate``."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ferrule.cli.serving.model import (
    MODEL,
    Cp,
    Device,
    Dtype,
    ExpertExchange,
    ExpertParallel,
    Graphs,
    KvCache,
    MaxContext,
    Pp,
    SelfTest,
    Shares,
    Speculate,
    Threads,
    Tp,
    Weights,
)
from ferrule.cli.serving.options import adapters_of, tensor_of
from ferrule.errors import ConfigError
from ferrule.installation import require

if TYPE_CHECKING:
    from rich.console import Console

    from ferrule.engine import Engine, EngineOptions, SamplingParams
    from ferrule.engine.host.prepare import PreparedModel

EXAMPLES = (
    "Examples:\n\n"
    'ferrule generate demo "What does os.path.join do?"\n\n'
    'ferrule generate ~/models/Qwen3-8B "Once upon a time" --raw --max-tokens 200\n\n'
    'ferrule generate ~/models/Qwen3-8B "A haiku" --adapter poet=~/adapters/poet\n\n'
    "git diff | ferrule generate ~/models/Qwen3-8B - --tp 2 --temperature 0"
)


app = typer.Typer()


@app.command(epilog=EXAMPLES)
def generate(
    model: Annotated[str, MODEL],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What to say to the model; - reads it from standard input.")
    ],
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--raw", help="As a message by the model's chat template, or as text to continue."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 always takes the likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0.0001, max=1, help="Keep this much probability.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Keep the k likeliest tokens; 0 keeps all.")] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Drop tokens less likely than this share of the best.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    schema: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A JSON schema that the answer must follow.")
    ] = None,
    tp: Tp = None,
    pp: Pp = None,
    expert_parallel: ExpertParallel = False,
    expert_exchange: ExpertExchange = False,
    cp: Cp = None,
    shares: Shares = None,
    dtype: Dtype = "auto",
    weights: Weights = None,
    kv_cache: KvCache = "auto",
    adapter: Annotated[
        str | None, typer.Option(metavar="NAME=PATH", help="A LoRA adapter (PEFT) to answer with.")
    ] = None,
    device: Device = None,
    max_context: MaxContext = None,
    threads: Threads = None,
    self_test: SelfTest = True,
    graphs: Graphs = True,
    speculate: Speculate = "off",
) -> None:
    """Load a model, print its answer to one prompt, and exit."""
    require("serve", "ferrule generate")
    import asyncio

    from rich.console import Console

    from ferrule.engine import Constraint, EngineOptions
    from ferrule.engine.device_names import CPU

    if prompt == "-":
        prompt = sys.stdin.read()
    if not prompt:
        raise ConfigError("the prompt is empty")
    adapters = adapters_of(None if adapter is None else [adapter])
    tp, by_rank = tensor_of(tp, shares, expert_parallel=expert_parallel or expert_exchange)
    options = EngineOptions(
        model,
        tp or 1,
        pp or 1,
        dtype,
        max_context=max_context,
        threads=threads,
        self_test=self_test,
        graphs=graphs,
        weights=weights,
        kv_cache=kv_cache,
        device=device or CPU,
        adapters=adapters,
        speculate=speculate,
        expert_parallel=expert_parallel,
        expert_exchange=expert_exchange,
        shares=by_rank,
        context_parallel=cp or 1,
    )
    given: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "adapter": adapters[0].name if adapters else None,
        "constraint": Constraint("json_schema", schema.read_text(encoding="utf-8")) if schema else None,
    }
    given = {field: value for field, value in given.items() if value is not None}
    asyncio.run(answer(options, prompt, given, tuple(stop or ()), chat=chat, console=Console(stderr=True)))


async def answer(
    options: EngineOptions,
    prompt: str,
    given: dict[str, Any],
    stops: tuple[str, ...],
    *,
    chat: bool | None,
    console: Console,
) -> None:
    """Start an engine, print what it says to ``prompt`` as it comes, and close it."""
    from ferrule.cli.display import Loading
    from ferrule.engine import start
    from ferrule.engine.host.local_ranks import LocalPlanner

    def place(model: PreparedModel) -> LocalPlanner:
        """Ranks are not started for a prompt that cannot be said to this model."""
        tokenizer = model.tokenizer
        if not tokenizer.has_chat_template and (chat or (chat is None and tokenizer.warning is not None)):
            why = tokenizer.warning or "this model has no chat template"
            raise ConfigError(f"{why}; --raw continues the prompt as text")
        return LocalPlanner()

    with Loading(console) as loading:
        engine = await start(options, on_progress=loading, planner=place)
    try:
        params: SamplingParams = replace(engine.default_sampling, **given)
        await print_answer(engine, prompt, params, stops, chat=chat, console=console)
    finally:
        await engine.close()


async def print_answer(
    engine: Engine, prompt: str, params: SamplingParams, stops: tuple[str, ...], *, chat: bool | None, console: Console
) -> None:
    from ferrule.serve.answer.sequences import Job, run_job
    from ferrule.serve.answer.text import Vocabulary

    as_chat = engine.tokenizer.has_chat_template if chat is None else chat
    if as_chat:
        rendered = engine.tokenizer.render_chat([{"role": "user", "content": prompt}])
        tokens = engine.tokenizer.encode(rendered, add_special_tokens=False)
    else:
        tokens = engine.tokenizer.encode(prompt)
        sys.stdout.write(prompt)
    job = Job(0, tuple(tokens), params, stops, continues=not as_chat)
    begin = time.perf_counter()
    made = 0
    async for piece in run_job(engine, Vocabulary(engine.tokenizer), job):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
        made = piece.tokens
    sys.stdout.write("\n")
    if console.is_terminal:
        seconds = time.perf_counter() - begin
        console.print(
            f"{len(tokens)} tokens in, {made} out, {made / seconds:.1f} tokens/s", style="dim", highlight=False
        )
