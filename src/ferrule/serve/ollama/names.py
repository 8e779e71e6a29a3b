"""Models by the names that Ollama's clients give them: a name has a tag, which is ``latest`` where it is left out."""

from __future__ import annotations

import re

from ferrule.engine import Engine
from ferrule.serve.answer.service import Service
from ferrule.serve.models import Models, names_of
from ferrule.serve.models.offer import is_loaded

LATEST = ":latest"
_HUB = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/", re.IGNORECASE)


def plain(name: str) -> str:
    """``name`` without the hub's address and without the tag ``latest``."""
    name = _HUB.sub("", name.strip(), count=1)
    return name[: -len(LATEST)] if name.lower().endswith(LATEST) else name


def tagged(name: str) -> str:
    """``name`` as lists have it: always with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def means(name: str, engine: Engine) -> bool:
    """Whether ``name`` is one of the model's, in capitals or not."""
    wanted = {name.strip().lower(), plain(name).lower()}
    return any(each.lower() in wanted for each in names_of(engine))


async def service_of(models: Models, name: str) -> Service:
    """Service of the model that is called ``name``. Raises `ApiError` as `Models.service` does."""
    return await models.service(_served(models, name))


async def known(models: Models, name: str) -> Service:
    """The same as `Models.known` has it."""
    return await models.known(_served(models, name))


async def loaded_of(models: Models) -> list[Service]:
    """Services of the models that are in memory."""
    return [await models.known(engine.name) for engine in models.cards() if is_loaded(engine)]


def keep(service: Service, seconds: float | None) -> None:
    """As a request's ``keep_alive`` says: None where it does not."""
    if service.tenure is not None and seconds is not None:
        service.tenure.keep(seconds)


def _served(models: Models, name: str) -> str:
    return next((engine.name for engine in models.cards() if means(name, engine)), plain(name))
