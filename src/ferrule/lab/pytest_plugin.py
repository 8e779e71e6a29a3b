"""Emulated machines and cables for tests of one's own.

In a ``conftest.py``::

    pytest_plugins = ["ferrule.lab.pytest_plugin"]

and in a test::

    from ferrule.lab import pair

    def test_it_survives_a_pulled_cable(ferrule_lab):
        lab = ferrule_lab(pair().shaped(rate=10e9, delay=10e-6))   # or ferrule_lab("two-strix")
        server = lab.popen(1, ["my-server"])
        lab.cables[0].cut()

The lab, and all that was started in it, is gone when the test ends. Where there can be no lab the test is skipped, with
the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ferrule.lab import Lab, Topology, find_lab, obstacle

MakeLab = Callable[..., Lab]


@pytest.fixture
def ferrule_lab() -> Iterator[MakeLab]:
    """A function that brings up a lab until the test ends: of a `Topology`, of a profile's name, or of a TOML file.

    Further arguments are those of `Lab`. It may be called several times: labs never meet.
    """
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as labs:

        def make(wanted: Topology | str, **options: Any) -> Lab:
            if isinstance(wanted, str):
                profile = find_lab(wanted)
                return labs.enter_context(Lab(profile.topology, **({"names": profile.hosts} | options)))
            return labs.enter_context(Lab(wanted, **options))

        yield make
