import os
import shutil

import pytest

from agents import make_home
from ferrule.agent.start import agent_command
from ferrule.cluster import service
from ferrule.errors import ClusterError


@pytest.fixture
def systemctl(tmp_path, monkeypatch):
    """A stand-in that notes how it was called, and fails when it is told to."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    calls = tmp_path / "calls"
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\n[ -e {tmp_path}/broken ] && {{ echo no bus >&2; exit 1; }}\nexit 0\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return calls


def test_the_service_is_written_enabled_and_taken_away(tmp_path, systemctl):
    home = make_home(tmp_path, "with a space")
    file = service.install(home, agent_command(home))
    assert file == tmp_path / "config" / "systemd" / "user" / "ferrule-testing.service"
    assert f'"{home.directory}" -' in file.read_text()
    assert systemctl.read_text().splitlines() == ["--user daemon-reload", "--user enable --now ferrule-testing.service"]
    assert service.remove(home)
    assert not file.exists()
    assert not service.remove(home)


def test_what_systemd_says_is_passed_on_and_what_runs_goes_on(tmp_path, systemctl, monkeypatch):
    monkeypatch.setattr(service, "stop_agent", lambda home: pytest.fail("an agent was stopped for nothing"))
    (tmp_path / "broken").touch()
    with pytest.raises(ClusterError, match=r"no bus.*login session"):
        service.install(make_home(tmp_path, "here"), ["agent"])


def test_without_systemd_it_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ClusterError, match="ferrule up --foreground"):
        service.install(make_home(tmp_path, "here"), ["agent"])


@pytest.mark.parametrize(
    ("word", "quoted"), [("/usr/bin/python", "/usr/bin/python"), ("/a b", '"/a b"'), ("100%", "100%%"), ("$x", "$$x")]
)
def test_words_are_quoted_as_systemd_reads_them(word, quoted):
    assert service._quoted(word) == quoted


def test_the_service_finds_models_and_programs_as_the_user_does(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", '/data/100% "ours"')
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    text = service.unit_text(make_home(tmp_path, "here"), ["agent"])
    assert 'Environment="HF_HOME=/data/100%% \\"ours\\""' in text.splitlines()
    assert f'Environment="PATH={os.environ["PATH"]}"' in text.splitlines()
    assert "secret" not in text
    assert "XDG_CACHE_HOME" not in text
