"""Sizes, durations, rates and fractions as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.errors import ConfigError
from ferrule.units import (
    format_bytes,
    format_number,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_fraction,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("64", 64), ("8KiB", 8192), ("1.5 MiB", 1572864), ("2GB", 2_000_000_000), ("9007199254740993", 2**53 + 1)],
)
def test_parse_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "x", "1.5", "-3", "3 parsecs", "1e9"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bytes(text)


@given(st.integers(0, 2**50))
def test_formatted_sizes_parse_to_nearly_the_same(count: int) -> None:
    assert abs(_approximately(format_bytes(count)) - count) <= count * 0.05


def _approximately(text: str) -> float:
    number, unit = text.split()
    return float(number) * parse_bytes(f"1{unit}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30.0), ("500ms", 0.5), ("2min", 120.0), ("40µs", 40e-6), ("1.5h", 5400.0)]
)
def test_parse_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.23e-5, "12.3 µs"), (0.25, "250 ms"), (3.0, "3 s"), (4e-9, "4 ns"), (12345.6, "12346 s")]
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1G", 1e9), ("2.5Gb/s", 2.5e9), ("2.5 gbit/s", 2.5e9), ("400 Mbps", 4e8), ("400mbit", 4e8), ("9600", 9600.0)],
)
def test_parse_rate(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "1 Gx", "-1G", "1 GB/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ConfigError, match="rate"):
        parse_rate(text)


@given(st.floats(1, 1e14))
def test_a_rate_is_read_as_it_is_written(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=6e-3)


def test_parse_fraction() -> None:
    assert (parse_fraction("1%"), parse_fraction("0.5 %"), parse_fraction("0.25")) == (0.01, 0.005, 0.25)
    for text in ("", "half", "101%", "-1", "nan"):
        with pytest.raises(ConfigError, match="fraction"):
            parse_fraction(text)


def test_numbers_for_people() -> None:
    shown = [format_number(value) for value in (0.1234, 9.0, 12.34, 999.4, 999.6, 1749.6, 2_140_000.0)]
    assert shown == ["0.123", "9", "12.3", "999", "1,000", "1,750", "2,140,000"]
