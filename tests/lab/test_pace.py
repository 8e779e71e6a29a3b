"""Token buckets of hosts: pure."""

from __future__ import annotations

import pytest

from ferrule.lab.netns.pace import as_a_card, before_the_shaper, segment_bytes


@pytest.mark.parametrize("rate", [1e6, 1e9, 2.5e9, 10e9, 75e9])
@pytest.mark.parametrize("mtu", [1500, 9000, 65000])
def test_a_bucket_holds_what_is_handed_over_at_once(rate: float, mtu: int) -> None:
    card, shaped = as_a_card(rate, mtu), before_the_shaper(rate, mtu, 24)
    assert card.rate == round(rate / 8)
    assert card.burst >= min(65536, mtu)
    assert mtu <= segment_bytes(rate, mtu) <= 65536
    assert shaped.burst >= 2 * segment_bytes(rate, mtu)
    for pace in (card, shaped):
        assert pace.limit >= 4 * pace.burst or pace.limit >= pace.rate * 20e-3


def test_a_host_before_the_shaper_is_never_faster_than_it_with_full_frames() -> None:
    for overhead in (0, 24):
        wire = before_the_shaper(10e9, 1500, overhead).rate * 8 * (1514 + overhead) / 1514
        assert 0.998 * 10e9 < wire < 10e9
