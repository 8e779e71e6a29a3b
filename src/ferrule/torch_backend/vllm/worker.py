"""vLLM's worker for processors, with what a pipeline stage behind the first lacks there."""

from __future__ import annotations

from typing import Any

from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker.cpu_worker import CPUWorker


class FabricWorker(CPUWorker):  # type: ignore[misc]  # vLLM is not there where types are checked
    def load_model(self, **options: Any) -> None:
        """As vLLM's, which allocates what a stage receives into only while it warms up, and leaves that out where it
        does not compile and the size of its cache is given: the first request would fail there."""
        super().load_model(**options)
        runner = self.model_runner
        if not get_pp_group().is_first_rank and getattr(runner, "intermediate_tensors", self) is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
