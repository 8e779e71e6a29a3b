"""Turns documentation and our own written answers into chat-shaped text.

Every question has one true answer, but is asked in a different way each time it is drawn, so that the model learns
what is asked rather than one spelling of it.
"""

import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_model.docstrings import Entry

Turn = tuple[str, str]

#: First words of docstrings that are verbs in the imperative; "Return the ..." becomes "`f` returns the ...".
_VERBS = """
Acquire Add Append Apply Arrange Assert Bind Block Calculate Call Cancel Change Check Choose Clean Clear Close
Collapse Collect Combine Compare Compile Compress Compute Concatenate Configure Connect Construct Convert Copy
Create Decide Decode Decompress Delay Delegate Delete Deserialize Determine Disable Disassemble Discard Display
Divide Do Dump Emit Enable Encode Ensure Escape Evaluate Execute Expand Extend Extract Fail Feed Fill Find Finish
Flush Force Format Generate Get Guess Handle Import Indicate Initialize Insert Install Invoke Iterate Join Kill List
Load Log Make Map Mark Move Multiply Normalize Obtain Open Override Pack Pad Parse Partition Perform Pop Prepare
Print Process Produce Provide Push Put Raise Read Receive Register Release Remove Rename Replace Report Represent
Request Reset Resolve Restore Retrieve Return Reverse Round Run Scan Schedule Search Send Serialize Serve Set
Shuffle Shut Skip Sort Split Square Start Stop Strip Subtract Sum Suspend Take Terminate Test Transform Translate
Truncate Try Turn Unpack Update Use Validate Verify Wait Wake Walk Warn Wrap Write Yield
"""
VERBS = frozenset(_VERBS.split())

ABOUT = (
    "What does {name} do?",
    "What does {name} do?",
    "What does {name}() do?",
    "what does {name} do",
    "What is {name}?",
    "what is {name}",
    "What is {name} for?",
    "Explain {name}.",
    "Explain `{name}`",
    "Tell me about {name}.",
    "How does {name} work?",
    "How do I use {name}?",
    "What does Python's {name} do?",
    "{name}?",
    "Describe {name}",
    "Can you explain {name}?",
)
CALLED = (
    "Show me the signature of {name}.",
    "What is the signature of {name}?",
    "What arguments does {name} take?",
    "How do I call {name}?",
    "Which parameters does {name} have?",
    "signature of {name}",
)
ABOUT_MODULE = (
    "What is the {name} module?",
    "What is the {name} module for?",
    "what is the {name} module",
    "What does the {name} module do?",
    "Tell me about the {name} module.",
    "Explain the {name} module",
    "What is {name}?",
    "What can I do with {name}?",
    "When would I use {name}?",
    "Write about the {name} module.",
)
INSIDE_MODULE = (
    "What functions are in {name}?",
    "What is in the {name} module?",
    "Which functions does {name} have?",
    "List some functions of the {name} module.",
)
HOW_TO = (
    "How do I {task}?",
    "how do I {task}",
    "How can I {task} in Python?",
    "How to {task}?",
    "Which function can {task}?",
)
SYSTEM = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a helpful, honest assistant. Answer briefly.",
    "You answer questions about Python.",
    "Be concise.",
    "You are Ferrule's demonstration model.",
)


@dataclass(frozen=True)
class Lesson:
    """One answer and the ways to ask for it; `weight` is how often it is drawn in one pass."""

    questions: tuple[str, ...]
    answer: str
    weight: float = 1.0


def third_person(verb: str) -> str:
    """The verb as it follows "it": "return" gives "returns"."""
    if re.search(r"(s|x|z|ch|sh|o)$", verb):
        return verb + "es"
    return verb[:-1] + "ies" if re.search(r"[^aeiou]y$", verb) else verb + "s"


def _inflect(match: re.Match[str]) -> str:
    return f"{match[1]} {third_person(match[2])}"


def shorten(doc: str, limit: int) -> str:
    """The first paragraphs of a docstring up to `limit` characters, its lines joined, cut after a whole sentence."""
    kept: list[str] = []
    for paragraph in doc.split("\n\n"):
        lines = paragraph.split("\n")
        if kept and (paragraph.startswith((" ", ">>>", "-", "*")) or any(line.startswith("   ") for line in lines)):
            break  # a list, a table or an example: not prose
        text = re.sub(r"\s+", " ", paragraph).strip()
        room = limit - sum(map(len, kept))
        if len(text) > room:
            sentences = re.findall(r"\S.*?[.!?](?=\s|$)", text)
            while sentences and len(" ".join(sentences)) > room:
                sentences.pop()
            text = " ".join(sentences)
            if not text and not kept:
                return re.sub(r"\s+\S*$", "", paragraph[:limit].replace("\n", " ")) + " ..."
            return " ".join([*kept, text]).strip()
        kept.append(text if text.endswith((".", ":", "!", "?")) else text + ".")
    return " ".join(kept).removesuffix(":")


def describe(entry: Entry, limit: int = 300) -> str:
    """One to three sentences about the object that begin with its name."""
    text = shorten(entry.doc, limit)
    first, _, rest = text.partition(" ")
    head, dot, tail = rest.partition(". ")
    rest = re.sub(r"\b(and|or|then) (return|raise|yield|write|read|close)\b", _inflect, head) + dot + tail
    if entry.kind == "module":
        return f"The `{entry.name}` module: {text}"
    if first in VERBS:
        return f"`{entry.name}` {third_person(first.lower())} {rest}"
    if first.removesuffix("s") in VERBS:
        return f"`{entry.name}` {first.lower()} {rest}"
    if entry.kind == "class" and first in ("A", "An", "The"):
        return f"`{entry.name}` is {first.lower()} {rest}"
    return f"`{entry.name}`: {text}"


def entry_lessons(entry: Entry, weight: float) -> Iterator[Lesson]:
    """Questions about one documented object, with answers."""
    about = ABOUT_MODULE if entry.kind == "module" else ABOUT
    yield Lesson(tuple(q.format(name=entry.name) for q in about), describe(entry), weight)
    if entry.signature and len(entry.signature) < 160:
        answer = f"`{entry.signature}`\n\n{describe(entry, 120)}"
        yield Lesson(tuple(q.format(name=entry.name) for q in CALLED), answer, weight / 5)
    first, _, rest = shorten(entry.doc, 90).partition(" ")
    if entry.kind in ("function", "method") and first in VERBS and re.fullmatch(r".{12,}[^.]\.", rest):
        task = ("get" if first == "Return" else first.lower()) + " " + rest.removesuffix(".")
        answer = f"Use `{entry.name}`. It {third_person(first.lower())} {rest}"
        yield Lesson(tuple(q.format(task=task) for q in HOW_TO), answer, weight / 5)


def module_lessons(entries: Iterable[Entry], weight: float) -> Iterator[Lesson]:
    """Questions about the functions of each module, with up to ten names."""
    inside: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "function" and entry.module != "builtins":
            inside[entry.module].append(entry.name.rpartition(".")[2])
    for module, names in inside.items():
        if len(names) > 2:
            listed = ", ".join(f"`{name}`" for name in names[:10])
            more = " and others" if len(names) > 10 else ""
            questions = tuple(q.format(name=module) for q in INSIDE_MODULE)
            yield Lesson(questions, f"The `{module}` module has {listed}{more}.", weight)


@dataclass(frozen=True)
class Written:
    """Our own answers, the modules and names they describe, and the names that people ask about most."""

    lessons: tuple[Lesson, ...]
    described: frozenset[str]
    essential: frozenset[str]


def read_written(path: Path) -> Written:
    """Reads our own answers from a TOML file."""
    data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    lessons = [Lesson(tuple(talk["ask"]), talk["answer"].strip(), talk["weight"]) for talk in data["talk"]]
    for name, answer in data["modules"].items():
        lessons.append(Lesson(tuple(q.format(name=name) for q in (*ABOUT_MODULE, *ABOUT[:2])), answer, 3.0))
    for name, answer in data["names"].items():
        lessons.append(Lesson(tuple(q.format(name=name) for q in ABOUT), answer, 3.0))
    return Written(tuple(lessons), frozenset({*data["modules"], *data["names"]}), frozenset(data["essential"]))


def draw(lessons: list[Lesson], rng: random.Random) -> Iterator[list[Turn]]:
    """One pass over the lessons as conversations of one to three turns, some under a system message."""
    chosen = [lesson for lesson in lessons for _ in range(int(lesson.weight + rng.random()))]
    rng.shuffle(chosen)
    while chosen:
        turns: list[Turn] = [("system", rng.choice(SYSTEM))] if rng.random() < 0.2 else []
        for _ in range(rng.choices((1, 2, 3), (0.8, 0.14, 0.06))[0]):
            if chosen:
                lesson = chosen.pop()
                turns += [("user", rng.choice(lesson.questions)), ("assistant", lesson.answer)]
        yield turns
