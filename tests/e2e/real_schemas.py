"""Thirty JSON schemas of the kinds that programs send: nested objects, enums, patterns, formats, unions, recursion."""

from __future__ import annotations

from typing import Any


def closed(properties: dict[str, Any], optional: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """An object of just these properties, as strict output has it."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def listed(items: dict[str, Any], most: int = 3, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def text(most: int = 40) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


def number(low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


def whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def matching(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def of_format(name: str) -> dict[str, Any]:
    return {"type": "string", "format": name}


FLAG = {"type": "boolean"}
POINT = {"type": "array", "prefixItems": [number(-180, 180), number(-90, 90)], "items": False, "minItems": 2}

SCHEMAS: dict[str, dict[str, Any]] = {
    "sentiment": closed({"label": one_of("positive", "neutral", "negative"), "score": number(0, 1)}),
    "person": closed({"name": text(), "age": whole(0, 150), "email": {"type": ["string", "null"], "maxLength": 40}}),
    "weather call": closed(
        {"name": {"const": "get_weather"}, "arguments": closed({"city": text(), "unit": one_of("C", "F")}, ("unit",))}
    ),
    "address": closed(
        {"street": text(), "zip": matching(r"^[0-9]{5}(-[0-9]{4})?$"), "country": matching(r"^[A-Z]{2}$")}
    ),
    "calendar event": closed(
        {"title": text(), "start": of_format("date-time"), "day": of_format("date"), "guests": listed(text(20))}
    ),
    "invoice": closed(
        {
            "number": matching(r"^INV-[0-9]{4,8}$"),
            "lines": listed(closed({"what": text(20), "count": whole(1, 99), "price": number(0, 10_000)}), 3, 1),
            "currency": one_of("EUR", "USD", "GBP", "JPY"),
        }
    ),
    "uuid list": listed(of_format("uuid"), 3, 1),
    "server": closed(
        {"host": of_format("ipv4"), "port": whole(1, 65535), "tls": FLAG, "names": listed(of_format("hostname"), 2)}
    ),
    "semantic version": closed({"version": matching(r"^(0|[1-9]\d{0,3})(\.(0|[1-9]\d{0,3})){2}(-[a-z]{1,8})?$")}),
    "payment": {
        "anyOf": [
            closed({"kind": {"const": "card"}, "number": matching(r"^\d{16}$"), "expires": matching(r"^\d\d/\d\d$")}),
            closed({"kind": {"const": "transfer"}, "iban": matching(r"^[A-Z]{2}\d{2}[A-Z0-9]{11,30}$")}),
            closed({"kind": {"const": "cash"}}),
        ]
    },
    "shape": {
        "oneOf": [
            closed({"type": {"const": "circle"}, "radius": number(0, 100)}),
            closed({"type": {"const": "square"}, "side": number(0, 100)}),
            closed({"type": {"const": "polygon"}, "points": listed(POINT, 4, 3)}),
        ]
    },
    "geojson": closed(
        {
            "type": {"const": "Feature"},
            "geometry": closed({"type": one_of("Point"), "coordinates": POINT}),
            "properties": {"type": "object", "maxProperties": 2, "additionalProperties": text(10)},
        }
    ),
    "json patch": listed(
        {
            "anyOf": [
                closed({"op": one_of("add", "replace"), "path": matching(r"^(/[a-z]{1,8}){1,3}$"), "value": text(10)}),
                closed({"op": {"const": "remove"}, "path": matching(r"^(/[a-z]{1,8}){1,3}$")}),
            ]
        },
        3,
        1,
    ),
    "feature flags": {"type": "object", "additionalProperties": FLAG, "maxProperties": 4},
    "log line": closed(
        {
            "level": one_of("debug", "info", "warning", "error"),
            "at": of_format("date-time"),
            "message": text(),
            "code": whole(-1, 599),
        },
        ("code",),
    ),
    "recipe": closed(
        {
            "title": text(),
            "minutes": whole(1, 600),
            "steps": listed(text(), 3, 1),
            "ingredients": listed(
                closed({"name": text(20), "grams": {"type": ["number", "null"], "minimum": 0, "maximum": 5000}})
            ),
        }
    ),
    "curriculum vitae": closed(
        {
            "name": text(),
            "skills": listed(one_of("python", "c++", "rust", "sql", "go")),
            "jobs": listed(
                closed(
                    {
                        "firm": text(20),
                        "from": whole(1950, 2030),
                        "to": {"anyOf": [whole(1950, 2030), {"type": "null"}]},
                    }
                ),
                2,
            ),
        }
    ),
    "product": closed(
        {
            "sku": matching(r"^[A-Z]{3}-\d{4}$"),
            "price": number(0, 999),
            "tags": listed(text(10)),
            "size": one_of("S", "M", "L", None),
        }
    ),
    "file tree": {
        "$defs": {
            "node": {
                "anyOf": [
                    closed({"file": text(12), "bytes": whole(0, 1_000_000)}),
                    closed({"folder": text(12), "children": listed({"$ref": "#/$defs/node"}, 2)}),
                ]
            }
        },
        "$ref": "#/$defs/node",
    },
    "comment thread": closed(
        {"by": text(12), "text": text(20), "replies": listed({"$ref": "#"}, 1)},
    ),
    "linked list": {
        "$defs": {
            "cell": closed({"value": whole(0, 9), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/cell"}]}})
        },
        "$ref": "#/$defs/cell",
    },
    "expression": {
        "definitions": {
            "expression": {
                "anyOf": [
                    {"type": "integer", "minimum": -99, "maximum": 99},
                    matching(r"^[a-z]$"),
                    closed(
                        {
                            "op": one_of("+", "-", "*"),
                            "left": {"$ref": "#/definitions/expression"},
                            "right": {"$ref": "#/definitions/expression"},
                        }
                    ),
                ]
            }
        },
        "allOf": [{"$ref": "#/definitions/expression"}],
    },
    "filter": {
        "$defs": {
            "filter": {
                "anyOf": [
                    closed(
                        {
                            "field": text(10),
                            "is": one_of("=", "<", ">"),
                            "value": {"type": ["string", "number"], "maxLength": 10},
                        }
                    ),
                    closed({"not": {"$ref": "#/$defs/filter"}}),
                ]
            }
        },
        "$ref": "#/$defs/filter",
    },
    "plan": closed(
        {
            "thoughts": text(60),
            "steps": listed(closed({"tool": one_of("search", "run", "read"), "input": text(20)}), 3),
            "done": FLAG,
        }
    ),
    "container": closed(
        {
            "image": matching(r"^[a-z][a-z0-9-]{0,12}:[0-9]{1,2}\.[0-9]{1,2}$"),
            "env": {
                "type": "object",
                "patternProperties": {"^[A-Z_]{1,8}$": text(10)},
                "additionalProperties": False,
                "maxProperties": 2,
            },
            "restart": one_of("no", "always", "on-failure"),
        }
    ),
    "parameter": closed(
        {
            "name": text(12),
            "in": one_of("query", "header", "path"),
            "required": FLAG,
            "schema": {
                "anyOf": [
                    closed({"type": {"const": "string"}}),
                    closed({"type": {"const": "array"}, "items": closed({"type": one_of("string", "number")})}),
                ]
            },
        }
    ),
    "sensor": closed(
        {"id": whole(0, 1 << 31), "readings": listed(number(-50, 150), 4, 1), "unit": one_of("°C", "°F", "µT")}
    ),
    "flight": closed(
        {
            "from": matching(r"^[A-Z]{3}$"),
            "to": matching(r"^[A-Z]{3}$"),
            "at": of_format("time"),
            "class": one_of("economy", "business"),
            "seat": matching(r"^([1-9]|[1-4]\d)[A-F]$"),
        }
    ),
    "classification": closed(
        {"labels": listed(one_of(*(f"class-{each:02}" for each in range(60))), 3, 1), "why": text(60)}
    ),
    "table": closed(
        {
            "columns": listed(text(10), 3, 1),
            "rows": listed(listed({"type": ["string", "number", "boolean", "null"], "maxLength": 10}), 3),
        }
    ),
}
