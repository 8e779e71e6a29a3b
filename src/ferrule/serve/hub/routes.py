"""Paths by which the hub's own client finds and downloads a model (https://huggingface.co/docs/hub/api)."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from fastapi.responses import FileResponse, Response

from ferrule.model import Hub
from ferrule.serve.http.respond import respond
from ferrule.serve.hub.cache import SharedModel, shared_model
from ferrule.serve.hub.objects import HubError, ModelInfo, TreeEntry
from ferrule.serve.keys.allowed import refuse_limited


def add_routes(app: FastAPI, hub: Hub) -> None:
    """``hub``: whose downloads are shared."""

    async def found(owner: str, name: str, revision: str) -> SharedModel | Response:
        refuse_limited("download them")
        model = await asyncio.to_thread(shared_model, hub, f"{owner}/{name}")
        if model is None:
            return _missing("RepoNotFound", f"{owner}/{name} was not downloaded here")
        if revision not in ("main", model.revision):
            return _missing("RevisionNotFound", f"{owner}/{name} is here as {model.revision}, not {revision}")
        return model

    @app.get("/api/models/{owner}/{name}", include_in_schema=False)
    @app.get("/api/models/{owner}/{name}/revision/{revision}", include_in_schema=False)
    async def described(owner: str, name: str, revision: str = "main") -> Response:
        model = await found(owner, name, revision)
        return model if isinstance(model, Response) else respond(await asyncio.to_thread(ModelInfo.of, model))

    @app.get("/api/models/{owner}/{name}/tree/{revision}", include_in_schema=False)
    async def tree(owner: str, name: str, revision: str) -> Response:
        model = await found(owner, name, revision)
        if isinstance(model, Response):
            return model
        files = await asyncio.to_thread(model.files)
        return respond([TreeEntry(path, file.size, file.digest) for path, file in files.items()])

    @app.head("/{owner}/{name}/resolve/{revision}/{path:path}", include_in_schema=False)
    @app.get("/{owner}/{name}/resolve/{revision}/{path:path}", include_in_schema=False)
    async def file(owner: str, name: str, revision: str, path: str) -> Response:
        model = await found(owner, name, revision)
        if isinstance(model, Response):
            return model
        wanted = await asyncio.to_thread(model.file, path)
        if wanted is None:
            return _missing("EntryNotFound", f"{owner}/{name} has no {path} here")
        headers = {"etag": f'"{wanted.digest}"', "x-repo-commit": model.revision}
        return FileResponse(wanted.path, media_type="application/octet-stream", headers=headers)


def _missing(code: str, message: str) -> Response:
    """404 as the hub's client tells them apart."""
    return respond(HubError(message), 404, {"X-Error-Code": code})
