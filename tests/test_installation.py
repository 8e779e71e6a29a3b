"""Advice on extras fits how Ferrule was installed."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ferrule.errors import ConfigError
from ferrule.installation import EXTRAS, command, pip_install, require


@pytest.mark.parametrize(
    ("direct_url", "words"),
    [
        ({"url": "file:///src/my%20ferrule", "dir_info": {"editable": True}}, ["-e", "/src/my ferrule[serve]"]),
        ({"url": "file:///src/ferrule", "dir_info": {}}, ["/src/ferrule[serve]"]),
        ({"url": "file:///tmp/ferrule-1-py3-none-any.whl"}, ["/tmp/ferrule-1-py3-none-any.whl[serve]"]),
        (
            {"url": "https://git.example/ferrule", "vcs_info": {"vcs": "git", "commit_id": "0"}},
            ["ferrule[serve] @ git+https://git.example/ferrule"],
        ),
        ({"url": "https://example/ferrule.whl", "archive_info": {}}, ["ferrule[serve] @ https://example/ferrule.whl"]),
        ({}, ["ferrule[serve]"]),
    ],
)
def test_the_command_installs_from_where_ferrule_came(direct_url: dict[str, Any], words: list[str]) -> None:
    told = shlex.split(command("serve", direct_url, "/env dir/bin/python"))
    assert told == ["/env dir/bin/python", "-m", "pip", "install", *words]


def test_this_installation_is_known() -> None:
    assert re.search(r" -m pip install (-e )?\S*\[plan\]'?$", pip_install("plan"))


def test_the_packages_of_extras_are_those_that_are_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    before = None
    for extra, packages in EXTRAS.items():
        named = [re.split(r"[<>=\[ ]", each)[0] for each in project["optional-dependencies"][extra]]
        imported = [{"pillow": "PIL"}.get(each, each) for each in named if each != "ferrule"]
        assert imported == list(packages)
        assert before is None or f"ferrule[{before}]" in project["optional-dependencies"][extra]
        before = extra


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    require("serve", "it")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    require("serve", "it")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"it needs the bench extra \(tokenizers is not installed\): .* pip install"):
        require("bench", "it")
