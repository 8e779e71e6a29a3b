"""`ferrule bench`: measure."""

from __future__ import annotations

import typer

from ferrule.cli.bench import engine as bench_engine
from ferrule.cli.bench import fabric as bench_fabric
from ferrule.cli.bench import hand_over as bench_hand_over
from ferrule.cli.bench import kv_cache as bench_kv_cache
from ferrule.cli.bench import mlx as bench_mlx
from ferrule.cli.bench import plan as bench_plan
from ferrule.cli.bench import speculation as bench_speculation
from ferrule.cli.bench import streaming as bench_streaming
from ferrule.cli.bench import structured as bench_structured
from ferrule.cli.bench import vllm as bench_vllm

app = typer.Typer(no_args_is_help=True, help="Measure what this machine can do, beside other libraries.")

app.command(epilog=bench_fabric.EXAMPLES)(bench_fabric.fabric)
app.command(epilog=bench_engine.EXAMPLES)(bench_engine.engine)
app.command(epilog=bench_plan.EXAMPLES)(bench_plan.plan)
app.command(epilog=bench_speculation.EXAMPLES)(bench_speculation.speculation)
app.command("hand-over", epilog=bench_hand_over.EXAMPLES)(bench_hand_over.hand_over)
app.command("kv-cache", epilog=bench_kv_cache.EXAMPLES)(bench_kv_cache.kv_cache)
app.command(epilog=bench_streaming.EXAMPLES)(bench_streaming.streaming)
app.command(epilog=bench_structured.EXAMPLES)(bench_structured.structured)
app.command(epilog=bench_vllm.EXAMPLES)(bench_vllm.vllm)
app.command(epilog=bench_mlx.EXAMPLES)(bench_mlx.mlx)
