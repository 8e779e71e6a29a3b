"""The index of the prefix cache against ranks that do what it says, and are asked for nothing that they do not have."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ferrule.engine.rank.cache.held import HeldBlocks
from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex, block_key, root_key

DISK = 5
"""Blocks."""
ROOT = root_key("", long=False)
TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=4)
"""Of a sequence, of what each of its blocks is."""


def tokens_of(text: list[int]) -> list[int]:
    return [token for kind in text for token in [kind] * BLOCK]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(copies=self.copies, disk=DISK)
        self.running: dict[int, tuple[list[int], HeldBlocks]] = {}
        self.memory: dict[int, bytes] = {}
        self.disk: set[bytes] = set()
        self.last = 0

    copies = False

    def tell(self) -> None:
        orders = self.index.orders()
        self.index.told(orders)
        for each in orders.kept:
            text, _ = self.running.get(each.sequence, ([], None))
            key = HeldBlocks(ROOT).keys_of(tokens_of(text), each.place + 1)[-1] if text else each.key
            if text:
                assert self.memory.setdefault(each.block, key) == key
            else:
                self.memory.setdefault(each.block, key)
            if each.key:
                self.disk.add(each.key)
        for block in orders.dropped:
            del self.memory[block]
        for key in orders.forgotten:
            self.disk.discard(key)

    @rule(text=TEXTS)
    def start(self, text: list[int]) -> None:
        self.last += 1
        held = HeldBlocks(ROOT)
        count = held.begin(self.index, held.keys_of(tokens_of(text), len(text) - 1))
        assert count == BLOCK * len(held.blocks) < len(tokens_of(text)), "the last token is computed"
        self.tell()
        assert all(self.memory[block.number] == block.key for block in held.blocks)
        self.running[self.last] = text, held

    @rule(data=st.data(), room=st.integers(0, 3 * BLOCK))
    def compute(self, data: st.DataObject, room: int) -> None:
        if self.running:
            identity = data.draw(st.sampled_from(sorted(self.running)))
            text, held = self.running[identity]
            held.keep(self.index, identity, tokens_of(text), len(text), room)
            assert self.index.copies or len(held.blocks) == len(text)
            self.tell()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            self.running.pop(data.draw(st.sampled_from(sorted(self.running))))[1].end(self.index)

    @rule(count=st.integers(1, 4))
    def make_room(self, count: int) -> None:
        before = len(self.index.blocks)
        assert self.index.evict(count) == before - len(self.index.blocks) <= count
        self.tell()

    @rule(text=TEXTS, room=st.integers(0, 4 * BLOCK), good=st.integers(0, 4))
    def read(self, text: list[int], room: int, good: int) -> None:
        keys = HeldBlocks(ROOT).keys_of(tokens_of(text), len(text))
        found = self.index.to_read(keys, room)
        self.tell()
        assert all(each.key in self.disk for each in found)
        assert not self.memory.keys() & {each.block for each in found}
        self.memory |= {each.block: each.key for each in found[:good]}
        self.index.have_read(keys, found, min(good, len(found)))
        self.tell()
        assert len(self.index.match(keys)) >= min(good, len(found))

    @invariant()
    def ranks_have_what_the_index_says(self) -> None:
        assert {block.number: block.key for block in self.index.blocks.values()} == self.memory
        assert set(self.index.stored) == self.disk
        assert len(self.disk) <= DISK

    @invariant()
    def blocks_are_held_from_the_first_on(self) -> None:
        users = Counter(block.key for _, held in self.running.values() for block in held.blocks)
        assert self.index._unused == sum(not block.users for block in self.index.blocks.values())
        for key, block in self.index.blocks.items():
            assert block.users == (0 if self.index.copies else users[key])
            assert block.parent is None or self.index.blocks[block.parent.key] is block.parent
        children = Counter(block.parent.key for block in self.index.blocks.values() if block.parent is not None)
        assert all(block.children == children[key] for key, block in self.index.blocks.items())
        if not self.index.copies:
            assert users.keys() <= self.index.blocks.keys()

    def teardown(self) -> None:
        for _, held in self.running.values():
            held.end(self.index)
        count = len(self.index.blocks)
        assert self.index.evict(count + 1) == count, "what nobody has can go"


class Copies(Machine):
    copies = True


SETTINGS = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSharedBlocks = Machine.TestCase
TestSharedBlocks.settings = SETTINGS
TestCopiedBlocks = Copies.TestCase
TestCopiedBlocks.settings = SETTINGS


def test_keys_tell_apart_all_that_a_block_is_made_of() -> None:
    one, other = [1] * BLOCK, [2] * BLOCK
    long = root_key("", long=True)
    keys = [block_key(root, tokens) for root in (ROOT, long, root_key("a", long=False)) for tokens in (one, other)]
    keys += [block_key(keys[0], one), block_key(keys[1], one)]
    assert len(set(keys)) == len(keys)
    assert HeldBlocks(ROOT).keys_of([*one, *other], 2) == [keys[0], block_key(keys[0], other)]


def kept(index: PrefixIndex, *text: int) -> list[bytes]:
    """Keys of a sequence that has run and ended."""
    held = HeldBlocks(ROOT)
    held.begin(index, held.keys_of(tokens_of(list(text)), len(text) - 1))
    held.keep(index, 1, tokens_of(list(text)), len(text), 0)
    held.end(index)
    return held.keys


def test_what_was_used_least_lately_goes_first_and_last_blocks_before_those_they_continue() -> None:
    index = PrefixIndex()
    first, second = kept(index, 1, 1, 1), kept(index, 2, 2)
    kept(index, 1, 1, 1)
    index.evict(2)
    assert set(index.blocks) == set(first), "the second was used before"
    index.evict(1)
    assert set(index.blocks) == set(first[:2])
    assert not index.blocks.keys() & set(second)


def test_no_more_is_kept_than_is_allowed_of_what_has_ended() -> None:
    index = PrefixIndex(most=2 * BLOCK + 5)
    keys = kept(index, 1, 1, 1, 1)
    assert set(index.blocks) == set(keys[:2])
    held = HeldBlocks(ROOT)
    held.begin(index, keys)
    kept(index, 2, 2)
    assert len(index.blocks) == 4, "what runs does not count"
    held.end(index)
    assert set(index.blocks) == set(keys[:2])


def test_what_can_be_read_soon_goes_before_what_must_be_computed() -> None:
    index = PrefixIndex(disk=2)
    index.costs.token, index.costs.read = 1e-2, 1e-3
    computed = kept(index, 1, 1)
    stored = kept(index, 2, 2)
    assert set(index.stored) == set(stored), "there is room for two"
    index.evict(2)
    assert set(index.blocks) == set(computed), "although it was used before"
    assert [each.key for each in index.to_read(stored, BLOCK)] == stored
    assert set(index.blocks) == set(computed[:1]), "one made room, as it would have for what is computed"


@pytest.mark.parametrize("seconds", [1e-4, 1.0])
def test_blocks_are_read_where_that_is_quicker_and_tried_again_where_it_was_not(seconds: float) -> None:
    index = PrefixIndex(disk=9, stored=[b"a", b"b"])
    for _ in range(20):
        index.costs.took(64 * 1e-3, tokens=64)
        index.costs.took(2 * seconds, blocks=2)
    assert bool(index.to_read([b"a", b"b", b"c"], 999)) == (seconds < 0.01)
    tries = 1
    while not index.to_read([b"a", b"b", b"c"], 999):
        tries += 1
    assert tries < 100
