"""Import path by which tests of several models find the scripted engine."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent.parent
sys.path.insert(0, str(TESTS / "serve"))
