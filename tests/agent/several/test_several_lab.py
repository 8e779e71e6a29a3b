"""Several models behind one address of a cluster, as a user has them, in hosts of a lab."""

from __future__ import annotations

from pathlib import Path

import pytest

from ferrule.bench.random_model import RandomModel, save_random_model
from ferrule.engine.shards.weight_files import identity, read_layout
from ferrule.lab import Lab, pair
from lab_hosts import Hosts, Stream, token_in

MODELS = """
[models.one]
model = "demo"
tp = 2
aliases = ["claude-*"]

[models.two]
model = "demo"
tp = 2

[models.three]
model = "demo"
tp = 1
"""


class HostsOfTheirOwn(Hosts):
    """Each with a cache of its own. Host 1 does not see the files of host 0."""

    def env(self, host: int) -> dict[str, str]:
        own = {"FERRULE_MODEL_PATH": str(self.folder / "nowhere")} if host else {}
        return {**super().env(host), "FERRULE_MODEL_CACHE": str(self.folder / f"shards{host}"), **own}


@pytest.mark.slow
def test_models_share_the_memory_of_all_hosts_and_outlive_a_rank(emulated_hosts: None, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(MODELS)
    with Lab(pair()) as lab:
        hosts = HostsOfTheirOwn(lab, tmp_path)

        def answer(model: str) -> str:
            return Stream(hosts, 100, model).rest()

        def states() -> dict[str, tuple[str, tuple[str, ...]]]:
            (row,) = hosts.models(0)
            assert row.state == "ready"
            return {each.name: (each.state, each.hosts) for each in row.models}

        token = token_in(hosts.run(0, "up", "--no-mdns"))
        hosts.run(1, "up", "--no-mdns", "--join", token)
        quick = ("--threads", "1", "--no-standby", "--no-self-test")
        options = ("--memory-limit", "560MiB", "--max-context", "256", *quick)
        shown = hosts.run(0, "serve", "--models", str(file), *options, timeout=180)
        assert "ferrule stop models" in shown
        both = ("host0", "host1")
        unloaded = ("unloaded", ())
        assert states() == {"one": ("ready", both), "two": unloaded, "three": unloaded}

        undisturbed = answer("claude-opus-4")
        assert answer("two") == undisturbed
        assert answer("three") == undisturbed
        # Ranks of two models fit on a host, and "one" was used least recently.
        hosts.until(lambda: states() == {"one": unloaded, "two": ("ready", both), "three": ("ready", ("host0",))})

        stream = Stream(hosts, 100, "two")
        stream.read(20)
        assert hosts.kill(1, "engine.rank.worker") == 1
        assert stream.rest() == undisturbed

        def recoveries() -> dict[str, int]:
            (told,) = hosts.models(1)
            return {each.name: each.recoveries for each in told.models}

        hosts.until(lambda: recoveries() == {"one": 0, "two": 1, "three": 0})  # which is told a moment later
        hosts.run(0, "stop", "models")
        assert hosts.models(0) == []

        # No rank is on the only host that has the files.
        model = save_random_model(tmp_path / "model", RandomModel.tiny())
        hosts.run(0, "serve", str(model), "--hosts", "host1", *quick, timeout=180)
        (row,) = hosts.models(0)
        assert (row.state, row.on, row.hosts) == ("ready", "host0", ("host1",))
        assert identity(model, read_layout(model)) in [each.name for each in (tmp_path / "shards1").iterdir()]
        assert not (tmp_path / "shards0").exists()
