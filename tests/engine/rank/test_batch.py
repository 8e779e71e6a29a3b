import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.engine.messages import Hand, Join
from ferrule.engine.rank.batch import FRAME, Batch, Handed, Kind, Opened, Span, announce, decode, receive
from ferrule.errors import EngineError

NUMBER = st.integers(0, 2**31 - 1)
SPANS = st.builds(Span, NUMBER, NUMBER, NUMBER, st.booleans())
BATCHES = st.builds(
    Batch,
    st.lists(SPANS, max_size=20).map(tuple),
    st.lists(NUMBER, max_size=2 * FRAME).map(tuple),
    st.lists(NUMBER, max_size=20).map(tuple),
    st.sampled_from(Kind),
)


class Tape:
    """A group of which one end writes what the other reads."""

    def __init__(self) -> None:
        self.frames: list[np.ndarray] = []

    def broadcast(self, x: np.ndarray, root: int, timeout: float | None = None) -> None:
        if timeout is None:
            self.frames.append(x.copy())
        else:
            x[...] = self.frames.pop(0)


@given(BATCHES)
def test_a_batch_survives_the_wire(batch: Batch) -> None:
    tape = Tape()
    announce(tape, 0, batch)  # type: ignore[arg-type]
    assert receive(tape, 0, 1.0) == batch  # type: ignore[arg-type]
    assert not tape.frames


def test_what_is_handed_over_survives_the_wire() -> None:
    handed, opened = Handed(0, Hand(3, 0, 4, 1)), Opened(3, 0, (5, 6, 7, 8))
    join = Join(1, 0, 2, ("127.0.0.1:9000",))
    batch = Batch(kind=Kind.RECEIVE, handed=(handed,), opened=(opened,), closed=(2,), counted=(3,), joined=join)
    assert decode(msgspec.msgpack.encode(batch)) == batch


def test_a_decode_step_of_many_sequences_is_one_frame() -> None:
    tape = Tape()
    spans = tuple(Span(identity, 100, 1, True) for identity in range(200))
    announce(tape, 0, Batch(spans, tuple(range(200))))  # type: ignore[arg-type]
    assert len(tape.frames) == 1
    assert tape.frames[0].nbytes == FRAME


def test_bytes_of_another_version_or_length_are_refused() -> None:
    data = msgspec.msgpack.encode(Batch((Span(1, 2, 3, True),), (4, 5, 6)))
    assert data[3] == 9  # the version, behind the number of fields
    for broken in (data[:-1], data[:3] + bytes([99]) + data[4:]):
        with pytest.raises(EngineError, match="same version"):
            decode(broken)


def test_positions_and_logit_rows_follow_from_the_spans() -> None:
    batch = Batch((Span(1, 5, 3, False), Span(2, 0, 2, True), Span(3, 9, 1, True)), (1, 2, 3, 4, 5, 6))
    assert batch.positions() == [5, 6, 7, 0, 1, 9]
    assert batch.logit_rows() == [4, 5]


def test_of_guesses_and_the_token_before_all_logits_are_wanted() -> None:
    spans = Span(1, 5, 3, True, drafted=2), Span(2, 0, 2, False), Span(3, 9, 4, True, scored=True, drafted=1)
    batch = Batch(spans, tuple(range(9)))
    assert batch.logit_rows() == [0, 1, 2, 5, 6, 7, 8]
    assert batch.drafts() == {1: (1, 2), 3: (8,)}
