"""Everything a user may get wrong on the command line: the words and the exit code."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ferrule.cli.main import app
from ferrule.engine.host.local_ranks import LocalStarter
from ferrule.model import demo_path
from ferrule.plan.device import measure

pytestmark = pytest.mark.slow


def serve(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "ferrule.cli.main", "serve", *arguments]
    env = {**os.environ, "COLUMNS": "300", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_path(), tmp_path / "model"))


def truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])


def bad_config(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "llama",')


def no_config(model: Path) -> None:
    (model / "config.json").unlink()


def unknown_architecture(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "nonesuch"}')


def index_promises_more(model: Path) -> None:
    weight_map = {"model.layers.0.mlp.up_proj.weight": "model.safetensors", "model.nonesuch": "model.safetensors"}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def index_lacks_a_tensor(model: Path, name: str = "model.layers.1.mlp.up_proj.weight") -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(model / "model.safetensors")
    del tensors[name]
    save_file(tensors, model / "part.safetensors", metadata={"format": "pt"})
    (model / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(tensors, "part.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def no_tokenizer(model: Path) -> None:
    for file in model.glob("*token*"):
        file.unlink()


def tokenizer_of_another_model(model: Path) -> None:
    file = model / "tokenizer.json"
    told = json.loads(file.read_text())
    told["model"]["vocab"] |= {f"zz{number}": 3072 + number for number in range(8)}
    file.write_text(json.dumps(told))


def pointer_of_git_lfs(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7483792\n")


def quantized(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "quip"}
    (model / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "arguments", "code", "words"),
    [
        (truncate, (), 3, "model.safetensors (100,000 bytes) is truncated or damaged"),
        (bad_config, (), 3, "config.json is no JSON"),
        (no_config, (), 3, "holds no config.json"),
        (unknown_architecture, (), 3, "nonesuch"),
        (index_promises_more, (), 3, "lacks model.nonesuch"),
        (index_lacks_a_tensor, (), 3, "has no weights for model.layers.1.mlp.up_proj.weight"),
        (pointer_of_git_lfs, (), 3, "is only a pointer of Git LFS; fetch the file itself: git lfs pull"),
        (no_tokenizer, (), 3, "no tokenizer that can be read"),
        (tokenizer_of_another_model, (), 3, "a vocabulary of 3,080 tokens, but the model's embedding only 3,072 rows"),
        (quantized, (), 3, "is quantized (quip)"),
        (None, ("--tp", "99"), 4, "8 attention heads cannot be shared by 99 ranks; use 8 or less"),
        (None, ("--pp", "99"), 4, "cannot fill 99 pipeline stages"),
        (None, ("--tp", "0"), 2, "--tp"),
        (None, ("--max-context", "1000000"), 2, "--max-context 1000000 is more than the 1024 tokens"),
        (None, ("--dtype", "int3"), 2, "--dtype"),
        (None, ("--weights", "int3"), 2, "--weights"),
        (None, ("--host", "0.0.0.0"), 2, "FERRULE_API_KEY"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_model_or_flag_that_cannot_be_used(
    damage: Callable[[Path], None] | None,
    arguments: tuple[str, ...],
    code: int,
    words: str,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this process: the next ones show that another one says it, too. The machine is not measured before."""
    monkeypatch.setattr(measure, "recall_device", lambda **_: None)
    monkeypatch.setattr(measure, "measure_device", lambda **_: pytest.fail("measured"))
    if damage is not None:
        damage(model)
    done = CliRunner().invoke(app, ["serve", str(model), "--port", "0", *arguments], env={"COLUMNS": "300"})
    assert words in " ".join(done.stderr.split())
    assert done.exit_code == code


def test_ranks_that_lack_a_tensor(model: Path) -> None:
    index_lacks_a_tensor(model, "model.norm.weight")
    status, said = serve(str(model), "--port", "0", "--tp", "2")
    assert "no weights for model.norm.weight" in " ".join(said.split())
    assert status == 3


def test_a_directory_that_is_not_there() -> None:
    assert serve("./no/such/model", "--port", "0") == (
        3,
        "error: ./no/such/model: no such directory (nor is it a hub id of the form owner/name)\n",
    )


def test_a_hub_id_without_a_hub() -> None:
    status, said = serve("nobody/nonesuch", "--port", "0")
    assert status == 3
    assert "nobody/nonesuch: no such directory here" in said


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = serve("--demo", "--port", str(port))
    assert (status, said) == (2, f"error: port {port} is in use on 127.0.0.1; choose another with --port\n")


def test_a_broken_chat_template_ends_generate_before_ranks_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "chat_template.jinja").write_text("{% if")
    monkeypatch.setattr(LocalStarter, "start", lambda *_: pytest.fail("ranks were started"))
    done = CliRunner().invoke(app, ["generate", str(model), "Hello!"], env={"COLUMNS": "300"})
    assert "chat_template.jinja cannot be used (line 1: " in " ".join(done.stderr.split())
    assert "--raw continues the prompt as text" in " ".join(done.stderr.split())
    assert done.exit_code == 2
