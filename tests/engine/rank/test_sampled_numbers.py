"""Numbers of answers in JSON end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from ferrule.engine.rank.sampling.constrained import Grammars
from ferrule.engine.rank.sampling.numbers import MOST_DIGITS, Place
from ferrule.engine.source import demo_path
from ferrule.engine.types import Constraint


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ('{"a": 12', 2),
        ('{"a": 12.345', 3),
        ("[1, -20e31", 2),
        ('{"7777": ', 0),
        ('{"a": "123', 0),
        ('{"a": "x\\"123", "b": 9', 1),
        (r'{"a": "\\", "b": 99', 2),
        (json.dumps({"a": 'quo"te\\', "b": [1, "22", 333]})[:-2], 3),
    ],
)
def test_digits_are_counted_outside_of_strings(text: str, digits: int) -> None:
    whole = Place().after(text.encode())
    assert whole.digits == digits
    step = Place()
    for each in text.encode():
        step = step.after(bytes([each]))
    assert step == whole


@pytest.mark.parametrize(("schema", "ends"), [({"type": "number"}, True), ({"const": 10**60}, False)])
def test_the_digits_of_a_number_come_to_an_end_where_something_else_may_follow(schema: object, ends: bool) -> None:
    text = (Path(demo_path()) / "tokenizer.json").read_text()
    vocabulary = 3072
    grammars = Grammars(vocabulary, [0])
    grammars.learn(text)
    made: list[int] = []
    matcher = grammars.open(Constraint("json_schema", json.dumps(schema)), made)
    matcher.begin()
    while True:
        token = int(np.flatnonzero(np.unpackbits(matcher.mask(), bitorder="little", count=vocabulary))[-1])
        if token == 0 or len(made) > 200:
            break
        made.append(token)
        matcher.took(token)
        matcher.go_on()
        again = grammars.open(Constraint("json_schema", json.dumps(schema)), made)
        again.begin()
        assert np.array_equal(again.mask(), matcher.mask()), "also of an answer that goes on"
    said = Tokenizer.from_str(text).decode(made)
    assert json.loads(said) is not None
    if ends:
        assert max(map(len, said.replace("e", ".").split("."))) < MOST_DIGITS + 16
    else:
        assert said == str(10**60)
