"""Discovery of the backend by torch, and of the ranks by each other."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
import torch.distributed as dist
from torch_ranks import SECONDS

from ferrule import fabric
from ferrule.errors import ConfigError, RendezvousError
from ferrule.torch_backend import autoload, register
from ferrule.torch_backend.meeting import Listening, meet

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which the entry points that pyproject.toml declares are installed."""
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    folder = tmp_path / "installed" / "entry_points_of_ferrule-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: entry-points-of-ferrule\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in declared.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines, ""]))
    path = [str(folder.parent), str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_torchrun_of_a_script_that_does_not_import_ferrule(installed: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE / "torchrun_script.py"), str(tmp_path)]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        seen = (tmp_path / f"rank-{rank}").read_text().splitlines()
        assert seen == ["FabricProcessGroup [3.0, 3.0, 3.0]"] * 2


@pytest.mark.slow
def test_importing_it_first_where_torch_also_loads_it(installed: dict[str, str]) -> None:
    """torch calls the entry point while ``import ferrule.torch`` is still importing torch."""
    code = (
        "import sys, ferrule.torch; assert 'ferrule.fabric' not in sys.modules; "
        "import torch.distributed as dist; assert dist.is_backend_available('ferrule')"
    )
    subprocess.run([sys.executable, "-c", code], env=installed, timeout=SECONDS, check=True)


@pytest.mark.slow
def test_a_ferrule_in_which_all_else_is_broken_does_not_break_import_torch(tmp_path: Path) -> None:
    """Every other module raises when it is imported: a native module of another Python, no numpy, no msgspec, …

    Its metadata is lost, too, as where an installation was broken off.
    """
    package, kept = tmp_path / "ferrule", ("__init__.py", "torch_backend/__init__.py", "torch_backend/registration.py")
    for source in (PROJECT / "src" / "ferrule").rglob("*.py"):
        name = source.relative_to(PROJECT / "src" / "ferrule")
        target = package / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text() if str(name) in kept else "raise SystemError('broken')")
    (package / "_native.abi3.so").write_bytes(b"not a library")
    info = tmp_path / "ferrule-0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[torch.backends]\nferrule = ferrule.torch_backend:autoload\n")
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(name='numpy')")
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch_folder = Path(found.origin).parents[1]
    code = f"""
import sys
sys.path[:0] = [{str(tmp_path)!r}, {str(torch_folder)!r}]
import torch, torch.distributed as dist
loaded = sorted(name for name in sys.modules if name.partition(".")[0] == "ferrule")
assert loaded == ["ferrule", "ferrule.torch_backend", "ferrule.torch_backend.registration"], loaded
assert sys.modules["ferrule"].__file__.startswith({str(tmp_path)!r})
assert dist.is_backend_available("ferrule")
try:
    dist.init_process_group("ferrule", store=dist.HashStore(), rank=0, world_size=1)
except SystemError as error:
    assert str(error) == "broken"
else:
    raise AssertionError("a group was made of broken parts")
"""
    # -S: without the paths and import hooks of the environment, which would find the whole Ferrule.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_entry_point_is_tiny() -> None:
    """Ferrule's part in ``import torch`` neither imports another room nor looks through what is installed."""
    code = (
        f"import sys; sys.path.insert(0, {str(PROJECT / 'src')!r}); import ferrule.torch_backend\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "found = {name for name in sys.modules if name.partition('.')[0] == 'ferrule'}\n"
        "assert found == {'ferrule', 'ferrule.torch_backend', 'ferrule.torch_backend.registration'}, found"
    )
    subprocess.run([sys.executable, "-S", "-c", code], timeout=SECONDS, check=True)


def test_import_torch_survives_a_backend_that_cannot_be_registered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("other arguments in this torch")

    monkeypatch.setattr(dist.Backend, "backend_list", [])
    monkeypatch.setattr(dist.Backend, "register_backend", refuse)
    autoload()
    assert "cannot use the backend ferrule" in caplog.text
    with pytest.raises(TypeError):
        register()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in os.environ:
        if name.startswith("FERRULE_") or name == "MASTER_ADDR":
            monkeypatch.delenv(name)
    return monkeypatch


def both(store: dist.Store, timeout: float = 20.0) -> Iterator[Any]:
    """Two ranks that meet in two threads of this process: what each of them got, a group or an error."""
    found: list[Any] = [None, None]

    def join(rank: int) -> None:
        try:
            found[rank] = meet(store, rank, 2, timeout)
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            found[rank] = error

    threads = [Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return iter(found)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", f"{os.uname().nodename}:1"])
def test_groups_over_one_store(environment: pytest.MonkeyPatch, address: str) -> None:
    environment.setenv("FERRULE_ADDRESS", address)
    store = dist.HashStore()
    for _ in range(2):
        first, second = both(store)
        assert isinstance(first, fabric.Group), first
        assert isinstance(second, fabric.Group), second
        assert (first.rank, second.rank, first.size) == (0, 1, 2)
        assert first._core.timeout == 20.0
        first.abort()
        second.abort()
    assert not any("key" in str(store.get(name)) for name in ("ferrule/1", "ferrule/2") if store.check([name]))


def test_address_of_another_machine(environment: pytest.MonkeyPatch) -> None:
    """Rank 0 of the group is not where the job's rank 0 is: it listens on its own address on the way there."""
    environment.setenv("MASTER_ADDR", "192.0.2.1")
    first, second = both(dist.HashStore())
    assert isinstance(first, fabric.Group | RendezvousError), first
    if isinstance(first, RendezvousError):  # a machine without a route to anywhere
        assert "no way from here to 192.0.2.1" in str(first)
        assert "no way from here to 192.0.2.1" in str(second)
    else:
        first.abort()


def test_own_key_is_not_told(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FERRULE_KEY", "12" * 32)
    told = []

    class Spy(dist.Store):
        """Sees what is written."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = dist.HashStore()

        def set(self, name: str, value: str) -> None:
            told.append(value)
            self.inner.set(name, value)

        def __getattribute__(self, name: str) -> Any:
            if name in ("add", "get", "wait", "delete_key"):
                return getattr(super().__getattribute__("inner"), name)
            return super().__getattribute__(name)

    first, second = both(Spy())
    assert isinstance(first, fabric.Group), first
    assert isinstance(second, fabric.Group), second
    first.abort()
    assert [json.loads(word)["key"] for word in told] == [""]


@pytest.mark.parametrize(("own", "told"), [("34" * 32, "12" * 32), ("", "")])
def test_key_of_some_ranks_only(environment: pytest.MonkeyPatch, own: str, told: str) -> None:
    environment.setenv("FERRULE_KEY", own)
    store = dist.HashStore()
    word = Listening("127.0.0.1", 1, bytes.fromhex(told))
    store.set("ferrule/1", msgspec.json.encode(word).decode())
    with pytest.raises(ConfigError, match="FERRULE_KEY is set for"):
        meet(store, 1, 2, 5.0)


@pytest.mark.parametrize("word", ["", "{}", '{"type":"listening","host":"a","port":70000,"key":""}', " " * (1 << 17)])
def test_word_that_rank_0_does_not_say(environment: pytest.MonkeyPatch, word: str) -> None:
    store = dist.HashStore()
    store.set("ferrule/1", word)
    with pytest.raises(RendezvousError, match="does not say"):
        meet(store, 1, 2, 5.0)


def test_rank_0_that_does_not_come(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(RendezvousError, match=r"rank 0 of the group has not told .* within 0\.2 s"):
        meet(dist.HashStore(), 1, 2, 0.2)


def test_rank_0_that_cannot_listen(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("FERRULE_ADDRESS", "no-such-host.invalid:1")
    first, second = both(dist.HashStore())
    assert isinstance(first, RendezvousError)
    assert "no-such-host.invalid" in str(first)
    assert isinstance(second, RendezvousError)
    assert "rank 0 of the group could not start" in str(second)
