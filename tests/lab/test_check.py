"""Verdicts on an emulated cable: pure. The measuring itself is a benchmark (`ferrule lab check`)."""

from __future__ import annotations

from dataclasses import replace

from ferrule.lab.netns.check import Check, Held

GOOD = Check(
    kernel_delay=6e-6,
    added=3e-6,
    kernel_rate=18e9,
    shaper_rate=9e9,
    delays=(Held("delay", 10e-6, 14e-6, 5e-6), Held("delay", 1e-3, 1.09e-3, 1e-4)),
    rates=(Held("rate", 1e9, 0.97e9, 5e7), Held("rate", 10e9, 8e9, 5e8)),
    faults=(("cut", 1e-3),),
)


def test_what_the_machine_cannot_carry_is_no_fault_of_the_cable() -> None:
    assert GOOD.true
    assert not replace(GOOD, shaper_rate=11e9).true


def test_one_number_that_is_not_held_is_enough() -> None:
    assert not replace(GOOD, delays=(Held("delay", 10e-6, 16e-6, 5e-6),)).true
    assert not replace(GOOD, rates=(Held("rate", 1e9, 1.06e9, 5e7),)).true
    assert not replace(GOOD, faults=(("cut", 11e-3),)).true
