"""Stored results of the reference for later starts: a model is read in one piece only once."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import transformers

from ferrule.engine.selftest.compare import Rows
from ferrule.engine.selftest.prompts import long_rows, long_tokens, prefixes, short_rows, token_ids
from ferrule.engine.selftest.reference import Reference
from ferrule.engine.weights.checkpoint import Checkpoint
from ferrule.files import cache_directory

VERSION = 1

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Case:
    """One fingerprint: of the model ``identity`` with prompts that fit ``context``; the long prompt goes through the
    first ``most_layers`` layers (those of the first stage) at the most. ``weights``: as in `Checkpoint`."""

    identity: str
    vocabulary: int
    context: int
    most_layers: int
    weights: str | None = None

    def file(self) -> Path:
        parts = (VERSION, transformers.__version__, self.vocabulary, prefixes(self.context), long_tokens(self.context))
        parts = (*parts, self.most_layers, *([self.weights] if self.weights else []))
        told = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()
        return cache_directory() / "fingerprints" / f"{self.identity}-{told}.npz"


@dataclass(frozen=True)
class Fingerprint:
    """``short``: logits; ``long``: hidden states after ``depth`` layers, no rows where there is no long prompt."""

    short: Rows
    long: Rows
    depth: int

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.savez(file, short=self.short, long=self.long, depth=np.array(self.depth))
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Fingerprint:
        """Raises `ValueError` where ``data`` is none."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as found:
                return cls(found["short"], found["long"], int(found["depth"]))
        except (KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(str(error)) from None


def recall(case: Case) -> Fingerprint | None:
    """Fingerprint that an earlier start kept, if it did."""
    try:
        return Fingerprint.from_bytes(case.file().read_bytes())
    except (OSError, ValueError, RuntimeError):  # not there, damaged, or no home
        return None


def compute(directory: Path, case: Case, on_progress: OnProgress) -> Fingerprint:
    """Read the model of ``directory`` in one piece, and keep what it computes where that can be written."""
    with Checkpoint(directory, case.weights) as checkpoint:
        reference = Reference(directory, checkpoint, on_progress)
        lengths = prefixes(case.context)
        rows = short_rows(lengths)
        short = reference.logits(token_ids(rows[-1] + 1, case.vocabulary), rows)
        long, depth = np.empty((0, 0), dtype=np.float32), 0
        tokens = long_tokens(case.context)
        if tokens:
            depth = reference.depth(tokens, case.most_layers)
            long = reference.hidden(token_ids(tokens, case.vocabulary), long_rows(tokens), depth)
    found = Fingerprint(short, long, depth)
    try:
        file = case.file()
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        fresh.write_bytes(found.to_bytes())
        fresh.replace(file)
    except (OSError, RuntimeError):
        pass  # the next start computes it again
    return found
