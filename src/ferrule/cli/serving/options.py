"""Options of `ferrule serve` as what they name: files of TLS, a log, a saved plan, adapters, origins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ferrule.errors import ConfigError
from ferrule.units import parse_bytes

if TYPE_CHECKING:
    from ferrule.engine.options import Adapter
    from ferrule.plan import SavedPlan
    from ferrule.serve.http.request_log import RequestLog
    from ferrule.serve.http.tls import ServerTls


SslCertfile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-certfile", envvar="FERRULE_SSL_CERTFILE", metavar="FILE", help="Serve https with this certificate (PEM)."
    ),
]
SslKeyfile = Annotated[
    Path | None,
    typer.Option(
        "--ssl-keyfile", envvar="FERRULE_SSL_KEYFILE", metavar="FILE", help="Its key; left out, in the same file."
    ),
]
TlsSelf = Annotated[
    bool,
    typer.Option("--tls-self", envvar="FERRULE_TLS_SELF", help="Serve https with a certificate made here, once."),
]
PlainHttp = Annotated[
    bool,
    typer.Option("--plain-http", envvar="FERRULE_PLAIN_HTTP", help="No TLS beyond loopback: on a trusted net."),
]


class ModelOptions(TypedDict):
    """Options that each of several models may have its own of, by the names of `EngineOptions`, `DesiredModel` and
    `Wanted`."""

    dtype: str
    weights: str | None
    kv_cache: str
    max_context: int | None
    threads: int | None


class CommonOptions(TypedDict):
    """Options that all models of an address have in common, by the names of `EngineOptions` and `DesiredModel`."""

    self_test: bool
    graphs: bool
    prefix_cache: bool
    prefix_disk: int
    inter_token_limit: str
    speculate: str
    stream_weights: int | None
    standby: bool
    encrypt: bool | None


def adapters_of(given: list[str] | None) -> tuple[Adapter, ...]:
    if not given:
        return ()
    from ferrule.engine.options import parse_adapters

    return parse_adapters(given)


def request_log_of(target: str | None) -> RequestLog | None:
    if target is None:
        return None
    from ferrule.serve.http.request_log import RequestLog

    return RequestLog(target)


def tls_of(chain: Path | None, key: Path | None, own: bool, host: str) -> ServerTls | None:
    """Of the files that were given, or of the certificate that is made here. Raises `ConfigError`."""
    if own:
        if chain is not None or key is not None:
            raise ConfigError("--tls-self makes the certificate itself: leave --ssl-certfile and --ssl-keyfile out")
        from ferrule.serve.http.self_signed import SelfSigned

        return SelfSigned(host)
    if chain is None and key is None:
        return None
    if chain is None:
        raise ConfigError(f"--ssl-keyfile {key} needs the certificate that it belongs to: --ssl-certfile FILE")
    from ferrule.serve.http.tls import ServerTls

    return ServerTls(chain, key)


def refuse_in_cluster(api_key: str | None, request_log: str | None, *, share_downloads: bool) -> None:
    """Raises `ConfigError` for what models of a cluster do not have."""
    if api_key is not None:
        raise ConfigError("a cluster makes the key of each model itself: leave --api-key out, or serve --here")
    if share_downloads:
        raise ConfigError("hosts of a cluster send each other what they need: leave --share-downloads out")
    if request_log == "-":
        raise ConfigError("models of a cluster have no output: give --request-log a file, or serve --here")


def origins_of(text: str | None, *, keyed: bool) -> tuple[str, ...]:
    origins = tuple(each.strip() for each in text.split(",")) if text else ()
    if origins:
        from ferrule.serve.http.auth import check_origins

        check_origins(origins, keyed=keyed)
    return origins


def tensor_of(tp: int | None, shares: str | None, *, expert_parallel: bool) -> tuple[int | None, tuple[float, ...]]:
    """Ranks of ``--tp``, as many as ``--shares`` names where that is left out, and the shares. Raises `ConfigError`."""
    if expert_parallel and tp is None and shares is None:
        raise ConfigError("--expert-parallel gives experts to the ranks of --tp: say how many, such as --tp 2")
    if shares is None:
        return tp, ()
    from ferrule.engine.options import parse_shares

    found = parse_shares(shares)
    return len(found) if tp is None else tp, found


def saved_plan(
    file: Path | None,
    tp: int | None,
    pp: int | None,
    hosts: str | None,
    *,
    expert_parallel: bool,
    cp: int | None = None,
) -> SavedPlan | None:
    if file is None:
        return None
    if expert_parallel or any(given is not None for given in (tp, pp, cp, hosts)):
        raise ConfigError(
            "--plan says how to split and on which hosts: leave --tp, --pp, --cp, --shares, --expert-parallel and "
            "--hosts out"
        )
    from ferrule.plan import read_plan

    return read_plan(file)


def prefix_disk_of(size: str | None) -> int:
    """Bytes of each rank's disk, by ``--prefix-cache-disk``. Raises `ConfigError`."""
    return 0 if size is None or size == "off" else parse_bytes(size)


def stream_weights_of(size: str | None) -> int | None:
    """`EngineOptions.stream_weights`, by ``--stream-weights``. Raises `ConfigError`."""
    if size is None or size == "off":
        return None
    return 0 if size == "auto" else parse_bytes(size)
