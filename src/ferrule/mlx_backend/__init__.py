"""MLX's distributed operations over the fabric: MLX takes Ferrule for Open MPI (docs/libraries/mlx.md)."""

from ferrule.mlx_backend.library import LIBRARY, library

__all__ = ["LIBRARY", "library"]
