"""Checks of a model before any rank starts."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from tiny_encoders import add_modules, add_tokenizer, make_encoder

from ferrule.engine import EngineOptions
from ferrule.engine.host.prepare import prepare
from ferrule.engine.options import Adapter
from ferrule.errors import ConfigError, ModelError, RequestError
from ferrule.model import ModelSpec, demo_path
from ferrule.plan import Plan, make_plan

HELLO = [{"role": "user", "content": "Hello!"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_path(), tmp_path / "model"))


def never(_: ModelSpec) -> Plan:
    pytest.fail("a plan was chosen, for which the machine may have to be measured")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json has no tokenizer that can be read: .*; download it again"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json is no JSON: .*; download it again"),
        ("generation_config.json", '{"temperature": "hot"}', r"generation_config\.json cannot be read"),
        ("model.safetensors", "<html>404</html>", r"\(16 bytes\) is truncated or damaged: says that .*; download it"),
        ("model.safetensors.index.json", "{", r"index\.json is not a safetensors index: is no JSON: .*; download it"),
    ],
)
def test_a_plan_is_chosen_only_for_a_model_whose_files_are_whole(
    name: str, text: str, message: str, model: Path
) -> None:
    (model / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        prepare(EngineOptions(str(model)), never)


def test_tokens_that_were_added_may_lie_beyond_the_embedding(model: Path) -> None:
    file = model / "tokenizer.json"
    told = json.loads(file.read_text())
    image = {"id": 3072, "content": "<image>", "special": True}
    told["added_tokens"].append({**told["added_tokens"][0], **image})
    file.write_text(json.dumps(told))
    assert prepare(EngineOptions(str(model))).tokenizer.encode("<image>", add_special_tokens=False) == [3072]


@pytest.mark.parametrize(
    ("template", "message", "usable"),
    [
        ("{% for message in messages %}\n{{ message.content }", "cannot be used (line 2: ", False),
        ("{{ messages[0].content | nonesuch }}", "cannot be used (line 1: No filter named 'nonesuch'", False),
        ("{{ nonesuch(messages) }}", "is at fault (a plain message fails: 'nonesuch' is undefined)", True),
        ("{% if tools %}\n{{ 1 | nonesuch }}{% endif %}{{ a.b.c }}", "a plain message fails: 'a' is undefined", True),
        ("{% if tools %}{{ 1 | nonesuch }}{% endif %}{{ raise_exception('no') }}", "line 1: No filter named", True),
        ("{{ raise_exception('a system message must come first') }}", None, True),
    ],
)
def test_a_chat_template_that_is_at_fault_is_told_before_ranks_start(
    template: str, message: str | None, usable: bool, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = model / "chat_template.jinja"
    file.write_text(template)
    with caplog.at_level(logging.WARNING):
        tokenizer = prepare(EngineOptions(str(model)), lambda spec: make_plan(spec)).tokenizer
    told = [record.getMessage() for record in caplog.records]
    assert [str(file) in each and message in each for each in told if message] == ([True] if message else [])
    assert len(told) == (message is not None)
    assert tokenizer.has_chat_template == usable
    with pytest.raises(RequestError, match="chat template") as refused:
        tokenizer.render_chat(HELLO)
    assert (refused.value.code == "no_chat_template") == (not usable)


def test_an_encoder_takes_texts_as_it_was_trained_with(tmp_path: Path) -> None:
    add_tokenizer(make_encoder("bert", tmp_path))
    add_modules(tmp_path, "mean_tokens", longest=16)
    found = prepare(EngineOptions(str(tmp_path)))
    assert (found.longest, found.spec.max_context, found.embedding.only) == (16, 96, True)
    with pytest.raises(ConfigError, match="--max-context 97 is more than the 96 tokens"):
        prepare(EngineOptions(str(tmp_path), max_context=97))
    with pytest.raises(ConfigError, match="is an encoder, and adapters are of models that answer"):
        prepare(EngineOptions(str(tmp_path), adapters=(Adapter("a", "b"),)))
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "models.LSTM", "path": "1"}]))
    with pytest.raises(ModelError, match="'LSTM', which is not run here, and an encoder makes nothing but vectors"):
        prepare(EngineOptions(str(tmp_path)))
