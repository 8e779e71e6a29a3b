"""Structure of the sources: no room names a module of a higher one in a string (import-linter sees imports only), and
no folder has more files than fit on a screen."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES = 20
FOLDERS = ("src", "native", "driver", "tests", "docs")
MODULE = re.compile(r"\bferrule(?:\.[a-z_][a-z_0-9]*)+")


def room_order(pyproject: str) -> list[str]:
    """The rooms as import-linter is told them, the highest first."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if each["type"] == "layers" and "ferrule.cli" in each["layers"]]
    return [layer.strip("()") for layer in contract["layers"]]


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the strings that are statements by themselves: they are for people."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def upward_names(source: str, module: str, rooms: list[str], known: set[str]) -> list[tuple[int, str]]:
    """The lines on which ``module`` names one of the ``known`` modules of a room above its own, and what it names."""
    tree = ast.parse(source)
    prose = docstrings(tree)
    own = room_of(module, rooms)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            for name in MODULE.findall(node.value):
                room = room_of(name, rooms)
                if (
                    own is not None
                    and room is not None
                    and rooms.index(room) < rooms.index(own)
                    and is_known(name, known)
                ):
                    found.append((node.lineno, name))
    return found


def room_of(module: str, rooms: list[str]) -> str | None:
    return next((room for room in rooms if module == room or module.startswith(f"{room}.")), None)


def is_known(name: str, known: set[str]) -> bool:
    """Whether it is a module, or something in one: ``ferrule.plan.make_plan`` as much as ``ferrule.plan``."""
    return name in known or name.rpartition(".")[0] in known


def modules() -> dict[str, Path]:
    files = sorted((ROOT / "src").rglob("*.py"))
    names = [".".join(file.relative_to(ROOT / "src").with_suffix("").parts) for file in files]
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files, strict=True)}


def test_no_string_names_a_module_of_a_higher_room():
    rooms = room_order((ROOT / "pyproject.toml").read_text())
    files = modules()
    found = [
        f"{file.relative_to(ROOT)}:{line} names {name}: have it passed in"
        for module, file in files.items()
        for line, name in upward_names(file.read_text(), module, rooms, set(files))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('COMMAND = ["-m", "ferrule.serve.app"]', [(1, "ferrule.serve.app")]),
        ('"""ferrule.serve.app is above this."""\n\nX = f"import {1} ferrule.serve"', [(3, "ferrule.serve")]),
        ('call("ferrule.serve.app:main")', [(1, "ferrule.serve.app")]),
        ('COMMAND = ["-m", "ferrule.engine.rank"]', []),  # its own room
        ('COMMAND = ["-m", "ferrule.fabric"]', []),  # a lower one
        ('SERVICE = "_ferrule._tcp.local."\nHOST = "ferrule.example.org"', []),
    ],
)
def test_the_check_sees_what_it_is_for(source, expected):
    rooms = ["ferrule.serve", "ferrule.engine", "ferrule.fabric"]
    known = {"ferrule", "ferrule.serve", "ferrule.serve.app", "ferrule.engine.rank", "ferrule.fabric"}
    assert upward_names(source, "ferrule.engine.host.start", rooms, known) == expected


def too_full(files: list[str]) -> list[str]:
    """The folders that hold more than `MOST_FILES` of the ``files`` themselves, and what to do."""
    counts = Counter(file.rpartition("/")[0] for file in files)
    return [
        f"{folder} has {count} files, more than {MOST_FILES}: divide it"
        for folder, count in sorted(counts.items())
        if count > MOST_FILES
    ]


def test_no_folder_is_too_full():
    """Nor one of recorded data, which could be excepted here by name and reason."""
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True)
    assert too_full(tracked.stdout.splitlines()) == []


def test_a_full_folder_is_named():
    files = [f"docs/{number}.md" for number in range(MOST_FILES)]
    assert too_full([*files, "docs/pictures/one.png"]) == []
    assert too_full([*files, "docs/one.md"]) == ["docs has 21 files, more than 20: divide it"]


def test_no_two_test_modules_have_the_same_name():
    """pytest imports them by their names alone, so that the second one would not run."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
