"""``ferrule self``: checks of Ferrule itself on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferrule.cli.flags import AsJson
from ferrule.cli.output import check_folders, new_table, print_json, write_file
from ferrule.installation import require

if TYPE_CHECKING:
    from ferrule.engine.selftest.device_report import Check

app = typer.Typer(
    no_args_is_help=True,
    help="Check that what Ferrule does with this machine's devices is right, and how fast it is.",
)

_UNITS = {"_ms": "ms", "_gb_s": "GB/s", "_tflop_s": "TFLOP/s", "_tokens_s": "tokens/s"}


@app.callback()
def group() -> None:
    pass


@app.command(
    epilog="Examples:\n\nferrule self check --device cuda\n\nferrule self check --device mps --save report.json"
)
def check(
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, xpu, mps, or cuda:1.")] = "cpu",
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the report there, to send with an issue.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try all that ranks do with a device, against the processor. It takes a few minutes, and no network.

    A report from hardware that has none yet is welcome in an issue: it tells which GPU, torch and system, and
    nothing of the user.
    """
    require("serve", "ferrule self check")
    check_folders((save,))
    from rich.console import Console

    from ferrule.engine.selftest.device_check import check_device
    from ferrule.files import encode_record

    console = Console()

    def show(one: Check) -> None:
        if not as_json and console.is_terminal:
            console.print(f"{'ok' if one.ok else 'WRONG':5}  {one.name}", style="dim", highlight=False)

    report = check_device(device, show)
    write_file(save, encode_record(report), err=as_json)
    if as_json:
        print_json(report)
    else:
        table = new_table("!check", "!right", "measured")
        for one in report.checks:
            numbers = ", ".join(_with_unit(name, value) for name, value in one.numbers.items())
            numbers += f"; ranks multiply by {one.kernel}" if one.kernel else ""
            table.add_row(one.name, "yes" if one.ok else "[bold red]NO[/]", numbers if one.ok else one.detail)
        console.print(f"{report.title}, torch {report.torch}, {report.system}", markup=False, highlight=False)
        console.print(table)
        wrong = sum(not one.ok for one in report.checks)
        said = "all is right" if report.ok else f"{wrong} of {len(report.checks)} are wrong: do not serve on it"
        console.print(f"{said} ({report.seconds:.0f} s)", markup=False, highlight=False)
    if not report.ok:
        raise typer.Exit(1)


def _with_unit(name: str, value: float) -> str:
    for suffix, unit in _UNITS.items():
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix).replace('_', ' ')} {value:.3g} {unit}"
    return f"{name.replace('_', ' ')} {value:.1g}"
