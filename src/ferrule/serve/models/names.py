"""Names of models: their own, those without the owner, and aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ferrule.engine import Engine
from ferrule.errors import ConfigError
from ferrule.serve.answer.adapters import AdapterEngine
from ferrule.serve.http.errors import ApiError


def names_of(engine: Engine) -> tuple[str, ...]:
    """Names that the model may be called by: its name, and that without the owner (``llama`` for ``meta/llama``); of
    one with an adapter (``meta/llama:poet``) the adapter's, too."""
    own = (engine.adapter,) if isinstance(engine, AdapterEngine) else ()
    return tuple(dict.fromkeys((engine.name, engine.name.rstrip("/").rpartition("/")[2], *own)))


def check_names(names: Sequence[str]) -> None:
    """Raise `ConfigError` where two models have one name."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two models are called {twice!r}; give them names of their own in a file for --models")


def not_served(name: str, served: Sequence[Engine]) -> ApiError:
    """Answer to a request for a model that is not among those ``served``."""
    names = ", ".join(repr(engine.name) for engine in served)
    text = f"the model {name!r} is not served here; served {'is' if len(served) == 1 else 'are'} {names}"
    return ApiError(404, f"{text} (--alias gives one a further name)", code="model_not_found", param="model")


class Aliases:
    """Further names of models, in which ``*`` stands for any text: the first that matches counts."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.names = dict(names or {})
        self._patterns = [
            (re.compile(".*".join(re.escape(part) for part in alias.split("*")), re.DOTALL), name)
            for alias, name in self.names.items()
        ]

    @classmethod
    def parse(cls, given: Iterable[str]) -> Aliases:
        """Of texts ``ALIAS=NAME``. Raises `ConfigError`."""
        found = cls()
        for text in given:
            alias, _, name = text.partition("=")
            if not alias or not name:
                raise ConfigError(f"--alias {text!r} is not of the form ALIAS=NAME, such as 'claude-*=qwen3-8b'")
            found = found.also(name, [alias])
        return found

    def also(self, name: str, aliases: Iterable[str]) -> Aliases:
        """These and ``aliases`` of the model ``name``. Raises `ConfigError` for one that is of another model."""
        names = dict(self.names)
        for alias in aliases:
            if names.setdefault(alias, name) != name:
                raise ConfigError(f"the alias {alias!r} is given twice, for {names[alias]!r} and {name!r}")
        return Aliases(names)

    def meant(self, name: str) -> str | None:
        """Name of the model that is also called ``name``; None where none is."""
        return next((own for pattern, own in self._patterns if pattern.fullmatch(name)), None)

    def check(self, served: Sequence[Engine]) -> None:
        """Raise `ConfigError` for an alias of a model that is not among those ``served``."""
        known = {name for engine in served for name in names_of(engine)}
        for alias, name in self.names.items():
            if name not in known:
                all_names = ", ".join(repr(engine.name) for engine in served)
                raise ConfigError(f"the alias {alias!r} is of {name!r}, which is not served here; served: {all_names}")
