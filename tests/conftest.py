"""Fixtures for all rooms."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ferrule import lab
from ferrule.errors import LabError
from ferrule.lab import vm

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # how long an example takes says more of the machine than of the code

# The settings and API keys of this machine's user are not those of the tests.
os.environ["FERRULE_CONFIG"] = os.devnull
os.environ["FERRULE_KEYS_FILE"] = f"{os.devnull}/none"

# Where Python is told not to keep compiled modules, each process that a test starts would compile all of Ferrule.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if "PYTEST_XDIST_WORKER" in os.environ:  # processes that share the cores: threads of one would wait for the others'
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shells start jobs in the background so, and all programs that a test starts would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


HEAVY_FOLDER = Path(__file__).parent / "e2e"
HEAVY_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.(slow|soak)\b", re.MULTILINE)
SOAK_SECONDS = 4 * 3600
LONG_ROOMS = ("vm", "driver")
"""Their tests take minutes each: they are first, so that no process waits for the last of them at the end."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Quick and slow tests begin sooner without the imports of files that have none."""
    quick, slow = (config.option.markexpr == expression for expression in ("not slow and not soak", "slow"))
    if not quick and not slow:
        return None
    if collection_path.suffix != ".py":
        return (quick and collection_path == HEAVY_FOLDER) or None
    text = collection_path.read_text()
    return (HEAVY_FILE.search(text) is not None if quick else "mark.slow" not in text) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.relative_to(config.rootpath / "tests").parts[0] not in LONG_ROOMS)
    for item in items:
        if item.get_closest_marker("soak") is not None:
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS))


@pytest.fixture(scope="session")
def vm_lab() -> vm.VmLab:
    """A VM lab whose parts are all fetched.

    Tests that ask for it are skipped on systems that it does not support, and where the parts cannot be fetched; but
    the latter is a failure in CI.
    """
    reason = vm.obstacle()
    if reason is not None:
        pytest.skip(reason)
    try:
        machines = vm.VmLab()
        machines.prepare()
    except LabError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the VM lab's parts cannot be had: {error}")
    return machines


@pytest.fixture(scope="session")
def emulated_hosts() -> None:
    """For tests with a `ferrule.lab.Lab`: skipped, with the reason, where none can be; as root in CI they fail."""
    reason = lab.obstacle()
    if reason is not None:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)
