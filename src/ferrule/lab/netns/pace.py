"""Rate, burst and queue of a host before a cable. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_QUEUE_SECONDS = 20e-3
_BUCKET_SECONDS, _LEAST_BUCKET_BYTES, _MARGIN_BYTES = 1e-3, 70_000, 64
_SMOOTH_SHARE = 0.999
_SEGMENT_SECONDS, _LEAST_SEGMENTS, MOST_SEGMENT_BYTES = 500e-6, 3, 65536
_ETHERNET_BYTES = 14


@dataclass(frozen=True)
class Pace:
    """A token bucket: bytes per second on average, bytes at once, and bytes that wait before it."""

    rate: int
    burst: int
    limit: int


def as_a_card(bits_per_second: float, mtu: int) -> Pace:
    """For a cable without a shaper: sends as a network card of that speed does.

    The bucket holds a millisecond, and at least one of the large packets that TCP hands over, so that none has to be
    cut up; the queue before it holds 20 ms.
    """
    least = _LEAST_BUCKET_BYTES if mtu < 60_000 else mtu + _MARGIN_BYTES
    return _pace(bits_per_second, max(int(bits_per_second / 8 * _BUCKET_SECONDS), least))


def before_the_shaper(bits_per_second: float, mtu: int, overhead: int) -> Pace:
    """A host's queue before a cable that the shaper paces.

    It only makes senders wait, as a network card does: what is on its way to the shaper no longer counts as unsent to
    TCP. Its rate is that of full frames with their ``overhead``, a little less than the shaper's, in whose own queue
    nothing then grows.
    """
    frame = mtu + _ETHERNET_BYTES
    bucket = max(int(bits_per_second / 8 * _BUCKET_SECONDS), 2 * segment_bytes(bits_per_second, mtu) + _MARGIN_BYTES)
    return _pace(bits_per_second * _SMOOTH_SHARE * frame / (frame + overhead), bucket)


def segment_bytes(bits_per_second: float, mtu: int) -> int:
    """Bytes that TCP may hand over as one packet at that rate: half a millisecond of it.

    Smaller ones would be finer in time, but cost so much that a busy machine does not keep up with 1 Gb/s.
    """
    wanted = max(int(bits_per_second / 8 * _SEGMENT_SECONDS), _LEAST_SEGMENTS * mtu)
    return min(wanted, MOST_SEGMENT_BYTES)


def _pace(bits_per_second: float, bucket: int) -> Pace:
    rate = max(round(bits_per_second / 8), 1)
    return Pace(rate, bucket, max(int(rate * _QUEUE_SECONDS), 4 * bucket))
