"""Paths by which the hub's own client finds and downloads a model (https://huggingface.co/docs/hub/api)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.responses import FileResponse, Response

from ferrule.model import Hub
from ferrule.serve.http.errors import ApiError
from ferrule.serve.http.exchange import current_exchange
from ferrule.serve.hub.cache import SharedFile, SharedModel, shared_model


def add_routes(app: FastAPI, hub: Hub) -> None:
    """``hub``: whose downloads are shared."""

    async def found(owner: str, name: str, revision: str) -> SharedModel | Response:
        _check_may_read()
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
        return model if isinstance(model, Response) else _json(_told(model))

    @app.get("/api/models/{owner}/{name}/tree/{revision}", include_in_schema=False)
    async def tree(owner: str, name: str, revision: str) -> Response:
        model = await found(owner, name, revision)
        if isinstance(model, Response):
            return model
        return _json(
            [
                {"type": "file", "path": each, "size": file.size, "oid": file.digest}
                for each, file in model.files.items()
            ]
        )

    @app.head("/{owner}/{name}/resolve/{revision}/{path:path}", include_in_schema=False)
    @app.get("/{owner}/{name}/resolve/{revision}/{path:path}", include_in_schema=False)
    async def file(owner: str, name: str, revision: str, path: str) -> Response:
        model = await found(owner, name, revision)
        if isinstance(model, Response):
            return model
        wanted = model.files.get(path)  # nothing but what the cache lists: there is no way out of it
        if wanted is None:
            return _missing("EntryNotFound", f"{owner}/{name} has no {path} here")
        headers = {"etag": f'"{wanted.digest}"', "x-repo-commit": model.revision}
        return FileResponse(wanted.path, media_type="application/octet-stream", headers=headers)


def _told(model: SharedModel) -> dict[str, Any]:
    files = [_sibling(name, file) for name, file in model.files.items()]
    return {"id": model.hub_id, "sha": model.revision, "siblings": files}


def _sibling(name: str, file: SharedFile) -> dict[str, Any]:
    told: dict[str, Any] = {"rfilename": name, "size": file.size, "blobId": file.digest}
    if file.is_large:
        told["lfs"] = {"sha256": file.digest, "size": file.size, "pointerSize": 0}
    return told


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _missing(code: str, message: str) -> Response:
    """404 as the hub's client tells them apart."""
    return _json({"error": message}, 404, {"X-Error-Code": code, "X-Error-Message": message})


def _check_may_read() -> None:
    """Raise `ApiError` 403 for a key that is made for some models only."""
    caller = current_exchange().caller
    if caller.models is not None:
        raise ApiError(403, f"the key {caller.name!r} may only use models, not download them", code="forbidden")
