"""Do what the doctor advises, so that it can be undone: what is to be done is data, and a journal keeps it."""

from ferrule.links.doctor.fix.actions import Command, Fix, NewFile, RemoveFile, Step, as_text
from ferrule.links.doctor.fix.journal import Entry, Journal
from ferrule.links.doctor.fix.machine import Target
from ferrule.links.doctor.fix.perform import apply, undo
from ferrule.links.doctor.fix.plan import plan_fixes

__all__ = [
    "Command",
    "Entry",
    "Fix",
    "Journal",
    "NewFile",
    "RemoveFile",
    "Step",
    "Target",
    "apply",
    "as_text",
    "plan_fixes",
    "undo",
]
