"""Imports between modules of some rooms: no circles, for types or inside functions."""

from __future__ import annotations

import grimp


def test_no_module_imports_one_that_imports_it() -> None:
    graph = grimp.build_graph("ferrule", cache_dir=None)
    rooms = ("ferrule.fabric", "ferrule.torch_backend", "ferrule.engine.weights", "ferrule.serve")
    modules = {name for name in graph.modules if name.startswith(rooms)}
    assert len(modules) > 120
    left = {name: graph.find_modules_directly_imported_by(name) & modules for name in modules}
    while leaves := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in leaves}
    assert not left, f"these import each other in a circle, or such a circle: {sorted(left)}"
