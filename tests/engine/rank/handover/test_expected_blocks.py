"""Blocks that other ranks compute have room as soon as they are asked for; what does not come gives it back."""

from __future__ import annotations

from ferrule.engine.rank.cache.prefix import BLOCK, PrefixIndex, block_key, root_key


def chain(count: int) -> list[bytes]:
    keys = [root_key("", long=False)]
    for number in range(count):
        keys.append(block_key(keys[-1], [number]))
    return keys[1:]


def test_what_has_come_is_found_and_the_rest_is_dropped() -> None:
    index, keys = PrefixIndex(), chain(4)
    blocks = index.expect(keys, 4 * BLOCK)
    assert blocks is not None
    assert index.tokens == 4 * BLOCK
    index.have_come(blocks, None, 3)
    assert [each.key for each in index.match(keys)] == keys[:3]
    assert index.tokens == 3 * BLOCK
    assert index.orders().dropped == (blocks[3].block,)


def test_there_is_none_where_room_is_short_and_what_begins_the_prompt_stays() -> None:
    index, keys = PrefixIndex(), chain(4)
    first = index.expect(keys[:2], 2 * BLOCK)
    assert first is not None
    index.have_come(first, None, 2)
    assert index.expect(keys, BLOCK) is None
    assert len(index.match(keys)) == 2
    found = index.expect(keys, 2 * BLOCK)
    assert found is not None
    assert [each.key for each in found] == keys[2:]


def test_a_block_that_was_computed_here_meanwhile_is_kept_and_the_other_dropped() -> None:
    index, keys = PrefixIndex(), chain(3)
    blocks = index.expect(keys, 3 * BLOCK)
    assert blocks is not None
    own = index.keep(1, 0, keys[0], None, BLOCK)
    index.have_come(blocks, None, 3)
    found = index.match(keys)
    assert [each.number for each in found] == [own.number if own else 0, blocks[1].block, blocks[2].block]
    assert index.orders().dropped == (blocks[0].block,)
    assert [each.children for each in found] == [1, 1, 0]
