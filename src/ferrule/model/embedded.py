"""Path of the embedded demonstration model."""

from importlib.resources import files
from pathlib import Path

from ferrule.errors import ModelError


def demo_path() -> Path:
    """The folder of the embedded demonstration model, in Hugging Face's layout.

    Raises:
        ModelError: the package was installed without the model, or not as files on disk.
    """
    folder = Path(str(files("ferrule.model") / "demo"))
    if not (folder / "model.safetensors").is_file():
        raise ModelError(f"the embedded model is missing from {folder}: reinstall ferrule, or name another model")
    return folder
