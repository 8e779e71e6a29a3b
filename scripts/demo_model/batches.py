"""Packs documents and conversations into rows of equal length, always in the same order for the same seed."""

import random
from collections.abc import Iterator

import torch
from transformers import PreTrainedTokenizerFast

from demo_model.conversations import draw
from demo_model.corpus import Corpus
from demo_model.tokens import encode_chat, encode_plain

Piece = tuple[list[int], list[int]]

#: Pieces that may wait for a row with enough room before a batch is closed; more waste fewer places.
_WAITING = 24


def plain_pieces(corpus: Corpus, tokenizer: PreTrainedTokenizerFast, row: int, rng: random.Random) -> Iterator[Piece]:
    """Documents for ever, in a new order each pass, cut at another place each pass into pieces of at most `row`."""
    encoded = [encode_plain(tokenizer, document) for document in corpus.documents]
    while True:
        cuts: list[Piece] = []
        for ids, labels in encoded:
            start = 0
            stop = rng.randint(row // 4, row)
            while start < len(ids):
                cuts.append((ids[start:stop], labels[start:stop]))
                start, stop = stop, stop + row
        rng.shuffle(cuts)
        yield from cuts


def chat_pieces(corpus: Corpus, tokenizer: PreTrainedTokenizerFast, row: int, rng: random.Random) -> Iterator[Piece]:
    """Conversations for ever; the few that are longer than a row are cut at its end."""
    while True:
        for turns in draw(list(corpus.lessons), rng):
            ids, labels = encode_chat(tokenizer, turns)
            yield ids[:row], labels[:row]


class Packer:
    """Makes batches of `rows` x `row` tokens from both kinds of pieces."""

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerFast, rows: int, row: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._plain = plain_pieces(corpus, tokenizer, row, random.Random(seed + 1))
        self._chat = chat_pieces(corpus, tokenizer, row, random.Random(seed + 2))
        self._rows, self._row, self._pad = rows, row, tokenizer.pad_token_id
        self._waiting: list[Piece] = []

    def batch(self, plain_share: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and labels, each [rows, row] int64.

        About `plain_share` of the tokens are plain documents, and at least one piece is: on rows as long as the context
        that piece alone is a good part of the batch.
        """
        packed: list[Piece] = [([], []) for _ in range(self._rows)]
        offered, self._waiting = self._waiting, []
        plain = total = 0
        while len(self._waiting) < _WAITING:
            if offered:
                piece = offered.pop()
            else:
                is_plain = plain <= plain_share * total
                piece = next(self._plain if is_plain else self._chat)
                total += len(piece[0])
                plain += len(piece[0]) if is_plain else 0
            home = next((one for one in packed if len(one[0]) + len(piece[0]) <= self._row), None)
            if home is None:
                self._waiting.append(piece)
            else:
                home[0].extend(piece[0])
                home[1].extend(piece[1])
        self._rng.shuffle(self._waiting)
        ids = [one[0] + [self._pad] * (self._row - len(one[0])) for one in packed]
        labels = [one[1] + [-100] * (self._row - len(one[1])) for one in packed]
        return torch.tensor(ids), torch.tensor(labels)
