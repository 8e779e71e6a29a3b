"""``ferrule plan``: its words, its JSON, its exit codes. What it predicts is in tests/plan."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ferrule.agent.device import RANK
from ferrule.cli.main import app
from ferrule.errors import PlanError
from ferrule.model import read_model
from ferrule.plan import DeviceSpec, parse_plan, read_cluster
from ferrule.plan.cost import Calibration

PLAIN = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "160"}
DESK = """
[[device]]
name = "box"
count = 2
memory = "{memory}"
memory_bandwidth = "100 GB/s"
flops = {{ bf16 = 20e12 }}
watts_idle = 10
watts_busy = 100

[[link]]
between = ["box-1", "box-2"]
latency = "20us"
bandwidth = "10 Gb/s"
"""


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words], env=PLAIN)


def desk(folder: Path, memory: str = "16 GiB") -> str:
    file = folder / "desk.toml"
    file.write_text(DESK.format(memory=memory))
    return str(file)


def test_plans_of_a_profile_with_the_one_machine_and_the_reason() -> None:
    told = run("qwen3-235b-a22b", "--profile", "mac-four", "--runtime", "mlx", "--weights", "mlx-8bit", "--explain")
    assert told.exit_code == 0, told.output
    for words in (
        "235B parameters, 22.2B active, 232.6 GiB as 8-bit in groups of 64, 94 layers",
        "4 machines, engine mlx, best latency, 4,096 tokens of context, prompt 512",
        "1  tensor 4",
        "mac-1 + mac-2 + mac-3 + mac-4: each 16 of 64 heads",
        "–  single",
        "times as fast as mac-1 alone.",
        "expect ",
        "tok/s in four of five cases",
        "% of token time",
        "with weights as mlx-6bit:",
        "memory (GiB)",
        "operations of all layers × time to start one",
        "note: mac-four: figures that makers and others published, not measured here",
    ):
        assert words in told.output


def test_the_step_of_a_plan() -> None:
    told = run("qwen3-30b-a3b", "--profile", "two-strix", "--explain-step")
    assert told.exit_code == 0, told.output
    for words in (
        "the step of rank 0: layers 0 to 47, a part of 2 of each; 629 operations, 98 of them with all ranks",
        "each of 48 layers: 0-47",
        "q_proj 2048 × 2048, k_proj 256 × 2048, v_proj 256 × 2048",
        "8 of 128 experts by softmax; silu, 384 wide",
        "the sum over ranks, added",
    ):
        assert words in told.output
    steps = json.loads(run("llama-3.1-8b", "--profile", "two-strix", "--explain-step", "--json").stdout)["steps"]
    assert [len(part["layers"]) for part in steps[0]["parts"]] == [0, 32, 0]
    assert steps[0]["unfit"] is None


def test_steps_of_another_engine_are_not_known() -> None:
    told = run("llama-3.1-8b", "--profile", "two-strix", "--runtime", "vllm", "--explain-step")
    assert told.exit_code == 2
    assert "--explain-step is of the built-in engine: leave --runtime vllm out" in told.output


def test_json_holds_the_same(tmp_path: Path) -> None:
    told = run("llama-3.2-3b", "--cluster", desk(tmp_path), "--concurrency", "4", "--objective", "throughput", "--json")
    assert told.exit_code == 0, told.output
    answer = json.loads(told.output)
    assert answer["version"] == 1
    assert answer["model"]["layers"] == 28
    assert [device["name"] for device in answer["cluster"]["devices"]] == ["box-1", "box-2"]
    assert answer["work"]["concurrency"] == 4
    best = answer["plans"][answer["best"]]
    assert best["throughput"] == max(plan["throughput"] for plan in answer["plans"])
    between = best["throughput_between"]
    assert between["low"] < best["throughput"] < between["high"]
    assert sum(term["seconds"] for term in best["terms"]) == pytest.approx(best["token_seconds"])
    assert sum(term["part"] for term in best["prompt_terms"]) == pytest.approx(1)
    assert all(use["margin"] >= 0 for use in best["memory"])
    assert answer["alone"]["strategy"] == "single"
    assert answer["bottleneck"]["text"].endswith("of the time of a step of all sequences")
    assert {change["unit"] for change in answer["what_if"]} == {"tok/s"}


def test_whole_copies_beside_the_best_split() -> None:
    words = ("llama-3.2-3b", "--profile", "two-pc-10g", "--objective", "throughput")
    told = run(*words, "--concurrency", "16")
    assert told.exit_code == 0, told.output
    assert "×  replicas 2  pc-1" in told.output
    assert "2 whole copies (ferrule serve --replicas 2) do 1." in told.output
    answer = json.loads(run(*words, "--concurrency", "16", "--json").output)
    replicas = answer["replicas"]
    assert replicas["throughput"] > answer["plans"][answer["best"]]["throughput"]
    assert replicas["throughput"] == pytest.approx(sum(copy["throughput"] for copy in replicas["copies"]))
    assert [copy["strategy"] for copy in replicas["copies"]] == ["single", "single"]
    assert replicas["verdict"] in told.output.replace("\n", " ")
    assert "replicas" not in json.loads(run(*words, "--json").output), "one sequence needs no second copy"


UNEVEN = (
    DESK.replace("count = 2\n", "").replace('"box"', '"quick"')
    + """
[[device]]
name = "large"
memory = "60 GiB"
memory_bandwidth = "300 GB/s"
flops = {{ bf16 = 2e12 }}
"""
)


def test_prompts_apart_are_chosen_where_the_first_token_comes_sooner(tmp_path: Path) -> None:
    file = tmp_path / "uneven.toml"
    file.write_text(UNEVEN.replace('["box-1", "box-2"]', '["quick", "large"]').format(memory="16 GiB"))
    words = ("llama-3.2-3b", "--cluster", str(file), "--prompt", "4096", "--objective", "answer", "--answer", "64")
    told = run(*words)
    assert told.exit_code == 0, told.output
    for each in (
        "best answer, 4,096 tokens of context, prompt 4,096, answer 64",
        "1  single / single",
        "prompts: quick",
        "tokens: large",
        "Prompts on quick, tokens on large: the first token comes after",
        "an answer of 64 tokens takes",
        "s for an answer of 64 tokens in four of five cases",
    ):
        assert each in told.output.replace("\n", " ") or each in told.output
    best = json.loads(run(*words, "--json").stdout)
    assert [stage["devices"] for stage in best["plans"][best["best"]]["prompts"]["stages"]] == [["quick"]]
    assert best["plans"][best["best"]]["answer_seconds"] < best["alone"]["answer_seconds"]
    assert best["verdict"].startswith("Prompts on quick")


def test_prompts_and_tokens_on_machines_of_their_own(tmp_path: Path) -> None:
    asked = ("llama-3.2-3b", "--cluster", desk(tmp_path), "--prompts-on")
    told = run(*asked, "box-2")
    assert told.exit_code == 0, told.output
    for words in (
        "prompts   single, box-2: first token after",
        "tokens    single, box-1:",
        "tok/s in four of five cases",
        "Prompts on box-2, tokens on box-1: the first token comes after",
    ):
        assert words in told.output
    assert "the built-in engine does not do this" not in told.output
    apart = json.loads(run(*asked, "box-2", "--json").stdout)
    assert [stage["devices"] for stage in apart["prompts"] + apart["tokens"]] == [["box-2"], ["box-1"]]
    assert [use["device"] for use in apart["memory"]] == ["box-2", "box-1"]
    assert apart["ttft_seconds_between"]["low"] < apart["ttft_seconds"]
    plan = parse_plan(json.dumps(apart), "plan.json").for_model(read_model("llama-3.2-3b"))
    assert plan.prompts is not None
    assert (plan.devices, plan.prompts.devices) == (("box-1",), ("box-2",))
    for names, words in (
        ("box-3", "box-3: no such device; there are box-1, box-2"),
        ("box-1,box-2", "one device each"),
    ):
        refused = run(*asked, names)
        assert refused.exit_code != 0
        assert words in refused.output


def test_nothing_fits_says_what_is_missing_and_what_would_fit(tmp_path: Path) -> None:
    told = run("llama-3.1-8b", "--cluster", desk(tmp_path, "6 GiB"))
    assert told.exit_code == 4
    assert "llama-3.1-8b does not fit: box-" in told.output
    assert "bytes) too little, in the plan that lacks least" in told.output
    assert "weights as int8" in told.output
    assert "1 more host" in told.output or "one more host like box-1" in told.output
    told = run("llama-3.1-8b", "--cluster", desk(tmp_path, "6 GiB"), "--json")
    assert told.exit_code == 4
    lacking = json.loads(told.output[: told.output.rindex("}") + 1])["shortage"]
    assert lacking["missing"] == lacking["needed"] - lacking["available"] > 0


def test_what_the_built_in_engine_cannot_run_is_flagged() -> None:
    told = run("qwen3-235b-a22b", "--profile", "two-strix", "--weights", "int4")
    assert told.exit_code == 0, told.output
    assert "expert 2 " in told.output
    assert "*" not in told.output, "whole experts run"
    assert "the built-in engine was never measured on GPUs" in told.output
    assert "One machine is not enough: strix-1 alone lacks" in told.output
    told = run("dbrx", "--profile", "two-strix", "--weights", "int4")
    assert "expert 2 *" in told.output
    assert "* not with the built-in engine: transformers has no expert parallel plan for Dbrx" in told.output


def test_what_recurrent_layers_keep_is_told(tmp_path: Path) -> None:
    told = run("granite-4.0-h-small", "--profile", "two-strix")
    assert told.exit_code == 0, told.output
    for words in (
        "40 layers, 146.3 MiB of state per sequence",
        "strix-1 + strix-2: a slice of every expert",
        "keys, values, states",
    ):
        assert words in told.output
    told = run("nemotron-h-8b", "--cluster", desk(tmp_path, "64 GiB"), "--json")
    answer = json.loads(told.output)
    assert answer["model"]["state_bytes"] == 24 * ((8192 + 2048) * 4 * 2 + 128 * 64 * 128 * 4)
    assert "a slice of the vocabulary" in run("nemotron-h-8b", "--cluster", desk(tmp_path, "64 GiB")).output


def test_quantised_keys_and_values_leave_room_for_more_context(tmp_path: Path) -> None:
    model = ("llama-3.2-3b", "--cluster", desk(tmp_path, "12 GiB"))
    given = (*model, "--context", "16384", "--prompt", "16000", "--objective", "context", "--json")
    plain, eight = (json.loads(run(*given, "--kv-cache", kind).output) for kind in ("auto", "int8"))
    assert [each["model"]["cache_bits"] for each in (plain, eight)] == [0, 8]
    memory = [sum(use["cache"] for use in each["alone"]["memory"]) for each in (plain, eight)]
    assert memory[0] == 28 * 8 * 2 * 128 * 2 * 16384
    assert memory[1] == memory[0] * 8.5 / 16
    assert plain["alone"]["largest_context"] < eight["alone"]["largest_context"]
    assert plain["alone"]["tokens_per_s"] < eight["alone"]["tokens_per_s"]
    cure = "keys and values in 8 bits (--kv-cache int8)"
    assert [f"with {cure}" in str(each["what_if"]) for each in (plain, eight)] == [True, False]
    told = run(*model, "--context", "65536")
    assert (told.exit_code, cure in told.output) == (4, True)
    told = run(*model, "--kv-cache", "int8", "--runtime", "mlx")
    assert (told.exit_code, "--kv-cache is of the built-in engine" in told.output) == (2, True)
    assert "6 layers, keys and values in int4" in run("demo", *model[1:], "--kv-cache", "int4").output


def test_a_draft_model_takes_memory(tmp_path: Path) -> None:
    model = ("llama-3.1-8b", "--cluster", desk(tmp_path, "64 GiB"), "--draft", "llama-3.2-3b")
    found = json.loads(run(*model, "--json").output)
    draft = read_model("llama-3.2-3b")
    assert found["model"]["draft_bytes"] == draft.bytes
    (use,) = found["alone"]["memory"]
    assert use["weights"] == read_model("llama-3.1-8b").in_engine.bytes + draft.in_engine.bytes
    assert "draft model llama-3.2-3b of 6.0 GiB" in run(*model).output
    told = run(*model, "--runtime", "mlx")
    assert (told.exit_code, "--draft is of the built-in engine" in told.output) == (2, True)


def test_a_models_own_layer_for_guesses_takes_memory(tmp_path: Path) -> None:
    """By GLM-4.5-Air's sizes: a layer with experts, what makes its input, and embedding and output matrix."""
    where = "--cluster", desk(tmp_path, "512 GiB"), "--draft", "mtp"
    found = json.loads(run("glm-4.5-air", *where, "--json").output)["model"]
    experts, attention = 3 * 4096 * 1408 * 129 + 128 * 4097, 2 * 4096 * 128 * 104 + 128 * 112
    assert found["draft_bytes"] == 2 * (experts + attention + 4096 * (2 * 4096 + 5) + 2 * 151552 * 4096)
    assert "draft model glm-4.5-air's MTP layer of 6.7 GiB" in run("glm-4.5-air", *where).output
    told = run("llama-3.1-8b", *where)
    assert (told.exit_code, "no layer for multi-token prediction (MTP) is run of llama" in told.output) == (3, True)


def test_an_encoder_is_planned_by_the_time_of_a_text(tmp_path: Path) -> None:
    """EmbeddingGemma, by what its maker published."""
    fields = {
        "architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 768,
        "num_hidden_layers": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256,
        "intermediate_size": 1152, "max_position_embeddings": 2048, "sliding_window": 512, "dtype": "float32",
        "use_bidirectional_attention": True,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields))
    told = run(str(file), "--profile", "two-strix", "--explain", "--explain-step", "--concurrency", "2")
    assert told.exit_code == 0, told.output
    for words in ("303M parameters", "24 layers, embeddings only", "best ttft", "a vector", "no step program"):
        assert words in told.output
    assert "* not with the built-in engine: an encoder runs on one rank" in told.output
    assert "tok/s" not in told.output
    for objective in ("latency", "throughput", "energy", "ttft", "context"):
        told = run(str(file), "--profile", "two-strix", "--objective", objective, "--concurrency", "8")
        assert told.exit_code == 0, told.output
        assert ("best ttft" in told.output) == (objective != "context")
        assert "s for a vector in four of five cases" in told.output
        for words in ("tok/s", "J/token", "×  replicas"):
            assert words not in told.output
    small = run(str(file), "--cluster", desk(tmp_path, "500 MiB"))
    assert (small.exit_code, "what would fit" in small.output, "tok/s" in small.output) == (4, True, False)
    apart = run(str(file), "--profile", "two-strix", "--prompts-on", "strix-a")
    assert (apart.exit_code, "an encoder makes none" in apart.output) == (2, True)
    drawn = run(str(file), "--profile", "two-strix", "--plot", str(tmp_path / "a.png"))
    assert (drawn.exit_code, "an encoder makes none" in drawn.output) == (2, True)
    answer = json.loads(run(str(file), "--profile", "two-strix", "--json").output)
    assert answer["model"]["encoder"] is True
    assert answer["plans"][0]["memory"][0]["cache"] == 0


def test_machines_are_saved_as_a_file_to_plan_with(tmp_path: Path) -> None:
    file = tmp_path / "saved.toml"
    assert run("--profile", "two-strix", "--save", str(file)).exit_code == 0
    plans = [
        json.loads(run("demo", *words, "--json").output)["plans"]
        for words in (("--profile", "two-strix"), ("--cluster", str(file)))
    ]
    assert plans[0] == plans[1]


def test_this_machine_and_others_are_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def live(hosts: list[str], **options: object) -> object:
        asked.append((hosts, options))
        return read_cluster(desk(tmp_path))

    monkeypatch.setattr("ferrule.plan.cluster.live_cluster", live)
    told = run("demo", "--hosts", "local, strix-b", "--remote-command", "/opt/ferrule", "--measure")
    assert told.exit_code == 0, told.output
    assert asked == [(["strix-b"], {"command": "/opt/ferrule", "rank": RANK, "fresh": True})]
    assert "2 machines" in told.output
    assert run("demo").exit_code == 0
    assert asked[1] == ([], {"command": "ferrule", "rank": RANK, "fresh": False})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("no/such/model/here",), "no such file or directory"),
        (("model.gguf",), "is damaged or no GGUF file"),
        (("demo", "--runtime", "nonesuch"), "--runtime: there is no 'nonesuch'"),
        (("demo", "--prompt", "9000", "--context", "1000"), "raise --context"),
        (("demo", "--runtime", "vllm", "--explain-step"), "leave --runtime vllm out"),
        (("demo", "--save", "nowhere/desk.toml"), "cannot write nowhere/desk.toml"),
    ],
)
def test_what_cannot_be_planned_is_told_before_machines_are_measured(
    words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"not a GGUF file")
    monkeypatch.setattr("ferrule.plan.cluster.live_cluster", lambda *_, **__: pytest.fail("measured"))
    done = run(*words)
    assert told in " ".join(done.output.split())
    assert done.exit_code != 0


def test_what_serving_measured_counts_for_machines_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Calibration("box", 0.5, 0.0, 3, 0.4, 0.1)
    monkeypatch.setattr("ferrule.plan.cost.read_calibrations", lambda: {"box": found})
    file = desk(tmp_path)

    def bandwidth(*words: str) -> float:
        answer = json.loads(run("demo", "--cluster", file, "--json", *words).output)
        return float(answer["cluster"]["devices"][0]["memory_bandwidth"])

    assert bandwidth() == 100e9
    Path(file).write_text(Path(file).read_text().replace('name = "box"', 'name = "box"\nmeasured = true'))
    assert bandwidth() == 50e9
    assert bandwidth("--runtime", "vllm") == 100e9


def test_calibrating_needs_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.cli.plan.calibrate.fit_and_show", lambda console: console.print("fitted"))
    told = run("--calibrate")
    assert (told.exit_code, told.output) == (0, "fitted\n")


def test_the_far_side_describes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ferrule.plan.cluster.report_text", lambda **options: f"described {options}")
    assert run("--device-json").output == f"described {{'rank': '{RANK}', 'fresh': False}}\n"


@pytest.mark.slow
def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "hosts.png"
    told = run("llama-3.2-3b", "--cluster", desk(tmp_path), "--plot", str(file), "--over", "latency")
    assert told.exit_code == 0, told.output
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("llama-3.2-3b", "--profile", "two-strix", "--cluster", "x.toml"),
            2,
            "one of --profile, --cluster, --hosts and --tree",
        ),
        (("llama-3.2-3b", "--profile", "three-strix"), 2, "there is no lab 'three-strix'"),
        (("llama-3.2-3b", "--cluster", "no.toml"), 2, "cannot read the cluster file no.toml"),
        (("--profile", "two-strix"), 2, "which MODEL?"),
        (("demo", "--profile", "two-strix", "--measure"), 2, "--measure is for this machine"),
        (("nonesuch", "--profile", "two-strix"), 3, "nonesuch: no such file or directory"),
        (("llama-3.2-3b", "--profile", "two-strix", "--runtime", "x"), 2, "there is no 'x'; there are ferrule, mlx"),
        (("llama-3.2-3b", "--profile", "two-strix", "--weights", "int3"), 2, "no weights are stored as 'int3'"),
        (("llama-3.2-3b", "--profile", "two-strix", "--prompt", "9999"), 2, "raise --context"),
    ],
)
def test_wrong_words(words: tuple[str, ...], code: int, said: str) -> None:
    told = run(*words)
    assert told.exit_code == code, told.output
    assert said in told.output.replace("\n", " ")


def test_it_needs_no_torch() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from ferrule.cli.main import app;"
        "told = CliRunner().invoke(app, ['plan', 'demo', '--profile', 'two-strix']); assert told.exit_code == 0, told;"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "[]"


def test_serve_computes_where_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = DESK.format(memory="16 GiB").replace("count = 2", f'host = "{gethostname()}"\ndevice = "xpu:1"')
    (tmp_path / "desk.toml").write_text(machines.partition("[[link]]")[0])
    told = run("demo", "--cluster", str(tmp_path / "desk.toml"), "--context", "512", "--json")
    (tmp_path / "plan.json").write_text(told.stdout)
    seen = []
    monkeypatch.setattr("ferrule.engine.host.processes.expecting", lambda *_: nullcontext())
    monkeypatch.setattr("ferrule.cli.serving.serve.run_alone", lambda console, options, *_: seen.append(options.device))
    words = ["serve", "demo", "--plan", str(tmp_path / "plan.json"), "--port", "0", "--here"]
    for more in ([], ["--device", "cpu"]):
        done = CliRunner().invoke(app, [*words, *more], env=PLAIN)
        assert done.exit_code == 0, done.output
    assert seen == ["xpu:1", "cpu"]


def test_serve_plans_over_the_devices_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"memory_bandwidth": 900e9, "flops": {"bf16": 1e14}, "copy_rate": 2e10, "copy_seconds": 1e-3}
    cards = [DeviceSpec(name=unit, device=unit, memory=24 << 30, **card) for unit in ("cuda:0", "cuda:1")]
    seen: list[Any] = []
    known: list[Any] = [None]
    monkeypatch.setattr("ferrule.engine.host.processes.expecting", lambda *_: nullcontext())
    monkeypatch.setattr("ferrule.plan.device.measure.recall_device", lambda **_: known[0])
    monkeypatch.setattr("ferrule.plan.cluster.devices_here", lambda unit, **_: cards)
    monkeypatch.setattr("ferrule.cli.serving.serve.run_alone", lambda *given: seen.append(given))
    model = read_model("demo")

    def serve(*words: str) -> tuple[Any, str]:
        done = CliRunner().invoke(app, ["serve", "demo", "--port", "0", "--here", *words], env=PLAIN)
        assert done.exit_code == 0, done.output
        return seen.pop(), done.output

    (_, _, planner, place, *_), told = serve("--device", "cuda")
    assert place.plan is None
    assert "Measuring this machine" in told
    assert planner._choice.plan(model).devices == ("cuda:0",)
    split = ("--device", "cuda", "--tp", "2")
    (_, _, planner, place, *_), told = serve(*split)
    assert (planner._choice, place.plan) == (None, None), "nothing is measured for a split that is given"
    assert "Measuring" not in told
    known[0] = cards[0]
    (console, _, planner, place, *_), _ = serve(*split)
    assert planner._choice is None
    with console.capture() as capture:
        assert place.plan(model).tensor == 2
    assert "The split is as you asked, but cuda:" in capture.get()

    def absent(unit: str, **_: Any) -> None:
        raise PlanError("torch finds no device 'xpu' here, only cpu")

    monkeypatch.setattr("ferrule.plan.cluster.devices_here", absent)
    (_, _, planner, place, *_), told = serve("--device", "xpu")
    assert (planner._choice, place.plan) == (None, None)
    assert "Not planned: torch finds no device 'xpu' here, only cpu" in told
