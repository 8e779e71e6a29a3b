"""FERRULE_ENCRYPT=1: what ranks say over cables is encrypted, and all else is as before."""

from __future__ import annotations

import pytest
from ranks import Ranks, run_all

from ferrule.config import fabric_settings
from ferrule.errors import ConfigError

ENCRYPT = {"FERRULE_ENCRYPT": "1"}


def test_results_are_the_same_over_encrypted_tcp() -> None:
    digests = set()
    patient = {"FERRULE_HEARTBEAT": "10"}  # three ranks and what encrypts for them, on as few cores as there may be
    for env in (patient, patient | ENCRYPT):
        arguments = {"seed": 3, "count": 40}
        reports, _ = run_all("sweep", "point_to_point", size=3, transport="tcp", arguments=arguments, env=env)
        digests |= {report["digest"] for report in reports}
    assert len(digests) == 1


@pytest.mark.slow
def test_a_rank_that_does_not_encrypt_is_named() -> None:
    with Ranks("joins", 2, rank_env=[ENCRYPT, {}], timeout=3) as ranks:
        reports = ranks.reports()
    for report in reports:
        assert report["error"] in ("RendezvousError", "Refused")
        assert "rank 1 was started with FERRULE_ENCRYPT=0, rank 0 with 1; give all the same" in report["text"]


def test_rdma_cannot_be_encrypted_and_nonsense_is_no_setting() -> None:
    with pytest.raises(ConfigError, match="FERRULE_TRANSPORT=verbs cannot be encrypted"):
        fabric_settings({**ENCRYPT, "FERRULE_TRANSPORT": "verbs"})
    with pytest.raises(ConfigError, match="FERRULE_ENCRYPT='yes' is neither 1"):
        fabric_settings({"FERRULE_ENCRYPT": "yes"})
    assert fabric_settings(ENCRYPT).encrypt
    assert not fabric_settings({"FERRULE_ENCRYPT": "0"}).encrypt
