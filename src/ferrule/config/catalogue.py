"""Every setting that a person may make once for good: its key in the file, its variable, its type and its default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Setting:
    """``key``: section and name in the file. ``types``: what TOML may have there; a list is written into the variable
    with ``separator`` between its items. ``default``: as a person reads it. ``secret``: never shown."""

    key: str
    variable: str
    types: tuple[type, ...]
    default: str
    help: str
    separator: str = ","
    secret: bool = False


_NUMBER: Final = (int, float)
_DURATION: Final = (int, float, str)

SETTINGS: Final = (
    Setting("serve.port", "FERRULE_PORT", (int,), "8420", "port of `serve` and `chat`"),
    Setting("serve.api_key", "FERRULE_API_KEY", (str,), "none", "what clients of `serve` must send", secret=True),
    Setting(
        "serve.keys_file", "FERRULE_KEYS_FILE", (str,), "in the user's state", "API keys that `ferrule keys` makes"
    ),
    Setting("serve.request_log", "FERRULE_REQUEST_LOG", (str,), "none", "a line of JSON for each request of `serve`"),
    Setting("serve.tls_self", "FERRULE_TLS_SELF", (bool,), "false", "let `serve` make its certificate itself"),
    Setting("serve.ssl_certfile", "FERRULE_SSL_CERTFILE", (str,), "none", "certificate with which `serve` speaks TLS"),
    Setting("serve.ssl_keyfile", "FERRULE_SSL_KEYFILE", (str,), "in the certificate's file", "its private key"),
    Setting("serve.plain_http", "FERRULE_PLAIN_HTTP", (bool,), "false", "let `serve` do without TLS beyond loopback"),
    Setting("serve.allow_origins", "FERRULE_ALLOW_ORIGINS", (list,), "none", "web pages that may use `serve` (CORS)"),
    Setting("serve.image_urls", "FERRULE_IMAGE_URLS", (bool,), "false", "fetch images that requests name by https"),
    Setting("serve.share_downloads", "FERRULE_SHARE_DOWNLOADS", (bool,), "false", "be a hub of what was downloaded"),
    Setting("serve.memory_limit", "FERRULE_MEMORY_LIMIT", (int, str), "none", "several models' memory, as 48GiB"),
    Setting("serve.self_test", "FERRULE_SELF_TEST", (bool,), "true", "compare a split model with its reference"),
    Setting("serve.graphs", "FERRULE_GRAPHS", (bool,), "true", "capture steps on devices that can"),
    Setting("serve.prefix_cache", "FERRULE_PREFIX_CACHE", (bool,), "true", "keep what was computed of prompts"),
    Setting("serve.prefix_cache_disk", "FERRULE_PREFIX_CACHE_DISK", (int, str), "off", "and on disk, as 8GiB"),
    Setting("serve.inter_token_limit", "FERRULE_INTER_TOKEN_LIMIT", (str,), "auto", "a step beside prompts, as 2x"),
    Setting("serve.max_queue_time", "FERRULE_MAX_QUEUE_TIME", _DURATION, "10 min", "for which requests wait, or off"),
    Setting(
        "serve.speculate",
        "FERRULE_SPECULATE",
        (str,),
        "off",
        "guess tokens: ngram[:K], mtp[:K], draft=MODEL[:K] or off",
    ),
    Setting("serve.kv_cache", "FERRULE_KV_CACHE", (str,), "auto", "how keys and values are kept: auto, int8, int4"),
    Setting("serve.stream_weights", "FERRULE_STREAM_WEIGHTS", (int, str), "off", "weights in memory: 24GiB, auto"),
    Setting("engine.pin", "FERRULE_PIN", (bool,), "true", "tie each rank's threads to cores of their own"),
    Setting("engine.vendor_kernels", "FERRULE_VENDOR_KERNELS", (bool,), "true", "allow kernels of other libraries"),
    Setting("engine.device_peers", "FERRULE_DEVICE_PEERS", (str,), "auto", "NCCL, RCCL in a host: auto, always, never"),
    Setting("models.path", "FERRULE_MODEL_PATH", (list,), "none", "directories that hold models", os.pathsep),
    Setting("models.cache", "FERRULE_MODEL_CACHE", (str,), "the user's cache", "where parts of models are kept"),
    Setting(
        "models.move_back",
        "FERRULE_MOVE_BACK",
        _DURATION,
        "30 s",
        "before a model returns to a host or a device, or never",
    ),
    Setting("cluster.name", "FERRULE_CLUSTER", (str,), "the only one", "which cluster is meant, of several"),
    Setting("cluster.state", "FERRULE_STATE", (str,), "the user's state", "where clusters are kept"),
    Setting("fabric.transport", "FERRULE_TRANSPORT", (str,), "auto", "how bytes move between ranks (fabric.md)"),
    Setting("fabric.interfaces", "FERRULE_INTERFACES", (list,), "all", "network interfaces; ^NAME: not this one"),
    Setting("fabric.rails", "FERRULE_RAILS", (int, str), "auto", "sockets per interface and stream"),
    Setting("fabric.timeout", "FERRULE_TIMEOUT", _DURATION, "300 s", "how long an operation may wait"),
    Setting("fabric.heartbeat", "FERRULE_HEARTBEAT", _DURATION, "0.8 s", "silence that ends a peer; 0: never"),
    Setting("fabric.calibrate", "FERRULE_CALIBRATE", (int, str), "1", "1: unknown links, fresh: all, 0: none"),
    Setting("fabric.algorithm", "FERRULE_ALGORITHM", (str,), "auto", "the algorithm of collectives"),
    Setting("fabric.spin_us", "FERRULE_SPIN_US", _NUMBER, "auto", "microseconds of busy waiting"),
    Setting("fabric.encrypt", "FERRULE_ENCRYPT", (bool,), "false", "encrypt what ranks say over cables"),
    Setting("verbs.devices", "FERRULE_VERBS_DEVICES", (list, str), "all", "RDMA devices; ^A,B: all but those"),
    Setting("verbs.type", "FERRULE_VERBS_TYPE", (str,), "auto", "queue pairs: auto, RC or UC"),
)

BY_KEY: Final[Mapping[str, Setting]] = MappingProxyType({each.key: each for each in SETTINGS})
