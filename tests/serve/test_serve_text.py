"""Detokenising and stop strings: the pieces must add up, whatever the tokens and the chunks."""

from __future__ import annotations

import pytest
from fake_engine import END, TEXT, TinyTokenizer, byte_level, sentencepiece_like
from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine import Token
from ferrule.serve.answer.text import Detokenizer, StopScanner, Vocabulary
from ferrule.serve.answer.transcript import Transcript

BYTES = byte_level()
PIECES = sentencepiece_like()
VOCABULARIES = {"byte-level": Vocabulary(BYTES), "sentencepiece": Vocabulary(PIECES)}


def stream(tokenizer: TinyTokenizer, tokens: list[int], context: list[int] | None = None) -> list[str]:
    kind = "byte-level" if tokenizer is BYTES else "sentencepiece"
    detokenizer = Detokenizer(VOCABULARIES[kind], context or [])
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@given(st.text(max_size=60))
def test_text_survives_being_cut_into_tokens(text: str) -> None:
    pieces = stream(BYTES, BYTES.encode(text))
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, BYTES.backend.get_vocab_size() - 1), max_size=120))
def test_any_byte_level_tokens_give_the_whole_decoded_text(tokens: list[int]) -> None:
    assert "".join(stream(BYTES, tokens)) == BYTES.decode(tokens)


@given(st.text(alphabet="ab éü你🙂", max_size=40))
def test_sentencepiece_keeps_spaces_and_bytes(text: str) -> None:
    tokens = PIECES.encode(text)
    pieces = stream(PIECES, tokens)
    assert "".join(pieces) == PIECES.decode(tokens)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_continuation_keeps_its_first_space() -> None:
    prompt, rest = PIECES.encode("a b"), [PIECES.backend.token_to_id("▁the")]
    assert "".join(stream(PIECES, rest, prompt)) == " the"
    assert "".join(stream(PIECES, rest)) == "the"


def test_a_character_begun_in_the_prompt_is_finished() -> None:
    tokens = BYTES.encode("你界")
    cut = next(at for at in range(1, len(tokens)) if BYTES.decode(tokens[:at]).endswith("\ufffd"))
    assert BYTES.decode(tokens[:cut]).rstrip("\ufffd") + "".join(stream(BYTES, tokens[cut:], tokens[:cut])) == "你界"


def test_special_tokens_have_no_text_and_cut_nothing() -> None:
    end = PIECES.backend.token_to_id(END)
    a, b = PIECES.backend.token_to_id("▁a"), PIECES.backend.token_to_id("▁b")
    assert "".join(stream(PIECES, [a, end, b, end])) == "a b"


def test_broken_bytes_are_let_go_and_the_next_character_is_whole() -> None:
    broken = BYTES.backend.token_to_id(BYTES.backend.encode("é").tokens[0][0])
    tokens = [broken] * 300 + BYTES.encode("你!")
    pieces = stream(BYTES, tokens)
    assert "".join(pieces) == BYTES.decode(tokens)
    assert sum(map(len, pieces[:250])) > 100, "a long run of broken bytes is not held for ever"


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The plain reading of the rule: the stop string that is complete first; of several, the longest."""
    for end in range(1, len(text) + 1):
        ending = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(ending)], True
    return text, False


@given(
    st.lists(st.text(alphabet="abc", max_size=4), max_size=12),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
)
def test_text_is_cut_at_the_first_stop_however_it_is_chunked(chunks: list[str], stops: list[str]) -> None:
    scanner = StopScanner(stops)
    emitted, stopped = "", False
    expected = cut_at_first_stop("".join(chunks), stops)
    for chunk in chunks:
        scanned = scanner.push(chunk)
        emitted += scanned.text
        assert expected[0].startswith(emitted), "nothing of a stop string is ever sent"
        if scanned.stopped:
            stopped = True
            break
    else:
        emitted += scanner.flush()
    assert (emitted, stopped) == expected


def test_text_is_held_only_while_it_may_become_a_stop() -> None:
    scanner = StopScanner(["</s>"])
    assert scanner.push("ab<").text == "ab"
    assert scanner.push("/").text == ""
    assert scanner.push("x").text == "</x"
    assert scanner.flush() == ""


@pytest.mark.parametrize("stops", [(), (" lazy",), ("fox jumps",), ("世",), ("not there",)])
def test_a_transcript_reports_the_log_probabilities_of_what_it_sends(stops: tuple[str, ...]) -> None:
    transcript = Transcript(VOCABULARIES["byte-level"], stops)
    tokens = BYTES.encode(TEXT)
    pieces = []
    for at, token in enumerate(tokens):
        piece = transcript.push(Token(token, -1.0, ((token, -1.0),), "length" if at + 1 == len(tokens) else None))
        if piece is not None:
            pieces.append(piece)
            if piece.finish:
                break
    text = "".join(piece.text for piece in pieces)
    entries = [entry for piece in pieces for entry in piece.logprobs]
    assert text == cut_at_first_stop(TEXT, list(stops))[0]
    assert all(entry.offset < len(text) for entry in entries)
    for entry in entries:
        assert "\ufffd" in entry.text or text[entry.offset :].startswith(entry.text[: len(text) - entry.offset])
    whole = [entry for entry in entries if "\ufffd" not in entry.text]
    assert whole[0].offset == 0
    assert [entry.offset for entry in entries] == sorted(entry.offset for entry in entries)
    assert pieces[-1].finish == ("stop" if text != TEXT else "length")


def test_the_end_token_has_no_text_even_when_it_is_a_word() -> None:
    transcript = Transcript(VOCABULARIES["byte-level"])
    word = BYTES.encode(" lazy")[-1]
    piece = transcript.push(Token(word, finish="stop"))
    assert piece is not None
    assert (piece.text, piece.finish, piece.tokens) == ("", "stop", 1)
