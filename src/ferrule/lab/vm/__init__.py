"""Virtual machines with real kernels: boot one, run a script in it, take its results; all in seconds.

    lab = VmLab()
    result = lab.run(Guest(modules=["rdma_rxe"], python=["numpy", "ferrule"], script=SCRIPT), timeout=120)
    result.check().files["answer.json"]

See docs/lab.md.
"""

from ferrule.lab.vm.guest import Guest, Result
from ferrule.lab.vm.lab import RDMA, VmLab, obstacle
from ferrule.lab.vm.python import PYTEST
from ferrule.lab.vm.running import RunningGuest
from ferrule.lab.vm.session import Completed

__all__ = ["PYTEST", "RDMA", "Completed", "Guest", "Result", "RunningGuest", "VmLab", "obstacle"]
