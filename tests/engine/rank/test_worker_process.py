"""What a rank's process imports, and what it leaves as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import pathlib
import sys
import torch
import transformers
own = torch.compiler.disable, torch.compiler.allow_in_graph, torch.distributed.is_available
from ferrule.engine.rank.worker_process import main, step_seconds

import transformers.models.llama.modeling_llama as llama
with torch.device("meta"):
    llama.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=1))

heavy = {"scipy", "accelerate", "triton", "torch._dynamo", "torch._inductor", "torch.distributed.tensor"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "transformers.modeling_utils" in sys.modules
read = transformers.utils.import_utils.define_import_structure
once = read.cache_info().misses
read(str(pathlib.Path(transformers.__file__).parent / "models" / "__init__.py"))
assert read.cache_info().misses == once + 1, "the sources of the models were read twice"
assert all(hasattr(transformers.models, name) for name in ("llama", "auto"))
assert own == (torch.compiler.disable, torch.compiler.allow_in_graph, torch.distributed.is_available)
with transformers.masking_utils.TransformGetItemToIndex() as mode:  # imported by its use
    assert type(mode).__module__ == "torch._dynamo._trace_wrapped_higher_order_op"
assert torch._dynamo is sys.modules["torch._dynamo"]
assert torch._dynamo.is_compiling() is False
"""


@pytest.mark.slow
def test_a_rank_imports_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
