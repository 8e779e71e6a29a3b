"""Settings: defaults < file < environment < flags."""

from ferrule.config.catalogue import SETTINGS, Setting
from ferrule.config.engine import device_peers, pins_threads, uses_vendor_kernels
from ferrule.config.fabric import (
    DEFAULT_TIMEOUT,
    OUTER_JOB,
    TRANSPORT_CHOICES,
    Calibration,
    FabricSettings,
    TransportChoice,
    check_transport,
    fabric_settings,
    host_id,
    outer_environment,
    rank_variables,
)
from ferrule.config.file import config_path, parse_config, read_config
from ferrule.config.models import ModelSettings, model_settings, move_back_seconds
from ferrule.config.sources import Value, current_values, environment, merge, without_secrets
from ferrule.config.values import is_address, is_loopback, parse_address
from ferrule.config.verbs import VerbsSettings, verbs_settings

__all__ = [
    "DEFAULT_TIMEOUT",
    "OUTER_JOB",
    "SETTINGS",
    "TRANSPORT_CHOICES",
    "Calibration",
    "FabricSettings",
    "ModelSettings",
    "Setting",
    "TransportChoice",
    "Value",
    "VerbsSettings",
    "check_transport",
    "config_path",
    "current_values",
    "device_peers",
    "environment",
    "fabric_settings",
    "host_id",
    "is_address",
    "is_loopback",
    "merge",
    "model_settings",
    "move_back_seconds",
    "outer_environment",
    "parse_address",
    "parse_config",
    "pins_threads",
    "rank_variables",
    "read_config",
    "uses_vendor_kernels",
    "verbs_settings",
    "without_secrets",
]
