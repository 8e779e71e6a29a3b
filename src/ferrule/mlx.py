"""``import ferrule.mlx`` makes ``mx.distributed.init(backend="mpi")`` use Ferrule. See docs/libraries/mlx.md.

It has to come before MLX's first call of ``init``. Under ``ferrule launch``, which sets ``MLX_MPI_LIBNAME`` for all
ranks, programs need not know of Ferrule.
"""

import os

from ferrule.mlx_backend import LIBRARY, library
from ferrule.mlx_backend.communicator import world

__all__ = ["world"]

os.environ.setdefault(LIBRARY, library())
