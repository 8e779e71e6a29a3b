"""Runs inside a guest, by its packages' Python: rdma-core's own tests on one device, and how each of them ended."""

from __future__ import annotations

import importlib.util
import json
import sys
import unittest
from pathlib import Path
from typing import Any

TESTS = Path("/lab/rdma-core")
"""Their package calls itself ``tests``."""


class Outcomes(unittest.TextTestResult):
    """Beside what it says, ``ended``: word and reason of each test that did not end well."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended: dict[str, list[str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's name)
        super().startTest(test)
        self.ended[test.id()] = ["ok", ""]

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self.ended[test.id()] = ["skipped", reason]

    def addFailure(self, test: unittest.TestCase, error: Any) -> None:  # noqa: N802
        super().addFailure(test, error)
        self.ended[test.id()] = ["failed", str(error[1])]

    addError = addFailure  # noqa: N815


def main(device: str, answer: str) -> None:
    sys.path.insert(0, str(TESTS))
    from args_parser import parser

    sys.argv[1:] = ["--dev", device]
    parser.parse_args()
    spec = importlib.util.spec_from_file_location("tests", TESTS / "__init__.py")
    tests = importlib.util.module_from_spec(spec)
    sys.modules["tests"] = tests
    spec.loader.exec_module(tests)
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    runner = unittest.TextTestRunner(sys.stdout, verbosity=2, resultclass=Outcomes)
    Path(answer).write_text(json.dumps(runner.run(suite).ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
