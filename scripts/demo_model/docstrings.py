"""Reads the documentation that every Python installation carries: docstrings and `pydoc` topics.

Run as a program it writes what it found as JSON. The corpus is built from that, because a fresh interpreter knows only
the standard library, while one with torch and transformers in it has strangers' methods in `logging` and `inspect`.
"""

import ast
import builtins
import importlib
import inspect
import json
import pydoc_data.topics
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

Kind = Literal["module", "class", "function", "method"]

#: Directories of the standard library that hold tests, applications or other people's packages.
_SKIPPED = """
__pycache__ dist-packages distutils ensurepip idlelib lib2to3 pydoc_data site-packages test tests tkinter turtledemo
"""
SKIPPED = frozenset(_SKIPPED.split())

#: Modules whose objects are described one by one, as Python itself names them (`asyncio.gather`, not
#: `asyncio.tasks.gather`), and with the docstrings of functions written in C.
_WELL_KNOWN = """
abc argparse array ast asyncio base64 bisect bz2 calendar cmath codecs collections collections.abc
concurrent.futures configparser contextlib copy csv ctypes dataclasses datetime decimal difflib doctest email enum
fnmatch fractions functools gc getpass glob gzip hashlib heapq hmac html http http.client http.server importlib
inspect io ipaddress itertools json keyword linecache locale logging lzma math mimetypes multiprocessing numbers
operator os os.path pathlib pickle platform pprint queue random re sched secrets shelve shlex shutil signal socket
socketserver sqlite3 ssl statistics string struct subprocess sys sysconfig tarfile tempfile textwrap threading time
timeit tokenize traceback typing unicodedata unittest urllib.parse urllib.request uuid venv warnings wave
weakref webbrowser xml.etree.ElementTree zipfile zlib zoneinfo
"""
WELL_KNOWN = _WELL_KNOWN.split()

_ROLE = re.compile(r":[a-z:]+:`~?([^`]+)`")


@dataclass(frozen=True)
class Entry:
    """One documented object: its public name, its call signature where it has one, and its docstring."""

    module: str
    name: str
    kind: Kind
    signature: str | None
    doc: str


def tidy(doc: str) -> str:
    """The docstring without reStructuredText roles, doubled quotes and machine addresses."""
    text = inspect.cleandoc(doc).replace("\r", "").replace("``", "`")
    text = _ROLE.sub(r"`\1`", text)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def source_entries() -> Iterator[Entry]:
    """Every docstring in the standard library's source files, in a fixed order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED.isdisjoint(parts) and not parts[0].startswith("config-"):
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield from _walk(ast.parse(path.read_bytes()), name, name, "module")


def _walk(node: ast.AST, module: str, name: str, kind: Kind) -> Iterator[Entry]:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    doc = tidy(ast.get_docstring(node) or "")
    if doc:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        signature = f"{name}({ast.unparse(node.args)})" if is_function else None  # type: ignore[union-attr]
        yield Entry(module, name, kind, signature, doc)
    inner: Kind = "method" if isinstance(node, ast.ClassDef) else "function"
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, module, f"{name}.{child.name}", "class")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _walk(child, module, f"{name}.{child.name}", inner)


def known_entries() -> Iterator[Entry]:
    """The public objects of `builtins` and of the well-known modules, as `help()` shows them."""
    yield from _members(builtins, "builtins", "")
    for name in WELL_KNOWN:
        module = importlib.import_module(name)
        if module.__doc__:
            yield Entry(name, name, "module", None, tidy(module.__doc__))
        yield from _members(module, name, f"{name}.")


def _members(module: ModuleType, module_name: str, prefix: str) -> Iterator[Entry]:
    listed = getattr(module, "__all__", None)
    for name in sorted(listed or vars(module)):
        value = getattr(module, name, None)
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        home = getattr(value, "__module__", None) or module_name
        if listed is None and prefix and home.split(".")[0].lstrip("_") not in (module_name.split(".")[0], "posix"):
            continue  # something the module merely imported
        if inspect.isclass(value):
            yield from _class(value, module_name, prefix + name)
        elif callable(value):
            yield from _entry(value, module_name, prefix + name, "function")


def _class(value: type, module: str, name: str) -> Iterator[Entry]:
    if issubclass(value, BaseException):
        yield from _entry(value, module, name, "class")
        return
    yield from _entry(value, module, name, "class")
    for member in sorted(vars(value)):
        attribute = inspect.getattr_static(value, member)
        if not member.startswith("_") and callable(getattr(attribute, "__func__", attribute)):
            yield from _entry(getattr(value, member), module, f"{name}.{member}", "method")


def _entry(value: Any, module: str, name: str, kind: Kind) -> Iterator[Entry]:
    doc = value.__doc__
    if not isinstance(doc, str) or not doc.strip():
        return
    try:
        signature = name + _arguments(value) if kind != "class" else None
    except (ValueError, TypeError):
        signature = None  # C code without signature text: many of its docstrings begin with one instead
    text = tidy(doc)
    opening = re.compile(rf"(?:\w+\.)?{re.escape(name.rpartition('.')[2])}(\(.*?\))(?:\s*--?>\s*(.*))?$")
    while match := opening.match(text.partition("\n")[0]):
        signature = signature or name + match[1]
        text = text.partition("\n")[2].strip() or (f"Return {match[2]}" if match[2] else "")
    if text:
        yield Entry(module, name, kind, signature, text)


class _Elided:
    def __repr__(self) -> str:
        return "..."


def _arguments(value: Any) -> str:
    """The signature with `...` for defaults that are no literals, or that name a place on this machine."""
    signature = inspect.signature(value)
    parameters = [
        one if _is_plain(one.default) else one.replace(default=_Elided()) for one in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters))


def _is_plain(default: object) -> bool:
    if default == sys.executable:
        return False
    return default is inspect.Parameter.empty or isinstance(default, str | int | float | bytes | tuple | type(None))


def topics() -> dict[str, str]:
    """The language reference as `help("for")` and its kin print it, by topic."""
    return {name: tidy(text) for name, text in sorted(pydoc_data.topics.topics.items())}


@dataclass(frozen=True)
class Documentation:
    """All that one Python installation says about itself."""

    known: tuple[Entry, ...]
    source: tuple[Entry, ...]
    topics: dict[str, str]


def read_documentation() -> Documentation:
    """Entries that a fresh, isolated interpreter of this version finds."""
    run = subprocess.run([sys.executable, "-I", "-S", __file__], capture_output=True, check=True, timeout=300)
    known, source, by_topic = json.loads(run.stdout)
    return Documentation(tuple(Entry(*one) for one in known), tuple(Entry(*one) for one in source), by_topic)


if __name__ == "__main__":
    found = ([astuple(one) for one in known_entries()], [astuple(one) for one in source_entries()], topics())
    sys.stdout.write(json.dumps(found))
