"""Clients, and what points each at a server: environment variables, and edits of its settings file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ferrule.cli.connect.edits import Edit

Api = Literal["messages", "responses", "chat"]
NO_KEY: Final = "none"
"""Sent where the server wants no key: clients ask for one all the same."""
KEY_VARIABLE: Final = "FERRULE_API_KEY"


@dataclass(frozen=True)
class Target:
    """A server, without ``/v1``, and a model of it with the most tokens of its context, where that is known.
    ``able``: its capabilities, such as ``vision``."""

    url: str
    model: str
    context: int | None = None
    key: str | None = None
    cacert: Path | None = None
    able: frozenset[str] = frozenset()

    @property
    def sees(self) -> bool:
        return "vision" in self.able

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Client:
    """``environment``: variables that are enough by themselves, or that the settings need. ``kind`` of the settings
    file (json, toml, yaml), ``path``, ``edits``: without a ``kind`` there is none. ``hint``: what else is to be done.
    """

    title: str
    api: Api
    environment: Callable[[Target], dict[str, str]]
    kind: str | None = None
    path: Callable[[Mapping[str, str]], Path] = lambda _: Path()
    edits: Callable[[Target], list[Edit]] = lambda _: []
    hint: str = ""


def _home(*parts: str) -> Path:
    return Path.home().joinpath(*parts)


def _config(environ: Mapping[str, str], *parts: str) -> Path:
    """In ``$XDG_CONFIG_HOME``, or ``~/.config``."""
    return Path(environ.get("XDG_CONFIG_HOME") or _home(".config")).joinpath(*parts)


def _in(variable: str, default: str, name: str) -> Callable[[Mapping[str, str]], Path]:
    return lambda environ: Path(environ.get(variable) or _home(default)) / name


def _claude(target: Target) -> dict[str, str]:
    """https://code.claude.com/docs/en/env-vars and /llm-gateway: the base URL is without ``/v1``, the token is sent as
    bearer token, and the settings file's ``env`` has the same variables. Small tasks ask for the model of "haiku",
    others for those of "sonnet" and "opus". The attribution header would change the beginning of every prompt, and
    telemetry is not for this server (https://www.agentpatterns.ai/context-engineering/kv-cache-invalidation-local-inference/).
    Without the window a conversation is taken to have 200,000 tokens before it is compacted."""
    window = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(target.context)} if target.context else {}
    tiers = ("ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    return {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key or NO_KEY,
        **dict.fromkeys(("ANTHROPIC_MODEL", *tiers), target.model),
        **window,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **_node(target),
    }


def _node(target: Target) -> dict[str, str]:
    """Certificates that a program on Node.js trusts, too (https://nodejs.org/api/cli.html)."""
    return {"NODE_EXTRA_CA_CERTS": str(target.cacert.resolve())} if target.cacert is not None else {}


def _key(target: Target) -> dict[str, str]:
    return {KEY_VARIABLE: target.key} if target.key else {}


def _codex(target: Target) -> list[Edit]:
    """docs/config.md of https://github.com/openai/codex: only the API of responses is spoken any more; ``env_key``
    names the variable that has the key (https://dev.to/aihubmix/codex-configtoml-a-working-setup-and-what-each-error-means-2ghj).
    """
    provider = {"name": "Ferrule", "base_url": target.v1, "wire_api": "responses"}
    if target.key:
        provider["env_key"] = KEY_VARIABLE
    window = [Edit(("model_context_window",), target.context)] if target.context else []
    return [
        Edit(("model",), target.model),
        Edit(("model_provider",), "ferrule"),
        *window,
        Edit(("model_providers", "ferrule"), provider),
    ]


def _opencode(target: Target) -> list[Edit]:
    """https://opencode.ai/docs/providers: any server of OpenAI's API by the AI SDK's package; ``{env:NAME}`` is read
    from the environment. Its models have to be listed. Version 2 takes it, too (https://opencode.ai/docs/migrate-v1).
    Without ``modalities`` it sends no images (https://github.com/anomalyco/opencode/issues/25229)."""
    model: dict[str, Any] = {"name": target.model}
    if target.context:
        model["limit"] = {"context": target.context, "output": target.context}
    if target.sees:
        model["modalities"] = {"input": ["text", "image"], "output": ["text"]}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Ferrule",
        "options": {"baseURL": target.v1, "apiKey": f"{{env:{KEY_VARIABLE}}}" if target.key else NO_KEY},
        "models": {target.model: model},
    }
    return [Edit(("provider", "ferrule"), provider), Edit(("model",), f"ferrule/{target.model}")]


def _opencode_path(environ: Mapping[str, str]) -> Path:
    """``opencode.jsonc`` where there is one, else ``opencode.json``."""
    if environ.get("OPENCODE_CONFIG"):
        return Path(environ["OPENCODE_CONFIG"])
    commented = _config(environ, "opencode", "opencode.jsonc")
    return commented if commented.exists() else commented.with_suffix(".json")


def _openai(names: tuple[str, str]) -> Callable[[Target], dict[str, str]]:
    """Environment of a client that reads base URL and key by ``names``."""
    return lambda target: {names[0]: target.v1, names[1]: target.key or NO_KEY}


def _aider(target: Target) -> list[Edit]:
    """https://aider.chat/docs/llms/openai-compat.html and /docs/config/aider_conf.html: ``openai/`` before the name
    says which API. The key stays in the environment."""
    key = [] if target.key else [Edit(("openai-api-key",), NO_KEY)]
    return [Edit(("model",), f"openai/{target.model}"), Edit(("openai-api-base",), target.v1), *key]


def _continue(target: Target) -> list[Edit]:
    """https://docs.continue.dev/customize/model-providers/top-level/openai and /reference: ``models`` are a list. The
    key is written into the file, which this user alone may read then. Images are sent to models that are known for it,
    or told (https://docs.continue.dev/customize/deep-dives/model-capabilities)."""
    roles = ("name", "provider", "model", "apiBase", "apiKey", "roles")
    values = ("Ferrule", "openai", target.model, target.v1, target.key or NO_KEY, ["chat", "edit", "apply"])
    able = [name for ours, name in (("tools", "tool_use"), ("vision", "image_input")) if ours in target.able]
    told = {"capabilities": able} if target.sees else {}
    return [Edit(("models",), {**dict(zip(roles, values, strict=True)), **told}, named="Ferrule")]


def _zed(target: Target) -> list[Edit]:
    """https://zed.dev/docs/ai/use-api-access: keys are no settings; of a provider called ``ferrule`` Zed reads
    ``FERRULE_API_KEY``. ``max_tokens`` is the context."""
    able = {"tools": True, "images": target.sees, "parallel_tool_calls": True, "prompt_cache_key": False}
    model = {
        "name": target.model,
        "display_name": f"{target.model} (Ferrule)",
        "max_tokens": target.context or 32768,
        "capabilities": able,
    }
    provider = {"api_url": target.v1, "available_models": [model]}
    return [
        Edit(("language_models", "openai_compatible", "ferrule"), provider),
        Edit(("agent", "default_model"), {"provider": "ferrule", "model": target.model}),
    ]


CLIENTS: Final[Mapping[str, Client]] = {
    "claude-code": Client(
        "Claude Code",
        "messages",
        _claude,
        "json",
        _in("CLAUDE_CONFIG_DIR", ".claude", "settings.json"),
        lambda target: [Edit(("env", name), value) for name, value in _claude(target).items()],
        "ANTHROPIC_API_KEY must not be set besides. Then: claude",
    ),
    "codex": Client(
        "Codex",
        "responses",
        _key,
        "toml",
        _in("CODEX_HOME", ".codex", "config.toml"),
        _codex,
        "Then: codex",
    ),
    "opencode": Client(
        "OpenCode",
        "chat",
        lambda target: {**_key(target), **_node(target)},
        "json",
        _opencode_path,
        _opencode,
        "Then: opencode",
    ),
    "aider": Client(
        "aider",
        "chat",
        _openai(("OPENAI_API_BASE", "OPENAI_API_KEY")),
        "yaml",
        lambda _: _home(".aider.conf.yml"),
        _aider,
        "Then: aider --model openai/MODEL; the settings file has address and model, and needs only a key from the "
        "environment, where the server has one.",
    ),
    "open-webui": Client(
        "Open WebUI",
        "chat",
        _openai(("OPENAI_API_BASE_URL", "OPENAI_API_KEY")),
        hint="They count at its first start; later set them under Admin Settings, Connections. In a container on this "
        "machine the host is host.docker.internal, and the server needs --host. "
        "Source: https://docs.openwebui.com/getting-started/env-configuration",
    ),
    "continue": Client(
        "Continue",
        "chat",
        lambda _: {},
        "yaml",
        lambda environ: Path(environ.get("CONTINUE_GLOBAL_DIR") or _home(".continue")) / "config.yaml",
        _continue,
        "Then choose the model Ferrule in the panel.",
    ),
    "zed": Client(
        "Zed",
        "chat",
        _key,
        "json",
        lambda environ: (
            _home(".config", "zed", "settings.json")
            if sys.platform == "darwin"
            else _config(environ, "zed", "settings.json")
        ),
        _zed,
        "Zed must be started where the variable is set, or get the key in its settings of LLM providers.",
    ),
}


def starting(name: str, path: Path, edits: list[Edit]) -> list[Edit]:
    """``edits``, and what a new file of the client ``name`` needs besides."""
    if name == "continue" and not path.exists():
        return [
            *(Edit((key,), value) for key, value in (("name", "Local"), ("version", "0.0.1"), ("schema", "v1"))),
            *edits,
        ]
    return edits


def environ() -> Mapping[str, str]:
    """Environment of this process, in which clients look for where their files are."""
    return os.environ
