"""Edits of settings files keep everything else, and refuse what they cannot edit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.cli.connect import jsonc, toml_text, yaml_text
from ferrule.cli.connect.edits import Edit, merged
from ferrule.cli.connect.settings import change, masked
from ferrule.errors import ConfigError

COMMENTED = """\
// Zed
{
  /* how it looks */
  "theme": "One Dark", // dark
  "agent": {
    "default_model": {"provider": "x", "model": "y"},
  },
  "empty": {},
  "one": {"a": [1, 2,], "b": "}"}
}
"""


def test_json_keeps_comments_and_layout() -> None:
    edits = [
        Edit(("agent", "default_model"), {"provider": "ferrule", "model": "m"}),
        Edit(("agent", "other"), 1),
        Edit(("empty", "a", "b"), True),
        Edit(("one", "c"), "é"),
        Edit(("new", "x"), None),
    ]
    made = jsonc.edited(COMMENTED, edits)
    assert (
        made
        == """\
// Zed
{
  /* how it looks */
  "theme": "One Dark", // dark
  "agent": {
    "default_model": {
      "provider": "ferrule",
      "model": "m"
    },
    "other": 1
  },
  "empty": {
    "a": {
      "b": true
    }
  },
  "one": {"a": [1, 2,], "b": "}", "c": "é"},
  "new": {
    "x": null
  }
}
"""
    )
    assert jsonc.read(made) == merged(jsonc.read(COMMENTED), edits)


@pytest.mark.parametrize(
    "text", ["", "\n", "// nothing yet\n", "{}", "{\n}\n", "{ // c\n}", '{"a": 1}', '\ufeff{"a":1,}']
)
def test_json_of_any_layout(text: str) -> None:
    edits = [Edit(("a",), 2), Edit(("b", "c"), [1])]
    made = jsonc.edited(text, edits)
    assert jsonc.read(made) == {"a": 2, "b": {"c": [1]}}
    assert "// nothing yet" in made or "nothing" not in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1', "line 1, column 8: a comma or } is missing"),
        ('{\n  "a" 1}', "line 2, column 7: a colon is missing"),
        ('{"a": }', "line 1, column 7: a value is missing"),
        ('{"a": "x}', "line 1, column 7: a string is missing, or does not end"),
        ("{a: 1}", "line 1, column 2: a string is missing"),
        ('{"a": 1} x', "line 1, column 10: there is more behind the end"),
        ('{"a": [1 2]}', "line 1, column 10: a comma or ] is missing"),
        ("[" * 100_000, "nested too deeply"),
        (" " * 50_000 + "x", "line 1, column 50001: a value is missing"),
        ("[]", "the file is no object"),
        ('{"env": 5}', "env is no object"),
    ],
)
def test_json_that_cannot_be_edited_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        jsonc.edited(text, [Edit(("env", "x"), 1)])
    assert told in str(caught.value)


KEYS = st.text(alphabet='ab"\\é /', max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.lists(KEYS, min_size=1, max_size=3),
    VALUES,
    st.sampled_from([None, 1]),
)
def test_json_is_edited_as_values_are(old: Any, path: list[str], value: Any, indent: int | None) -> None:
    edits = [Edit(tuple(path), value)]
    text = json.dumps(old, indent=indent)
    try:
        wanted = merged(old, edits)
    except ConfigError:
        with pytest.raises(ConfigError):
            jsonc.edited(text, edits)
        return
    assert json.loads(jsonc.edited(text, edits)) == wanted


CODEX = """\
# mine
model = "gpt-9"   # the best

approval_policy = "never"

# tools
[mcp_servers.docs]
args = ["a", "b"]

[model_providers.ferrule]
name = "old"
env_key = "OLD"

# other
[model_providers.other]
name = "x"
"""
CODEX_EDITS = [
    Edit(("model",), "m"),
    Edit(("model_provider",), "ferrule"),
    Edit(("model_providers", "ferrule"), {"name": "Ferrule"}),
]


def test_toml_keeps_comments_and_layout() -> None:
    made = toml_text.edited(CODEX, CODEX_EDITS)
    assert made == CODEX.replace('model = "gpt-9"   # the best', 'model = "m"').replace(
        '"never"\n', '"never"\nmodel_provider = "ferrule"\n'
    ).replace('name = "old"\nenv_key = "OLD"\n', 'name = "Ferrule"\n')
    assert toml_text.read(made) == merged(toml_text.read(CODEX), CODEX_EDITS)
    for text in ("", "[a]\nb = 1\n", "# c\n\n[a]\nb = 1"):
        made = toml_text.edited(text, CODEX_EDITS)
        assert toml_text.read(made) == merged(toml_text.read(text), CODEX_EDITS)
        assert all(line in made for line in text.splitlines())


AIDER = "# mine\nmodel: gpt-9 # best\ndark-mode: true\n"
CONTINUE = """\
name: Mine
models:
  # the big one
  - name: Big
    provider: openai
    roles:
      - chat

  - name: Ferrule
    provider: old
    gone: 1

  # last
  - name: Last
    provider: x

# rules
rules: []
"""
ITEM = [Edit(("models",), {"name": "Ferrule", "provider": "openai", "roles": ["chat"]}, named="Ferrule")]


def test_yaml_keeps_comments_and_layout() -> None:
    edits = [Edit(("model",), "openai/m"), Edit(("openai-api-base",), "http://x/v1")]
    assert yaml_text.edited(AIDER, edits) == (
        '# mine\nmodel: "openai/m"\ndark-mode: true\nopenai-api-base: "http://x/v1"\n'
    )
    made = yaml_text.edited(CONTINUE, ITEM)
    assert made == CONTINUE.replace(
        "  - name: Ferrule\n    provider: old\n    gone: 1\n",
        '  - name: "Ferrule"\n    provider: "openai"\n    roles: ["chat"]\n',
    )
    without = CONTINUE.replace("  - name: Ferrule\n    provider: old\n    gone: 1\n\n", "")
    for text in (
        made,
        without,
        "",
        "models:\n",
        "models: []\nx: 1\n",
        "a: 1",
        "models:\n- name: A\n  b: 1\nx: 1\n",
        "models:\n- name: Ferrule\n- name: B\n",
    ):
        after = yaml_text.edited(text, ITEM)
        assert yaml_text.read(after) == merged(yaml_text.read(text), ITEM)
        assert all(line in after for line in text.splitlines() if "#" in line)


@pytest.mark.parametrize(
    ("kind", "text", "edits", "told"),
    [
        ("json", '{\n "a": }', CODEX_EDITS, "line 2, column 7: a value is missing"),
        ("toml", "model = \n", CODEX_EDITS, "(at line 1, column 9)"),
        ("toml", "model_providers = {}\n", CODEX_EDITS, "cannot be edited safely"),
        ("toml", 'model = """\nx"""\n', CODEX_EDITS, "cannot be edited safely"),
        ("yaml", "a: [1\n", ITEM, "line 2, column 1: "),
        ("yaml", "models: [{name: A}]\n", ITEM, "cannot be edited safely"),
        ("yaml", "models: 5\n", ITEM, "models is no list"),
        ("yaml", "model: >\n  x\n  y\n", [Edit(("model",), "m")], "cannot be edited safely"),
        ("yaml", "- a\n", ITEM, "is no object"),
        ("json", b"\xff{}", CODEX_EDITS, "byte 0 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_edited_is_named_and_stays(
    kind: str, text: str | bytes, edits: list[Edit], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "settings"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        change(path, kind, edits)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_lines_end_as_they_did(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_bytes(b'{\r\n  "a": 1\r\n}\r\n')
    made = change(path, "json", [Edit(("b",), 2)])
    assert made.after == b'{\r\n  "a": 1,\r\n  "b": 2\r\n}\r\n'


def test_a_diff_has_no_secrets() -> None:
    for line, shown in (
        ('"ANTHROPIC_AUTH_TOKEN": "sk-1234567890123"', '"ANTHROPIC_AUTH_TOKEN": "sk-…"'),
        ("apiKey: short", "apiKey: …"),
        ("openai-api-key: 'sk-1234567890123'", "openai-api-key: 'sk-…'"),
        ('"apiKey": "{env:FERRULE_API_KEY}"', '"apiKey": "{env:FERRULE_API_KEY}"'),
        ('env_key = "FERRULE_API_KEY"', 'env_key = "FERRULE_API_KEY"'),
        ('"max_tokens": 512', '"max_tokens": 512'),
    ):
        assert masked(line) == shown
