from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = map(str, (TESTS / "e2e", TESTS / "engine"))  # looks at servers, and the makers of tiny models
