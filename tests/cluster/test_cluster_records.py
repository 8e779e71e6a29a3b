import asyncio
import itertools
import sqlite3
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents import desired, make_home
from ferrule.cluster import state
from ferrule.cluster.records import BaseRecord, HostRecord, Knowledge, Member, ModelRecord, record_from
from ferrule.cluster.state import ClusterState
from ferrule.cluster.store import Store
from ferrule.errors import ClusterError

A, B = "a" * 32, "b" * 32
MEMBER = Member(A, "strix-1", 8421, ("192.168.1.5",), "0.1.0", "3.11.7")

HOST = {"kind": "host", "name": A, "version": 1, "writer": A, "value": msgspec.to_builtins(MEMBER)}
MODEL = {"kind": "model", "name": "demo", "version": 1, "writer": A, "value": msgspec.to_builtins(desired(A))}


def model(name, version, writer, value=None):
    return ModelRecord(name=name, version=version, writer=writer, value=value)


def host(version, writer, value=None):
    return HostRecord(name=A, version=version, writer=writer, value=value)


# One writer gives a version once: equal version and writer mean the same value.
records = st.builds(
    lambda name, version, writer: (
        model(name, version, writer, None if version % 3 == 0 else desired(writer, port=version))
        if name
        else host(version, writer, None if version % 3 == 0 else replace(MEMBER, port=version))
    ),
    st.sampled_from(["", "one", "two"]),
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
    known, first = Knowledge().written(model("demo", 0, A, desired(A)))
    known, second = known.written(model("demo", 0, B))
    assert second.version == first.version + 1
    assert known.models == {}
    assert known.merged([first]) == (known, ())


def test_a_host_that_was_taken_out_does_not_come_back_by_an_old_word():
    known, record = Knowledge().introduced(MEMBER)
    assert record is not None
    assert known.members == {A: MEMBER}
    known, _ = known.written(host(0, B))
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
        None, [], {}, {"kind": "host"}, HOST | {"kind": "king"}, HOST | {"name": ""}, HOST | {"version": "1"},
        HOST | {"version": -1}, HOST | {"writer": "me"}, HOST | {"value": "text"}, MODEL | {"name": "x" * 999},
        MODEL | {"version": 1 << 70}, HOST | {"value": {"name": "no host"}}, HOST | {"name": B},
        HOST | {"value": HOST["value"] | {"addresses": ["localhost"]}}, MODEL | {"name": "a\nb"},
        MODEL | {"value": MODEL["value"] | {"port": 0}}, MODEL | {"value": MODEL["value"] | {"host": "me"}},
    ],
)  # fmt: skip
def test_nonsense_is_no_record(fields):
    with pytest.raises(ClusterError, match="a record cannot be used"):
        record_from(fields)


@pytest.mark.parametrize("fields", [HOST, MODEL])
def test_what_a_newer_version_adds_is_ignored(fields):
    newer = {**fields, "new": 1, "value": {**fields["value"], "new": {"x": 1}}}
    assert isinstance(record_from(newer), BaseRecord)
    assert record_from(newer) == record_from(fields)


def test_what_no_other_host_would_take_is_not_written():
    """It would keep this host away from the others, and its agent from ever starting again."""
    for name, value in (("x" * 201, desired(A)), ("", desired(A)), ("demo", desired("me")), ("demo", "text")):
        with pytest.raises(ClusterError, match="cannot be used"):
            Knowledge().written(model(name, 0, A, value))


def test_a_full_disk_stops_one_write_and_not_the_next(tmp_path):
    store = Store(tmp_path / "state.db")
    (pages,) = store._database.execute("pragma page_count").fetchone()
    store._database.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(ClusterError, match="room on the disk"):
        store.keep([model("large", 1, A, desired(A, model="x" * 100_000))])
    assert not store._database.in_transaction
    store._database.execute(f"pragma max_page_count = {1 << 20}")
    small = model("small", 1, A, desired(A))
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
        cluster.write_model("demo", desired(A))
    assert cluster.all_records() == ()
    cluster.learn([model("other", 1, B, desired(B))])
    assert cluster.knowledge.models == {"other": desired(B)}


def test_what_is_kept_survives(tmp_path):
    known, one = Knowledge().introduced(MEMBER)
    known, two = known.written(model("demo", 0, A, desired(A)))
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


@pytest.mark.parametrize(
    ("column", "text"),
    [("value", "{"), ("value", '"text"'), ("value", '{"model": 3}'), ("kind", "king"), ("writer", "me")],
)
def test_a_damaged_row_is_told_with_the_file_and_the_cure(tmp_path, column, text):
    file = tmp_path / "state.db"
    store = Store(file)
    store.keep([model("demo", 1, A, desired(A))])
    store.close()
    with sqlite3.connect(file) as database:
        database.execute(f"update record set {column} = ?", [text])
    database.close()
    store = Store(file)
    with pytest.raises(ClusterError, match=r"state\.db is damaged: .*leave the cluster and join it again"):
        store.load()
    store.close()


def test_the_records_of_the_version_before_are_read(tmp_path):
    """It had no types: a value is what its programs wrote."""
    file = tmp_path / "state.db"
    Store(file).close()
    told = '{"model": "demo", "listen": "127.0.0.1", "port": 8420, "tensor": 2, "hosts": null, "key": false, ' + (
        f'"pipeline": null, "spares": true, "self_test": true, "host": "{A}", "owner": "{A}"}}'
    )
    with sqlite3.connect(file) as database:
        database.execute("insert into record values ('model', 'demo', 3, ?, ?)", [A, told])
    database.close()
    store = Store(file)
    expected = desired(A, model="demo", tensor=2, self_test=True)
    assert store.load().models == {"demo": expected}
    store.close()


def test_a_host_tells_what_installs_an_engine_that_it_lacks_and_an_older_version_does_not(tmp_path, monkeypatch):
    async def scene():
        cluster = ClusterState(make_home(tmp_path, "first"), lambda: None)
        assert cluster.member.install_engine == ""
        monkeypatch.setattr(state, "missing", lambda extra: "torch" if extra == "engine" else None)
        assert "-m pip install" in cluster.member.install_engine
        assert "[engine]" in cluster.member.install_engine
        told = msgspec.to_builtins(cluster.member)
        assert msgspec.convert(told, Member) == cluster.member
        del told["install_engine"]
        assert msgspec.convert(told, Member).install_engine == ""
        await cluster.close()

    asyncio.run(scene())
