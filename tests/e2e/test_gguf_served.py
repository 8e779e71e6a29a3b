"""``ferrule serve model.gguf``: what is asked over HTTP is answered with transformers' probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_models import write
from server_process import start_server
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gguf_file_is_served_with_the_probabilities_of_its_numbers(ranks: int, tmp_path: Path) -> None:
    plain = {"attention_bias": False, "mlp_bias": False, "intermediate_size": 128}
    file, _ = write("llama", tmp_path / "tiny", "Q8_0", **plain)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    server = start_server(str(file), "--tp", str(ranks), "--dtype", "float32")
    try:
        client = server.client()
        assert [each.id for each in client.models.list()] == ["model"]
        prompt = [1, 101, 103, 84]
        answer = client.completions.create(
            model="model", prompt=prompt, max_tokens=6, temperature=0, logprobs=5, extra_body={"ignore_eos": True}
        )
        found = answer.choices[0].logprobs
        assert found is not None
        assert found.token_logprobs is not None
        expected = []
        for _ in range(6):
            with torch.inference_mode():
                best = model(torch.tensor([prompt])).logits[0, -1].log_softmax(dim=0).max(dim=0)
            expected.append(float(best.values))
            prompt.append(int(best.indices))
        assert found.token_logprobs == pytest.approx(expected, abs=1e-4)
        chat = client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": "hello"}], max_tokens=3, temperature=0
        )
        assert chat.usage is not None
        assert chat.usage.prompt_tokens == 3, "the template's <s>, the content, the template's </s>"
    finally:
        server.stop()
