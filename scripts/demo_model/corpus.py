"""The whole training text: documents to read and lessons to answer, with a hash that names it."""

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from demo_model.conversations import Lesson, draw, entry_lessons, module_lessons, read_written
from demo_model.docstrings import Entry, read_documentation

WRITTEN = Path(__file__).parent / "written.toml"

#: How often one pass over the lessons asks about a name: `essential` ones, well-known ones, all the others.
ESSENTIAL, KNOWN, OTHER = 3.0, 0.6, 0.12


@dataclass(frozen=True)
class Corpus:
    """Plain documents (one per module or language topic) and the lessons of the chat."""

    documents: tuple[str, ...]
    lessons: tuple[Lesson, ...]

    @property
    def sha256(self) -> str:
        """The hash over all text and weights: equal hashes mean equal training data."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(document.encode() + b"\0")
        for lesson in self.lessons:
            digest.update(repr((lesson.questions, lesson.answer, lesson.weight)).encode() + b"\0")
        return digest.hexdigest()

    def texts(self) -> Iterator[str]:
        """Everything once, for training the tokenizer: documents, and one pass of conversations twice over."""
        yield from self.documents
        for seed in range(2):
            for turns in draw(list(self.lessons), random.Random(seed)):
                yield from (text for _, text in turns)


def build(limit: int | None = None) -> Corpus:
    """The corpus of the Python that runs this; `limit` keeps only that many documented objects (for smoke runs)."""
    documentation = read_documentation()
    known, source = documentation.known[:limit], documentation.source[:limit]
    written = read_written(WRITTEN)
    lessons = list(written.lessons)
    told = {entry.doc for entry in known}
    for entry in known:
        if entry.name not in written.described:
            lessons += entry_lessons(entry, ESSENTIAL if entry.name in written.essential else KNOWN)
    lessons += module_lessons(known, KNOWN)
    for entry in source:
        if (
            entry.doc not in told
            and entry.name not in written.described
            and not any(part.startswith("_") for part in entry.name.split("."))
        ):
            lessons += entry_lessons(entry, OTHER)
    documents = [*_documents(source, known), *(documentation.topics.values() if limit is None else ())]
    return Corpus(tuple(documents), tuple(lessons))


def _documents(source: Iterable[Entry], known: Iterable[Entry]) -> Iterator[str]:
    seen: set[str] = set()
    modules: dict[str, list[str]] = defaultdict(list)
    for entry in (*source, *known):
        if entry.doc not in seen:
            seen.add(entry.doc)
            modules[entry.module].append(f"{entry.signature or entry.name}\n{entry.doc}")
    yield from ("\n\n".join(parts) for parts in modules.values())
