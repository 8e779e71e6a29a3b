"""Model description: counts and sizes, read from config.json, the weights' headers, a GGUF file or a hub."""

from ferrule.model.adapters import with_adapters
from ferrule.model.embedded import demo_path
from ferrule.model.families.family import Cuts
from ferrule.model.headers import Stored
from ferrule.model.hub import Hub
from ferrule.model.kv_cache import CACHE_BITS, kept_in
from ferrule.model.layer import (
    BUILT_IN,
    CACHE_GROUP,
    COMPACT,
    AttentionSpec,
    ExpertsSpec,
    LayerSpec,
    LayerWeights,
    Share,
    Weights,
)
from ferrule.model.mixer import MixerSpec
from ferrule.model.mtp import MTP, read_mtp
from ferrule.model.pooling import Embedding, PoolingMode, lacks_head, read_embedding
from ferrule.model.read import known_models, read_configuration, read_model, spec_of_config, spec_of_tensors
from ferrule.model.spec import ModelSpec
from ferrule.model.split import HeadSplit, Range, divide, no_plan, split_heads

__all__ = [
    "BUILT_IN",
    "CACHE_BITS",
    "CACHE_GROUP",
    "COMPACT",
    "MTP",
    "AttentionSpec",
    "Cuts",
    "Embedding",
    "ExpertsSpec",
    "HeadSplit",
    "Hub",
    "LayerSpec",
    "LayerWeights",
    "MixerSpec",
    "ModelSpec",
    "PoolingMode",
    "Range",
    "Share",
    "Stored",
    "Weights",
    "demo_path",
    "divide",
    "kept_in",
    "known_models",
    "lacks_head",
    "no_plan",
    "read_configuration",
    "read_embedding",
    "read_model",
    "read_mtp",
    "spec_of_config",
    "spec_of_tensors",
    "split_heads",
    "with_adapters",
]
