"""`ferrule launch` as users run it, from one lab host to another, each with an sshd of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from ssh_hosts import SECONDS, SshHosts, obstacle, ssh_hosts

from ferrule.errors import LaunchError
from ferrule.lab import Lab, pair

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="labs need Linux")]
HERE = Path(__file__).parent
HOSTS = """
[[host]]
name = "10.77.0.1"
slots = {slots}
env = {{ FERRULE_HOST_ID = "host0" }}

[[host]]
name = "host1"
slots = {slots}
env = {{ FERRULE_HOST_ID = "host1" }}
"""
SUM = """
import os, sys
import numpy as np
from pathlib import Path
import ferrule.fabric as fabric

key = os.environ["FERRULE_KEY"].encode()
for line in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert key not in line.read_bytes(), line
    except OSError:
        continue
with fabric.init(strict=True) as group:
    x = np.full(4, group.rank + 1.0)
    group.all_reduce(x)
    print(group.rank, x[0], sys.argv[1:])
"""
SLEEP = "import sys, time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def hosts(emulated_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    reason = obstacle()
    if reason is not None:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)
    with Lab(pair()) as lab, ssh_hosts(lab, tmp_path_factory.mktemp("ssh")) as found:
        yield found


@pytest.fixture
def hostfile(hosts: SshHosts, tmp_path: Path) -> Iterator[str]:
    """One rank per host. Nothing of a job may be left when the test is over."""
    path = tmp_path / "hosts.toml"
    path.write_text(HOSTS.format(slots=1))
    yield str(path)
    hosts.wait_until_empty([0, 1])


def test_eight_ranks_on_two_hosts(hosts: SshHosts, hostfile: str, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    Path(hostfile).write_text(HOSTS.format(slots=4))
    logs = tmp_path / "logs"
    code, out, err = hosts.run("--hostfile", hostfile, "--log-dir", str(logs), "sum.py", "--lr", "1", folder=tmp_path)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] {rank} 36.0 ['--lr', '1']" for rank in range(8)]
    assert [(logs / f"rank-{rank}.log").read_text() for rank in range(8)] == [
        f"{rank} 36.0 ['--lr', '1']\n" for rank in range(8)
    ]


def test_failure_on_another_host_ends_all(hosts: SshHosts, hostfile: str) -> None:
    script = f"import os, sys; sys.exit(7) if os.environ['RANK'] == '1' else exec({SLEEP!r})"
    code, _, err = hosts.run("--hostfile", hostfile, "--", str(hosts.python), "-c", script)
    assert (code, err) == (7, "error: rank 1 on host1 ended with exit code 7; the others were stopped\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_the_launcher(hosts: SshHosts, hostfile: str, number: signal.Signals) -> None:
    """Ctrl-C reaches ranks on both hosts as such; and a killed launcher leaves nothing (see `hostfile`)."""
    with hosts.launch("--hostfile", hostfile, "--grace", "50", "--", str(hosts.python), "-c", SLEEP) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        process.send_signal(number)
        if number == signal.SIGINT:
            _, err = process.communicate(timeout=SECONDS)
            assert process.returncode == 128 + signal.SIGINT
            assert {line for line in err.splitlines() if "Interrupt" in line} == {
                "[0] KeyboardInterrupt",
                "[1] KeyboardInterrupt",
            }
        else:
            process.kill()


def test_hosts_that_cannot_take_part(hosts: SshHosts, tmp_path: Path) -> None:
    words = ("--connect-timeout", "1", "--", "true")
    code, _, err = hosts.run("--hosts", "nowhere.invalid,10.77.0.99,host1", *words)
    assert code == LaunchError.exit_code
    first, second = err.splitlines()
    assert first.startswith("error: unknown host nowhere.invalid (ssh: Could not resolve hostname nowhere.invalid")
    assert second.strip().startswith("cannot reach 10.77.0.99 (ssh: connect to host 10.77.0.99 port 2222:")
    code, _, err = hosts.run("--hosts", "host1,10.77.0.2", "--", "true")
    assert (code, err) == (2, "error: host1 and 10.77.0.2 are the same machine; name it once, with slots=2\n")
    hosts.wait_until_empty([0, 1])


def test_torch_over_gloo_and_over_ferrule(hosts: SshHosts, hostfile: str) -> None:
    pytest.importorskip("torch")
    code, out, err = hosts.run("--hostfile", hostfile, str(HERE / "ddp_script.py"), "gloo", "ferrule")
    assert code == 0, err
    lines = [line.split("] ")[1].split() for line in sorted(out.splitlines())]
    assert [(backend, size) for backend, size, _ in lines] == [("ferrule", "2"), ("gloo", "2")] * 2
    assert len({total for _, _, total in lines}) == 1


@pytest.mark.skipif(find_spec("mlx") is None, reason="MLX is not installed")
@pytest.mark.parametrize("words", [(), ("--mlx", "ferrule")], ids=["ring", "ferrule"])
def test_mlx(hosts: SshHosts, hostfile: str, words: tuple[str, ...]) -> None:
    code, out, err = hosts.run(*words, "--hostfile", hostfile, str(HERE / "mlx_script.py"))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] 0 2 20.0", "[1] 1 2 20.0"]
