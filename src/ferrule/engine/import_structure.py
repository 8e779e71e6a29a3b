"""transformers' list of its models' modules, read from their sources once in a process instead of twice.

`import transformers` reads all of its models' files, 36 MB, for the names that they export, and `transformers.models`
reads them again for the same names without ``models.`` before them. One reading takes as long as a quarter of torch's
import, and every process that loads or serves a model does both.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

MODELS = "transformers.models"
_PREFIX = "models."


def import_models() -> None:
    """Import `transformers.models`, by what `import transformers` has found; by itself where a transformers keeps
    nothing of that."""
    from transformers.utils import import_utils

    read: Any = import_utils.define_import_structure
    if MODELS in sys.modules or not hasattr(read, "cache_info"):
        return
    folder = Path(str(sys.modules["transformers"].__file__)).parent / "models"

    def define(path: str, prefix: str | None = None) -> Any:
        own = prefix is None and Path(path) == folder / "__init__.py"
        return _without_prefix(read(folder, prefix="models")) if own else read(path, prefix)

    vars(import_utils)["define_import_structure"] = define
    try:
        import_module(MODELS)
    finally:
        vars(import_utils)["define_import_structure"] = read


def _without_prefix(structure: dict[frozenset[str], dict[str, set[str]]]) -> dict[frozenset[str], dict[str, set[str]]]:
    """Exported names by module, by what they need to be installed: of the modules below ``models.``."""
    return {
        needed: {name.removeprefix(_PREFIX): set(names) for name, names in found.items() if name.startswith(_PREFIX)}
        for needed, found in structure.items()
    }
