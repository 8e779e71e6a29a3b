"""Several models on `ferrule serve`'s command line and in its file, and what is refused there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ferrule.cli.serving.models_file import Wanted, read_models
from ferrule.cli.serving.several import refuse_for_several, wanted_models
from ferrule.errors import ConfigError

COMMON = Wanted("", tensor=2, max_context=1024)


def write(folder: Path, text: str) -> Path:
    file = folder / "models.toml"
    file.write_text(text)
    return file


def test_a_table_is_a_model_and_options_are_for_what_it_leaves_out(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        f'[models.chat]\nmodel = "{tmp_path}"\naliases = ["claude-*", "gpt-*"]\nttl = 90\npreload = true\n'
        '[models."acme/big"]\nmodel = "acme/big-7b"\ntp = 1\nmax_context = 4096\npin = true\ntool_parser = "none"\n'
        'kv_cache = "int8"\n',
    )
    assert wanted_models(["demo"], file, COMMON) == [
        Wanted("demo", tensor=2, max_context=1024),
        Wanted(str(tmp_path), "chat", 2, max_context=1024, aliases=("claude-*", "gpt-*"), ttl=90, preload=True),
        Wanted("acme/big-7b", "acme/big", 1, max_context=4096, pin=True, tool_parser="none", kv_cache="int8"),
    ]
    assert wanted_models(["demo"], None, Wanted(""))[0].tensor == 2  # the embedded model is split to show something


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have tables [models.NAME]"),
        ("port = 1\n[models.a]\nmodel = 'x'", "must have tables [models.NAME]"),
        ("[models.a", "Expected ']'"),
        ("[models.a]\ntp = 1", "[models.a]: model is missing"),
        ("[models.a]\nmodel = 'x'\nmaxcontext = 1", "no key 'maxcontext'; did you mean 'max_context'?"),
        ("[models.a]\nmodel = 'x'\ntp = '2'", "tp must be a whole number, not '2'"),
        ("[models.a]\nmodel = 'x'\ntp = 0", "tp must be at least 1, not 0"),
        ("[models.a]\nmodel = 'x'\npin = 1", "pin must be true or false, not 1"),
        ("[models.a]\nmodel = 'x'\nttl = true", "ttl must be a number of seconds, not True"),
        ("[models.a]\nmodel = 'x'\nttl = -1", "ttl must be at least 0"),
        ("[models.a]\nmodel = 'x'\naliases = 'y'", "aliases must be a list of texts, not 'y'"),
        ("[models.a]\nmodel = 'x'\npin = true\nttl = 5", "leave one of them out"),
    ],
)
def test_what_the_file_cannot_say_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        read_models(file, COMMON)
    assert str(file) in str(raised.value)


def test_options_of_one_model_are_refused_for_several() -> None:
    refuse_for_several({"--name": None, "--demo": False})
    with pytest.raises(ConfigError, match="--name is for one model"):
        refuse_for_several({"--demo": False, "--name": "x"})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_models(Path("/nowhere/models.toml"), COMMON)
