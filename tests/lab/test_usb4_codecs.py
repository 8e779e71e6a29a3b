"""Every format of the USB4 lab: what is written is read back, what is cut off or garbage is refused and not misread."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from usb4_driver import encode

from ferrule.lab.usb4 import packets, pcapng, pci, trace, vfio_user
from ferrule.lab.usb4.packets import Address, HotPlug, Kind, Notification, PacketError, Read, Write, XDomain
from ferrule.lab.usb4.vfio_user import Access, DmaMap, DmaUnmap, Header, ProtocolError, SetIrqs

u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
routes = st.integers(0, (1 << 54) - 1)
words = st.lists(u32, min_size=1, max_size=40).map(tuple)
addresses = st.builds(
    Address, st.integers(0, 3), st.integers(0, 63), st.integers(0, 0x1FFF), st.integers(0, 63), st.integers(0, 3)
)
control = st.one_of(
    st.builds(Read, routes, addresses, words | st.just(()), st.booleans()),
    st.builds(Write, routes, addresses, words | st.just(()), st.booleans()),
    st.builds(Notification, routes, st.integers(0, 255), st.integers(0, 63), st.integers(0, 3), st.booleans()),
    st.builds(HotPlug, routes, st.integers(0, 63), st.booleans(), st.booleans()),
    st.builds(XDomain, routes, words, st.booleans(), st.booleans()),
)


@given(control)
def test_control_packets_round_trip(packet: packets.Packet) -> None:
    assert packets.decode(packet.kind, packets.encode(packet)) == packet


@given(control, st.data())
def test_a_damaged_control_packet_is_refused(packet: packets.Packet, data: st.DataObject) -> None:
    sealed = bytearray(packets.encode(packet))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PacketError):
        packets.decode(packet.kind, bytes(sealed))
    with pytest.raises(PacketError):
        packets.decode(packet.kind, packets.encode(packet)[: data.draw(st.integers(0, len(sealed) - 1))])


@given(st.integers(0, 15), st.binary(max_size=300))
def test_garbage_is_no_control_packet(kind: int, data: bytes) -> None:
    with pytest.raises(PacketError):
        packets.decode(kind, data)


def test_the_checksum_is_crc_32c() -> None:
    assert packets.crc32c(b"123456789") == 0xE3069283
    with pytest.raises(PacketError, match="unknown kind 9"):
        packets.decode(9, packets.seal([0, 0, 0]))


@given(u16, u16, st.binary(max_size=80), st.booleans(), u32)
def test_headers_round_trip(number: int, command: int, payload: bytes, wanted: bool, error: int) -> None:
    asked = vfio_user.message(number, command, payload, flags=0 if wanted else vfio_user.FLAG_NO_REPLY)
    header = vfio_user.decode_header(asked)
    assert header == Header(number, command, len(asked), no_reply=not wanted)
    answer = vfio_user.decode_header(vfio_user.reply(header, payload, error))
    assert answer == Header(number, command, len(asked), reply=True, error=error)


@given(st.builds(DmaMap, u32, u64, u64, u64), st.builds(DmaUnmap, u32, u64, u64), st.data())
def test_mappings_round_trip(mapped: DmaMap, unmapped: DmaUnmap, data: st.DataObject) -> None:
    assert vfio_user.decode_dma_map(encode(mapped)) == mapped
    assert vfio_user.decode_dma_unmap(encode(unmapped)) == unmapped
    with pytest.raises(ProtocolError):
        vfio_user.decode_dma_map(encode(mapped)[: data.draw(st.integers(0, 31))])


@given(st.builds(SetIrqs, st.sampled_from([1, 2, 4]), u32, u32, u32), u64, u32, st.binary(max_size=64))
def test_accesses_and_interrupts_round_trip(irqs: SetIrqs, offset: int, region: int, data: bytes) -> None:
    assert vfio_user.decode_set_irqs(encode(irqs)) == irqs
    access = Access(offset, region, len(data), data)
    assert vfio_user.decode_write(access.encode()) == access
    assert vfio_user.decode_read(access.encode()) == Access(offset, region, len(data))
    with pytest.raises(ProtocolError, match="that brings"):
        vfio_user.decode_write(access.encode() + b"x")


@given(st.lists(st.tuples(u64, u32, st.binary(max_size=8)), max_size=5))
def test_several_writes_in_one_message(writes: list[tuple[int, int, bytes]]) -> None:
    parts = (struct.pack("<QII", at, region, len(data)) + data.ljust(8, b"\0") for at, region, data in writes)
    payload = struct.pack("<Q", len(writes)) + b"".join(parts)
    assert vfio_user.decode_write_multi(payload) == [Access(at, region, len(data), data) for at, region, data in writes]
    with pytest.raises(ProtocolError):
        vfio_user.decode_write_multi(payload + b"x")


@given(st.binary(max_size=80))
def test_garbage_is_refused_in_one_way_only(data: bytes) -> None:
    for decode in (
        vfio_user.decode_header,
        vfio_user.decode_version,
        vfio_user.decode_dma_map,
        vfio_user.decode_dma_unmap,
        vfio_user.decode_index,
        vfio_user.decode_room,
        vfio_user.decode_set_irqs,
        vfio_user.decode_read,
        vfio_user.decode_write,
        vfio_user.decode_write_multi,
    ):
        with suppress(ProtocolError):
            decode(data)


def test_versions_and_regions() -> None:
    said = {"max_msg_fds": 8}
    assert vfio_user.decode_version(vfio_user.version(said)) == (0, said)
    for broken in (b"\0\0\0\0{", b"\0\0\0\0[]", b'\0\0\0\0{"capabilities": 1}', b"\0"):
        with pytest.raises(ProtocolError):
            vfio_user.decode_version(broken)
    assert len(vfio_user.region_info(0, 0x40000, [(0, 0x1000)], room=64)) == 64
    short = vfio_user.region_info(0, 0x40000, [(0, 0x1000)], room=32)
    assert (len(short), struct.unpack_from("<I", short)[0]) == (32, 64), "it says how much room it needs"


def block_of(packet: pcapng.Captured) -> bytes:
    """A packet in a capture, as the engine writes it."""
    kept, size = packet.data + bytes(-len(packet.data) % 4), 32 + len(packet.data) + -len(packet.data) % 4
    high, low = packet.time >> 32, packet.time & 0xFFFFFFFF
    fixed = struct.pack("<7I", 6, size, packet.interface, high, low, len(packet.data), packet.length)
    return fixed + kept + struct.pack("<I", size)


interfaces = st.lists(st.sampled_from(["a", "cable0 from a", "\u00b5"]), min_size=1, max_size=3)


@given(interfaces, st.lists(st.tuples(u64, st.binary(max_size=40), st.integers(0, 5)), max_size=4), st.data())
def test_captures_round_trip_and_may_be_cut_off(
    names: list[str], taken: list[tuple[int, bytes, int]], data: st.DataObject
) -> None:
    described = [pcapng.Interface(name, 147) for name in names]
    captured = [pcapng.Captured(0, time, len(got) + more, got) for time, got, more in taken]
    blocks = [pcapng.encode_interface(each) for each in described] + [block_of(each) for each in captured]
    whole = pcapng.header("test") + b"".join(blocks)
    assert list(pcapng.decode(whole)) == [*described, *captured]
    cut = data.draw(st.integers(len(pcapng.header("test")), len(whole)))
    left = list(pcapng.decode(whole[:cut]))
    assert left == [*described, *captured][: len(left)]


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_no_capture(data: bytes, behind_a_header: bool) -> None:
    with suppress(pcapng.PcapngError):
        for found in trace.decode((trace.head(["x"]) if behind_a_header else b"") + data):
            trace.describe(found)


@given(st.integers(0, 15), st.binary(max_size=64), st.booleans(), st.booleans(), st.booleans())
def test_traces_round_trip_and_can_be_told(kind: int, data: bytes, is_control: bool, corrupt: bool, lost: bool) -> None:
    traced = trace.Traced("cable0 from a", 5, is_control, corrupt, lost, 8, kind, kind, len(data), data)
    head = struct.pack("<BBHHBB", 1, not is_control, corrupt | lost << 1, 8, kind, kind)
    file = trace.head(["a router 0", "cable0 from a"]) + block_of(
        pcapng.Captured(1, traced.time, 8 + traced.length, head + traced.data)
    )
    assert list(trace.decode(file)) == [traced]
    assert trace.describe(traced).endswith("[lost]") == lost


@given(control)
def test_every_control_packet_can_be_told(packet: packets.Packet) -> None:
    data = packets.encode(packet)
    traced = trace.Traced("x", 0, True, False, False, 0, packet.kind, packet.kind, len(data), data)
    assert trace.describe(traced).split()[0] in {"read", "write", "notification", "hot", "XDomain"}


def test_a_kind_has_one_number() -> None:
    assert (Kind.READ, Kind.XDOMAIN_RESPONSE) == (1, 7)


@given(st.lists(st.tuples(st.integers(0, pci.SIZE - 8), st.binary(min_size=1, max_size=8)) | st.none()))
def test_power_of_the_controller(done: list[tuple[int, bytes] | None]) -> None:
    """Whatever is written: the word for power has its bits, and only an event that may wake sets the status."""
    space = pci.config_space((0x8086, 1))
    for each in done:
        (before,) = struct.unpack_from("<H", space, 0x44)
        if each is None:
            pci.wake(space)
            (after,) = struct.unpack_from("<H", space, 0x44)
            assert after == before | (before & 0x103 == 0x103) << 15
        else:
            offset, data = each
            pci.write(space, offset, data)
            (after,) = struct.unpack_from("<H", space, 0x44)
            cleared = offset <= 0x45 < offset + len(data) and data[0x45 - offset] & 0x80
            assert after & 0x8000 == (0 if cleared else before & 0x8000)
        assert after & ~0x810B == 0
        assert after & 8
        assert pci.asleep(space) == (after & 3 == 3)
