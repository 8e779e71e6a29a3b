"""What is told of transformers' models is what it would have read by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.utils import import_utils

from ferrule.engine.import_structure import MODELS, import_models


class Told(Exception):
    """The import that was tried; ``structure``: what it was told."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure


def test_the_names_are_those_that_are_in_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    own = import_utils.define_import_structure
    file = str(Path(transformers.__file__).parent / "models" / "__init__.py")

    def imported(name: str) -> None:
        assert name == MODELS
        assert import_utils.define_import_structure is not own
        raise Told(import_utils.define_import_structure(file))

    monkeypatch.delitem(sys.modules, MODELS, raising=False)
    monkeypatch.setattr("ferrule.engine.import_structure.import_module", imported)
    with pytest.raises(Told) as caught:
        import_models()
    assert caught.value.structure == own(file)
    assert import_utils.define_import_structure is own
