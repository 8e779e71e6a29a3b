"""GGUF files: their headers, the configuration that they tell, and what their tensors take."""

from ferrule.model.gguf.config import gguf_config, gguf_text
from ferrule.model.gguf.files import SUFFIX, GgufModel, full_path, gguf_file, model_name, read_gguf_model
from ferrule.model.gguf.header import Gguf, parse_gguf, read_gguf
from ferrule.model.gguf.metadata import Metadata
from ferrule.model.gguf.types import LAYOUTS, SIZES

__all__ = [
    "LAYOUTS",
    "SIZES",
    "SUFFIX",
    "Gguf",
    "GgufModel",
    "Metadata",
    "full_path",
    "gguf_config",
    "gguf_file",
    "gguf_text",
    "model_name",
    "parse_gguf",
    "read_gguf",
    "read_gguf_model",
]
