"""Checks of a model before any rank starts."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from ferrule.engine import EngineOptions
from ferrule.engine.host.prepare import prepare
from ferrule.errors import ModelError, RequestError
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
