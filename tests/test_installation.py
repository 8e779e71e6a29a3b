"""Advice on extras fits how Ferrule was installed."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from ferrule.installation import command, pip_install


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
