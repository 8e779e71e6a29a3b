"""The file lists of CONTRIBUTING.md: every file is there, and what is registered today is imported by no other file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from ferrule.engine.devices.accelerator import TorchAccelerator
from ferrule.engine.devices.cpu import CpuDevice
from ferrule.engine.devices.emulated.device import EmulatedDevice
from ferrule.engine.weights.formats.registry import FORMATS
from ferrule.fabric.transports.table import TRANSPORTS
from ferrule.links.doctor import diagnosis

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"^### Add an? ([^\n]+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"^- ((?:`[^`]+`(?:, )?)+): \S", re.MULTILINE)
LISTS = {
    title: [path for line in LISTED.findall(text) for path in re.findall(r"`([^`]+)`", line)]
    for title, text in SECTION.findall((ROOT / "CONTRIBUTING.md").read_text())
}


def files() -> list[str]:
    """Files that git knows, without those that are about to be deleted."""
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in known.stdout.splitlines() if (ROOT / name).is_file()]


def imported(source: str) -> set[str]:
    """The modules, and names of modules, that ``source`` imports, however that is written."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found |= {f"{node.module}.{one.name}" for one in node.names}
    return found


@cache
def product() -> dict[str, tuple[str, set[str]]]:
    """By file: its text and what it imports."""
    texts = {name: (ROOT / name).read_text() for name in files() if re.match(r"src/.*\.py$", name)}
    return {name: (text, imported(text)) for name, text in texts.items()}


def users(module: str, name: str) -> set[str]:
    """The product's files that use ``name`` of ``module``, without that module itself."""
    used = re.compile(rf"\b{module.rpartition('.')[2]}\.{name}\b")
    return {
        file
        for file, (text, modules) in product().items()
        if f"{module}.{name}" in modules or (module in modules and used.search(text))
    }


def test_the_page_tells_how_to_add_each_thing() -> None:
    things = {"transport", "doctor check", "weight format", "device", "family of models", "guest", "API"}
    assert set(LISTS) == things | {"page of documentation"}
    assert all(len(paths) >= 3 and "CHANGELOG.md" in paths for paths in LISTS.values())


@pytest.mark.parametrize(("title", "path"), [(title, path) for title, paths in LISTS.items() for path in paths])
def test_every_file_is_there(title: str, path: str) -> None:
    """With ``NAME``, where a new one comes to lie: its folder."""
    place = path.partition("NAME")[0]
    folder = ROOT / (place if "NAME" not in path else place.rpartition("/")[0])
    assert folder.exists(), f"CONTRIBUTING.md, Add a {title}: there is no {path}"


def additions() -> list[tuple[str, str, str]]:
    """Title of the list, module and name of whatever is registered today."""
    return [
        *(("transport", type(one).__module__, type(one).__name__) for one in TRANSPORTS),
        *(("doctor check", check.__module__, check.__name__) for check in diagnosis._CHECKS),
        *(("weight format", type(one).__module__, type(one).__name__) for one in FORMATS),
        *(("device", one.__module__, one.__name__) for one in (CpuDevice, TorchAccelerator, EmulatedDevice)),
    ]


@pytest.mark.parametrize(("title", "module", "name"), additions())
def test_only_files_of_the_list_use_one(title: str, module: str, name: str) -> None:
    """So the next one need not touch any other."""
    found = users(module, name)
    assert found, f"{module}.{name} is used by nothing"
    others = {file for file in found if not any(file.startswith(path) for path in LISTS[title])}
    assert not others, f"CONTRIBUTING.md, Add a {title}: {', '.join(sorted(others))} use {module}.{name} too"


def test_the_transports_are_listed_nowhere_else() -> None:
    """Not even in prose, nor in a page of documentation: a new one would be missing there."""
    names = [re.compile(rf"\b{one.name}\b") for one in TRANSPORTS]
    pages = {name: (ROOT / name).read_text() for name in files() if re.match(r"(docs/.*|README)\.md$", name)}
    texts = {**pages, **{name: text for name, (text, _) in product().items()}}
    listing = {
        file
        for file, text in texts.items()
        if any(all(name.search(line) for name in names) for line in text.splitlines())
    }
    assert {file for file in listing if not any(file.startswith(path) for path in LISTS["transport"])} == set()


def test_what_names_most_formats_is_listed() -> None:
    """Tests and pages, too: a new one would be missing there."""
    names = [re.compile(re.escape(one.name).replace(r"\-", "[-_]"), re.IGNORECASE) for one in FORMATS]
    texts = {name: (ROOT / name).read_text() for name in files() if name.endswith((".py", ".md"))}
    naming = {
        file for file, text in texts.items() if 3 * sum(bool(name.search(text)) for name in names) >= 2 * len(names)
    }
    assert "README.md" in naming
    assert {file for file in naming if not any(file.startswith(path) for path in LISTS["weight format"])} == set()


def test_formats_are_looked_at_without_torch() -> None:
    """As the page asks for: None in its place makes every import of it fail."""
    program = "import sys; sys.modules['torch'] = None; import ferrule.engine.weights.formats"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr


def test_imports_are_seen_however_they_are_written() -> None:
    assert imported("import a.b.c") == {"a.b.c"}
    assert imported("from a.b import c, d as e") == {"a.b.c", "a.b.d"}
    assert imported("def f():\n    from a import b") == {"a.b"}
