"""Measurements by others against predictions from what is published of their machines."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.bench.published import PublishedBench, bench_published
from ferrule.bench.published.cross import COVERED, quantile
from ferrule.bench.published.data import models, plan_of, read_series
from ferrule.bench.published.fit import Linear, fit, seconds_of
from ferrule.cli.bench.app import app
from ferrule.hardware import shipped
from ferrule.model import read_model
from ferrule.plan import RUNTIMES, Question, Workload, predict
from ferrule.plan.cluster.profile import cluster_from_profile
from ferrule.plan.cost.interval import SPREADS


@cache
def bench() -> PublishedBench:
    return bench_published()


def test_measurements_of_families_that_were_not_seen_are_predicted() -> None:
    counted = bench().counted
    assert len(counted) >= 120
    assert bench().family_error <= 0.15
    assert max(abs(row.error) for row in counted) <= 0.4
    assert bench().covered >= 0.8
    assert bench().disagreements == ()
    # Nor does the machine have to have been seen.
    assert bench().machine_error <= 0.15
    # What is shown and not counted is little, and says why.
    assert len(bench().rows) - len(counted) <= 5


def test_figures_that_were_compared_when_all_had_been_chosen_are_predicted_as_well() -> None:
    assert len(bench().checked) >= 50
    assert bench().checked_error <= 0.15
    assert bench().checked_covered >= 0.8


def test_the_planner_has_what_was_fitted() -> None:
    for (runtime, maker, field), value in bench().fitted.items():
        for known in [RUNTIMES[runtime]] if runtime else [RUNTIMES["mlx"], RUNTIMES["vllm"]]:
            if not maker:
                held = getattr(known, field)
            elif maker in known.kernels:
                held = getattr(known.kernels[maker], field)
            else:
                continue
            assert held == pytest.approx(value, rel=0.02), (runtime, maker, field)
    assert dict(bench().spreads) == pytest.approx(SPREADS, abs=0.01)


def test_a_row_is_the_same_sum_to_the_fit_as_to_the_planner() -> None:
    """The fit adds up the terms that the planner gives; both must be of one mind."""
    for row in bench().rows:
        assert row.predicted == pytest.approx(row.predicted_by_fit, rel=0.02), (row.series.name, row.measurement.what)


def test_rows_have_sources_and_models_the_size_that_their_cards_say() -> None:
    profiles = shipped()
    every = (*read_series(), *read_series("check.toml"))
    for series in every:
        assert series.url.startswith("https://")
        assert series.source
        assert series.spec.known_family
        assert series.machine in profiles.machines
        assert series.cable in profiles.cables
        if series.model in models():
            model = models()[series.model]
            assert model["source"].startswith("https://")
            assert series.spec.parameters == pytest.approx(model["parameters"], rel=0.01)
    assert set(models()) <= {series.model for series in every}


def test_a_second_machine_gains_little_where_few_parameters_are_active() -> None:
    """exo with RDMA, Qwen3-Coder-Next in 8 bits: 3 % slower on two machines below 8 K tokens, 6 % faster at 64 K."""
    model, macs = read_model("qwen3-next-80b-a3b", weights="mlx-8bit"), cluster_from_profile("mac-four")
    gains = []
    for depth in (4096, 65536):
        question = Question(model, macs, Workload(context=70000, depth=depth), runtime=RUNTIMES["mlx"])
        one, two = (
            predict(question, plan_of(model.layers, names, "tensor")) for names in (["mac-1"], ["mac-1", "mac-2"])
        )
        gains.append(two.tokens_per_s / one.tokens_per_s - 1)
    assert gains == [pytest.approx(-0.03, abs=0.06), pytest.approx(0.06, abs=0.06)]
    assert gains[0] < 0 < gains[1]


def test_the_command_tells_what_was_not_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ferrule.bench.published.bench_published", bench)
    file = tmp_path / "rows.json"
    told = CliRunner().invoke(app, ["plan", "--json", str(file)], env={"COLUMNS": "120"})
    assert told.exit_code == 0, told.output
    assert "figures: mean absolute error" in told.output
    assert "of families not seen" in told.output
    assert "every order is right" in told.output
    assert "not counted: GLM-5.1 MXFP4" in told.output
    found = json.loads(file.read_text())
    assert len(found["published"]) == len(bench().rows)
    assert {row["family"] for row in found["published"]} >= {"deepseek_v3", "glm_moe_dsa", "qwen3_next", "qwen3_5"}
    assert {"runtime": "mlx", "maker": "apple"}.items() <= next(
        each for each in found["fitted"] if each["field"] == "reading" and each["runtime"] == "mlx"
    ).items()


def test_a_fit_finds_what_made_the_rows() -> None:
    series = read_series()[0]
    launch, read = ("mlx", "apple", "launch_seconds"), ("mlx", "apple", "reading")
    rows = []
    for bytes_seconds, operations in ((0.02, 1000.0), (0.05, 200.0), (0.001, 3000.0), (0.1, 100.0)):
        seconds = bytes_seconds / 0.9 + operations * 6e-6
        measured = series.rows[0].__class__(hosts=1, tokens_per_s=1 / seconds)
        rows.append(Linear(series, measured, 0.0, {(read,): bytes_seconds, (launch,): operations}))
    found = fit(rows * 20, [launch, read])
    assert found[launch] == pytest.approx(6e-6, rel=0.02)
    assert found[read] == pytest.approx(0.9, rel=0.02)
    assert seconds_of(rows[0], found) == pytest.approx(rows[0].measured, rel=0.01)
    # Where nothing was measured it is what was taken before.
    assert fit([], [launch]) == {launch: pytest.approx(4e-6)}


def test_an_interval_holds_the_part_that_it_says() -> None:
    errors = [(-1) ** place * place / 100 for place in range(1, 101)]
    assert quantile(errors) == pytest.approx(COVERED)
    assert sum(abs(each) <= quantile(errors) for each in errors) == 85
