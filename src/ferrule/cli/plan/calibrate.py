"""``ferrule plan --calibrate``."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ferrule.agent.device import RANK
from ferrule.errors import ConfigError
from ferrule.plan import BUILT_IN_ENGINE
from ferrule.plan.cost import calibrate, read_records, save_calibrations
from ferrule.plan.device.measure import measure_device, recall_device


def fit_and_show(console: Console) -> None:
    """Fit this machine's efficiency to what `ferrule serve` measured on it, keep it, and say what it changes. Raises
    `ConfigError` where nothing was measured."""
    records = read_records()
    if not records:
        raise ConfigError(
            "nothing was measured yet; each `ferrule serve` measures its model's speed, so serve one first"
        )
    device = recall_device(unit="cpu") or measure_device(rank=RANK, unit="cpu")
    mine = [record for record in records if record.kind == device.kind]
    if not mine:
        kinds = ", ".join(sorted({record.kind for record in records}))
        raise ConfigError(f"nothing was measured on {device.kind} yet, only on {kinds}; serve a model here first")
    (found,) = calibrate(mine, {device.kind: device})
    save_calibrations([found])
    benchmarked = BUILT_IN_ENGINE.launch_seconds(device)
    table = Table(title=f"{found.kind}: what {found.records} measurements of served models tell", show_header=False)
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row("bytes and arithmetic", f"{found.speed:.2f} × as fast as the benchmark says")
    table.add_row("an operation", f"{found.launch_seconds * 1e6:.1f} µs; the benchmark says {benchmarked * 1e6:.1f} µs")
    table.add_row("mean error of predictions", f"{found.before:.0%} before, {found.after:.0%} now")
    console.print(table)
