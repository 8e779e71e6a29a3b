"""Tables of a cluster's TOML file as structs: every error names the file, the table, the field and the cure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec

from ferrule.config import TRANSPORT_CHOICES
from ferrule.errors import ConfigError
from ferrule.units import parse_bytes, parse_rate, parse_seconds

MAX_DEVICES = 1024
MOST = 1e24
"""No number of a machine or cable is larger; what is, is a slip."""
_SHOWN = 60
_NUMBER = re.compile(r"\s*(?:[0-9.]+[eE][+-]?[0-9]+|[0-9]+\.?[0-9]*|\.[0-9]+)\s*")
Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4"]


class Quantity(float):
    """A number as it stands in a file, with a unit or without. More than 0, or ``least``: at least that."""

    example: ClassVar[str]
    least: ClassVar[float | None] = None

    @staticmethod
    def parse(text: str) -> float:
        if not _NUMBER.fullmatch(text):
            raise ValueError(text)
        return float(text)

    @classmethod
    def read(cls, value: Any) -> Self:
        """Raises `ValueError` with an example."""
        try:
            if isinstance(value, str):
                negative = value.strip().startswith("-")
                number = -cls.parse(value.strip()[1:]) if negative else cls.parse(value)
            else:
                number = float("x") if isinstance(value, bool) else float(value)
        except (ConfigError, ValueError, OverflowError, TypeError):
            raise ValueError(f"{shown(value)} is no number; write for example {cls.example}") from None
        if not (number > 0 if cls.least is None else number >= cls.least) or number > MOST:
            wanted = "more than 0" if cls.least is None else f"at least {cls.least:g}"
            raise ValueError(f"{wanted} is needed, not {shown(value)}; write for example {cls.example}")
        return cls(number)


class Bytes(Quantity):
    example, parse = '"124 GiB"', staticmethod(parse_bytes)


class BytesOrNone(Bytes):
    least = 0


class ByteRate(Quantity):
    example, parse = '"256 GB/s"', staticmethod(lambda text: parse_bytes(text.strip().removesuffix("/s")))


class BitRate(Quantity):
    example, parse = '"10 Gb/s"', staticmethod(parse_rate)


class Seconds(Quantity):
    example, least, parse = '"5us"', 0, staticmethod(parse_seconds)


class Flops(Quantity):
    example = "59e12"


class Watts(Quantity):
    example, least = "133", 0


class Dollars(Quantity):
    example, least = "1999", 0


class Part(Quantity):
    example = "0.8"


class Transport(str):
    @classmethod
    def read(cls, value: Any) -> Self:
        known = [choice for choice in TRANSPORT_CHOICES if choice != "auto"]
        if value not in known:
            raise ValueError(f"{shown(value)} is none; there are {', '.join(known)}")
        return cls(value)


class DeviceName(str):
    """As ``--device`` takes it."""

    @classmethod
    def read(cls, value: Any) -> Self:
        if not isinstance(value, str) or not re.fullmatch(r"(?:cpu|cuda|xpu|mps)(?::[0-9]{1,4})?", value, re.ASCII):
            raise ValueError(f'{shown(value)} is none; write for example "cuda:0", or cpu, xpu, mps')
        return cls(value)


Maker = Literal["apple", "amd", "intel", "nvidia"]
Line = Annotated[str, msgspec.Meta(pattern=r"\S")]


class Table(msgspec.Struct, forbid_unknown_fields=True):
    @classmethod
    def read(cls, entry: Mapping[str, Any], where: str) -> Self:
        """``where``: the file and the table. Raises `ConfigError`."""
        for key, value in entry.items():
            if isinstance(value, str) and not value.isprintable():
                raise ConfigError(f"{where}, {key}: {shown(value)} is no text of one line")
        try:
            return msgspec.convert(entry, cls, dec_hook=lambda kind, value: kind.read(value))
        except msgspec.ValidationError as error:
            why, _, path = str(error).partition(" - at ")
        if name := re.search(r"missing required field `(\w+)`", why):
            raise ConfigError(f"{where}: {name[1]} is missing; write {name[1]} = {EXAMPLES[name[1]]}")
        if name := re.search(r"unknown field `(.*)`", why, re.DOTALL):
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(cls))
            raise ConfigError(f"{where}: there is no field {shown(name[1])}; there are {known}")
        field = re.search(r"\$\.(\w+)", path)
        key = field[1] if field else ""
        cure = f"; write for example {key} = {EXAMPLES[key]}" if key in EXAMPLES and "for example" not in why else ""
        raise ConfigError(f"{where}{', ' * bool(key)}{key}: {why}{cure}")


class Device(Table):
    """``[[device]]``; its attributes are called as those of `DeviceSpec`."""

    name: Line
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)] | None = None
    machine: Line | None = None
    kind: str | None = None
    memory: Bytes | None = None
    memory_bandwidth: ByteRate | None = None
    flops: Annotated[dict[Dtype, Flops], msgspec.Meta(min_length=1)] | None = None
    launch_seconds: Seconds | None = msgspec.field(default=None, name="launch")
    eager_seconds: Seconds | None = msgspec.field(default=None, name="eager")
    resume_seconds: Seconds | None = msgspec.field(default=None, name="resume")
    disk_read: ByteRate | None = None
    runtime_bytes: BytesOrNone | None = msgspec.field(default=None, name="runtime")
    watts_idle: Watts | None = None
    watts_busy: Watts | None = None
    price: Dollars | None = None
    measured: bool = False
    maker: Maker | None = None
    host: Line | None = None
    device: DeviceName | None = None
    copy_rate: ByteRate | None = None
    copy_seconds: Seconds | None = msgspec.field(default=None, name="copy")
    unified: bool = False


class Link(Table):
    """``[[link]]``: one of ``between``, ``mesh`` and ``switch``."""

    between: Annotated[list[str], msgspec.Meta(min_length=2, max_length=2)] | None = None
    mesh: Annotated[list[str], msgspec.Meta(min_length=2)] | None = None
    switch: Annotated[list[str], msgspec.Meta(min_length=2)] | None = None
    name: Line | None = None
    cable: Line | None = None
    latency: Seconds | None = None
    bandwidth: BitRate | None = None
    transport: Transport | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


class Route(Table):
    """``[[route]]``."""

    origin: str = msgspec.field(name="from")
    to: str
    via: Annotated[list[str], msgspec.Meta(min_length=1)]


class Whole(Table):
    """The file. Tables within are read one by one, so that errors can name them."""

    device: list[dict[str, Any]] = []
    link: list[dict[str, Any]] = []
    route: list[dict[str, Any]] = []
    cores: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] | None = None
    cores_together: Part | None = None
    cores_in_turns: Part | None = None
    cores_awake: Part | None = None
    notes: tuple[str, ...] = ()


EXAMPLES = {
    "name": '"strix"',
    "memory": Bytes.example,
    "memory_bandwidth": ByteRate.example,
    "flops": "{ bf16 = 59e12 }, of fp32, tf32, fp16, bf16, fp8, fp4, int8 and int4",
    "latency": Seconds.example,
    "bandwidth": BitRate.example,
    **dict.fromkeys(("between", "mesh", "switch", "via"), '["strix-1", "strix-2"]'),
    **dict.fromkeys(("from", "to"), '"strix-1"'),
    "notes": '["measured on Monday"]',
    **dict.fromkeys(("device", "link", "route"), "[{ ... }], or [[...]] above the fields of each"),
}


def shown(value: object) -> str:
    """Text that was written, if short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MOST:
        return "a number that is too large"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
