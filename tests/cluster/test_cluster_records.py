import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import make_home
from ferrule.cluster.records import HOST, MODEL, Knowledge, Member, Record
from ferrule.cluster.state import ClusterState
from ferrule.cluster.store import Store
from ferrule.errors import ClusterError

A, B = "a" * 32, "b" * 32
MEMBER = Member(A, "strix-1", 8421, ("192.168.1.5",), "0.1.0", "3.11.7")

values = st.none() | st.fixed_dictionaries({"x": st.integers(0, 3)})
# One writer gives a version once: equal version and writer mean the same value.
records = st.builds(
    lambda kind, name, version, writer: Record(
        kind, name, version, writer, None if version % 3 == 0 else {"x": version, "by": writer}
    ),
    st.sampled_from([HOST, MODEL]),
    st.sampled_from(["one", "two"]),
    st.integers(0, 5),
    st.sampled_from([A, B]),
)


@given(st.lists(records, max_size=6))
def test_all_hosts_end_with_the_same_whatever_the_order(found):
    ends = {tuple(sorted(map(str, Knowledge().merged(order)[0].records.items()))) for order in _orders(found)}
    assert len(ends) == 1


def _orders(found):
    yield from itertools.islice(itertools.permutations(found), 24)


@given(st.lists(records, max_size=6), st.lists(records, max_size=6))
def test_equal_digests_mean_equal_records(one, other):
    first, second = Knowledge().merged(one)[0], Knowledge().merged(other)[0]
    assert (first.digest == second.digest) == (dict(first.records) == dict(second.records))


def test_a_newer_word_wins_and_an_older_one_is_no_news():
    known, first = Knowledge().written(MODEL, "demo", {"up": True}, A)
    known, second = known.written(MODEL, "demo", None, B)
    assert second.version == first.version + 1
    assert known.present(MODEL) == {}
    assert known.merged([first]) == (known, ())


def test_a_host_that_was_taken_out_does_not_come_back_by_an_old_word():
    known, record = Knowledge().introduced(MEMBER)
    assert record is not None
    assert known.members == {A: MEMBER}
    known, _ = known.written(HOST, A, None, B)
    assert known.gone(A)
    assert known.merged([record])[0].gone(A)
    assert not known.gone(B)


def test_a_host_introduces_itself_again_only_when_it_has_changed():
    known, _ = Knowledge().introduced(MEMBER)
    assert known.introduced(MEMBER) == (known, None)
    moved = Member(A, "strix-1", 8421, ("192.168.1.6",), "0.1.0", "3.11.7")
    known, record = known.introduced(moved)
    assert record is not None
    assert known.members[A].addresses == ("192.168.1.6",)


def test_two_hosts_cannot_have_one_name():
    known, _ = Knowledge().introduced(MEMBER)
    assert known.name_taken(Member(B, "strix-1", 8421, (), "0.1.0", "3.11.7"))
    assert not known.name_taken(MEMBER)


@pytest.mark.parametrize(
    "fields",
    [
        None, [], ["host"], ["king", A, 1, A, {}], [HOST, "", 1, A, {}], [HOST, A, "1", A, {}], [HOST, A, -1, A, {}],
        [HOST, A, 1, "me", {}], [HOST, A, 1, A, "text"], [MODEL, "x" * 999, 1, A, {}], [MODEL, "demo", 1 << 70, A, {}],
        [HOST, A, 1, A, {"name": "no host"}], [HOST, B, 1, A, MEMBER.to_json()],
        [HOST, A, 1, A, MEMBER.to_json() | {"addresses": ["localhost"]}],
    ],
)  # fmt: skip
def test_nonsense_is_no_record(fields):
    with pytest.raises(ClusterError):
        Record.from_json(fields)


def test_what_no_other_host_would_take_is_not_written():
    """It would keep this host away from the others, and its agent from ever starting again."""
    for name, value in (("x" * 201, {}), ("", {}), ("demo", "text")):
        with pytest.raises(ClusterError, match="cannot be used"):
            Knowledge().written(MODEL, name, value, A)


def test_a_full_disk_stops_one_write_and_not_the_next(tmp_path):
    store = Store(tmp_path / "state.db")
    (pages,) = store._database.execute("pragma page_count").fetchone()
    store._database.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(ClusterError, match="room on the disk"):
        store.keep([Record(MODEL, "large", 1, A, {"x": "x" * 100_000})])
    assert not store._database.in_transaction
    store._database.execute(f"pragma max_page_count = {1 << 20}")
    small = Record(MODEL, "small", 1, A, {})
    store.keep([small])
    assert list(store.load().records.values()) == [small]
    store.close()


class FullStore:
    def keep(self, records):
        raise ClusterError("the disk is full")


def test_on_a_full_disk_nothing_is_decided_and_others_are_still_heard(tmp_path):
    cluster = ClusterState(make_home(tmp_path, "first"), lambda: None)
    cluster._store.close()
    cluster._store = FullStore()
    with pytest.raises(ClusterError, match="full"):
        cluster.write(MODEL, "demo", {})
    assert cluster.all_records() == []
    cluster.learn([Record(MODEL, "other", 1, B, {})])
    assert cluster.knowledge.present(MODEL) == {"other": {}}


def test_what_is_kept_survives(tmp_path):
    known, one = Knowledge().introduced(MEMBER)
    known, two = known.written(MODEL, "demo", {"up": True}, A)
    store = Store(tmp_path / "state.db")
    store.keep([one, two])
    store.keep([two])
    store.close()
    again = Store(tmp_path / "state.db")
    assert again.load() == known
    again.close()


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "state.db").write_text("not a database, but long enough to be looked at" * 40)
    with pytest.raises(ClusterError, match=r"state\.db"):
        Store(tmp_path / "state.db")
