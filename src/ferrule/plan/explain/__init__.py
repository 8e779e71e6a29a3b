"""Explanation of a plan's speed, of what would help, and of what is missing where none fits."""

from ferrule.plan.explain.apart import apart_verdict
from ferrule.plan.explain.bottleneck import Bottleneck, bottleneck
from ferrule.plan.explain.shortage import Nearest, Shortage, shortage
from ferrule.plan.explain.verdict import WORTH_IT, cautions, tight, verdict
from ferrule.plan.explain.what_if import WhatIf, what_ifs

__all__ = [
    "WORTH_IT",
    "Bottleneck",
    "Nearest",
    "Shortage",
    "WhatIf",
    "apart_verdict",
    "bottleneck",
    "cautions",
    "shortage",
    "tight",
    "verdict",
    "what_ifs",
]
