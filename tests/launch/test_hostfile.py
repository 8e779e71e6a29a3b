"""Hostfiles in every format, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.errors import ConfigError
from ferrule.launch.hostfile import HostEntry, parse_hostfile, parse_hosts, read_hostfile
from ferrule.launch.job import share_out
from ferrule.launch.request import choose_hosts, chosen_variables, forwarded, make_task

TOML = """
# my desk
python = "/opt/venv/bin/python"
env = { NCCL_DEBUG = "WARN", THREADS = 4 }

[[host]]
name = "me@strix-a"
slots = 2
address = "10.0.0.1"

[[host]]
name = "10.0.0.2"
python = "/usr/bin/python3"
cwd = "/data"
env = { THREADS = 8 }
rdma = ["rdma_en3", ""]
"""


def seen(entry: HostEntry) -> tuple[object, ...]:
    return (entry.name, entry.slots, entry.addresses, entry.python, entry.cwd, dict(entry.env), entry.rdma)


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(TOML.replace('""]', '["rdma_en4", "rdma_en5"]]'))
    first, second = read_hostfile(path)
    common = {"NCCL_DEBUG": "WARN", "THREADS": "4"}
    assert seen(first) == ("me@strix-a", 2, ("10.0.0.1",), "/opt/venv/bin/python", None, common, None)
    rdma = (("rdma_en3",), ("rdma_en4", "rdma_en5"))
    assert seen(second) == ("10.0.0.2", 1, (), "/usr/bin/python3", "/data", common | {"THREADS": "8"}, rdma)


def test_json_of_mlx() -> None:
    text = """{"backend": "jaccl", "envs": ["A=b=c"], "hosts": [
        {"ssh": "mac-a", "ips": ["10.0.0.1", "10.0.1.1"], "rdma": [null, "rdma_en5"]},
        {"ssh": "mac-b", "ips": [], "rdma": ["rdma_en4", null]}]}"""
    first, second = parse_hostfile(text, "hosts.json")
    assert seen(first) == ("mac-a", 1, ("10.0.0.1", "10.0.1.1"), None, None, {"A": "b=c"}, ((), ("rdma_en5",)))
    assert seen(second) == ("mac-b", 1, (), None, None, {"A": "b=c"}, (("rdma_en4",), ()))
    (alone,) = parse_hostfile('[{"ssh": "mac-a", "ips": ["127.0.0.1"]}]', "hosts.json")
    assert seen(alone) == ("mac-a", 1, ("127.0.0.1",), None, None, {}, None)


def test_lines() -> None:
    text = "# ours\nstrix-a slots=2 max_slots=4\n\n  me@strix-b  # one\n10.0.0.3:3\nfe80::1\n[fd00::2]:2\n"
    text += "ssh://me@c:2222 slots=5\n"
    assert [(entry.name, entry.slots) for entry in parse_hostfile(text, "hosts")] == [
        ("strix-a", 2),
        ("me@strix-b", 1),
        ("10.0.0.3", 3),
        ("fe80::1", 1),
        ("fd00::2", 2),
        ("ssh://me@c:2222", 5),
    ]
    assert [(entry.name, entry.slots) for entry in parse_hosts("a, b:2")] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "hosts names no host; write one per line"),
        ("a\nb slots=2\na slots=3", r"hosts, line 3: a is there twice \(first, line 1\); name it once, with slots=4"),
        ("a:2\n\na", r"hosts, line 3: a is there twice"),
        ("a slots=x", "hosts, line 1: 'x' is no number of slots"),
        ("a slots=0", "hosts, line 1: a has slots = 0; give a number from 1 to 1024"),
        ("a\n-oProxyCommand=x", "hosts, line 2: '-oProxyCommand=x' is no host"),
        ("a cores=2", "hosts, line 1: 'cores=2' is not understood; write a slots=2"),
        (
            '[[host]]\nname = "a"\nslot = 2',
            "hosts, host 1: .* unknown field `slot`; there are address, cwd",
        ),
        ('[[host]]\nname = "a"\n[[host]]\nname = "a"', r"hosts, host 2: a is there twice \(first, host 1\)"),
        ('[[host]]\nname = = "a"', "hosts is no TOML: .*line 2"),
        (
            '[host]\nname = "a"',
            r"hosts: Expected `array`, got `object` .*write \[\[host\]\] with two brackets",
        ),
        ("[[host]]\nslots = 2", 'hosts, host 1: Object missing required field `name`; .* name = "strix-a"'),
        ('[[host]]\nname = "a"\nslots = "2"', r"hosts, host 1: Expected `int`, got `str` - at `\$.slots`"),
        ('[[host]]\nname = "a"\nenv = { "A B" = "1" }', "hosts, host 1: 'A B' is no name of an environment variable"),
        ('[[host]]\nname = "a"\nrdma = ["x", "y"]', "rdma of a has 2 entries for 1 hosts"),
        ('[{"ips": []}]', "hosts, host 1: .* required field `ssh`; there are ips, rdma, ssh: MLX writes"),
        ('[["10.0.0.1:5000"]]', "hosts, host 1: Expected `object`, got `array`; .* MLX writes"),
        ('{"hosts": {}}', r"hosts: Expected `array`, got `object` - at `\$.hosts`; .* MLX writes"),
        ('{"hosts": [', "hosts is no JSON"),
    ],
)
def test_what_is_wrong(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_hostfile(text, "hosts")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the hostfile .*/none: No such file"):
        read_hostfile(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is no text"):
        read_hostfile(tmp_path / "binary")


def test_ranks_fill_one_host_after_the_other() -> None:
    hosts = parse_hosts("a:2,b:3,c")
    assert share_out(hosts, None) == [(0, 1), (2, 3, 4), (5,)]
    assert share_out(hosts, 4) == [(0, 1), (2, 3), ()]
    with pytest.raises(
        ConfigError, match="7 ranks do not fit on the 6 slots of a:2,b:3,c:1; give the hosts more: a:3, or slots = 3"
    ):
        share_out(hosts, 7)


def test_what_users_ask_for() -> None:
    (here,) = choose_hosts(3, None, None, python="/py")
    assert seen(here) == ("localhost", 3, (), "/py", None, {}, None)
    with pytest.raises(ConfigError, match="how many ranks"):
        choose_hosts(None, None, None)
    with pytest.raises(ConfigError, match="not both"):
        choose_hosts(None, "a", Path("b"))
    with pytest.raises(ConfigError, match="-n 0 is no number of ranks"):
        choose_hosts(0, None, None)
    environ = {"FERRULE_RAILS": "2", "FERRULE_KEY": "k", "FERRULE_HOST_ID": "h", "FERRULE_RANK": "1", "HOME": "/"}
    assert forwarded(environ) == {"FERRULE_RAILS": "2"}
    assert chosen_variables(["A=b=c", "HOME"], environ) == {"A": "b=c", "HOME": "/"}
    with pytest.raises(ConfigError, match="--env NONE: it is not set here"):
        chosen_variables(["NONE"], environ)
    with pytest.raises(ConfigError, match="what to run"):
        make_task([], "/", {})
    words = {("a.py", "-x"): (None, "a.py", "-x"), ("python", "a.py"): ("python", "a.py"), ("./a",): ("./a",)}
    assert {given: make_task(given, "/", {}).argv for given in words} == words
    assert make_task(["a.b", "-x"], "/", {}, module=True).argv == (None, "-m", "a.b", "-x")
