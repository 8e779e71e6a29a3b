"""The embedded model on two ranks, asked by the real client."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from openai import AsyncOpenAI, BadRequestError
from server_process import Server, wait_until
from transformers import AutoModelForCausalLM, AutoTokenizer

from ferrule.model import demo_path

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What does json.dumps do?"}]


def alone(messages: list[dict[str, str]], count: int) -> str:
    """Answer of transformers in one process, greedily."""
    tokenizer = AutoTokenizer.from_pretrained(demo_path())
    model = AutoModelForCausalLM.from_pretrained(demo_path(), dtype=torch.float32)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, return_tensors="pt")
    out = model.generate(ids, max_new_tokens=count, do_sample=False)[0, ids.shape[1] :]
    return str(tokenizer.decode(out, skip_special_tokens=True))


def test_what_it_prints_when_ready(demo: Server) -> None:
    assert f"{demo.url}/v1" in demo.output
    assert "--tp 2 --pp 1" in demo.output
    assert demo.output.count("shm") == 2
    command = next(line for line in demo.lines if line.startswith("curl "))
    answer = subprocess.run(["sh", "-c", command.strip() + " -s"], capture_output=True, text=True, timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["message"]["role"] == "assistant", shlex.quote(command)


def test_the_server_itself_is_small_and_has_no_torch(demo: Server) -> None:
    server = psutil.Process(demo.process.pid)
    assert server.memory_info().rss < 150 * 2**20
    libraries = {Path(each.path).name for each in server.memory_maps()}
    assert not any(name.startswith("libtorch") for name in libraries)
    assert all(any("libtorch" in each.path for each in rank.memory_maps()) for rank in demo.ranks()), "it would show"


def test_a_streamed_chat_is_what_one_process_would_say(demo: Server) -> None:
    stream = demo.client().chat.completions.create(
        model="ferrule-demo",
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip()
    assert text == alone(QUESTION, 48)
    assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 3
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_requests_at_once_are_batched_and_answered_as_if_alone(demo: Server) -> None:
    """Answers are long enough to be seen together on a busy machine, where asking for health takes a while."""
    prompts = [f"The {word} module" for word in ("os", "json", "random", "string", "socket", "time")]

    def ask(prompt: str) -> str:
        answer = demo.client().completions.create(
            model="ferrule-demo", prompt=prompt, max_tokens=400, temperature=0, extra_body={"ignore_eos": True}
        )
        return answer.choices[0].text

    one_by_one = [ask(prompt) for prompt in prompts]
    most = 0
    with ThreadPoolExecutor(len(prompts)) as pool:
        futures = [pool.submit(ask, prompt) for prompt in prompts]
        while not all(future.done() for future in futures):
            most = max(most, demo.health().json()["running"])
        together = [future.result() for future in futures]
    assert together == one_by_one
    assert most > 1


def test_a_client_that_goes_away_stops_its_generation(demo: Server) -> None:
    stream = demo.client().completions.create(
        model="ferrule-demo", prompt="def", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: demo.health().json()["running"] == 0, 20, "the sequence is cancelled")


def test_a_prompt_beyond_the_context_is_refused(demo: Server) -> None:
    with pytest.raises(BadRequestError, match="context") as caught:
        demo.client().completions.create(model="ferrule-demo", prompt="word " * 5000, max_tokens=5)
    assert caught.value.code == "context_length_exceeded"


def test_the_same_seed_gives_the_same_answer_also_in_company(demo: Server) -> None:
    async def ask(client: AsyncOpenAI, seed: int) -> str:
        answer = await client.completions.create(
            model="ferrule-demo", prompt="Return the", max_tokens=30, temperature=1.0, seed=seed
        )
        return answer.choices[0].text

    async def body() -> None:
        async with AsyncOpenAI(base_url=f"{demo.url}/v1", api_key="none") as client:
            first = await ask(client, 1)
            again, other, _ = await asyncio.gather(ask(client, 1), ask(client, 2), ask(client, 3))
        assert first == again
        assert first != other

    asyncio.run(body())


def test_what_the_model_makes_of_prompts_is_what_one_process_makes_of_them(demo: Server) -> None:
    tokenizer = AutoTokenizer.from_pretrained(demo_path())
    model = AutoModelForCausalLM.from_pretrained(demo_path(), dtype=torch.float32).eval()
    texts = ["def main():\n    return", "import json"]
    scored = demo.client().completions.create(
        model="ferrule-demo", prompt=texts, echo=True, logprobs=3, max_tokens=0, temperature=0
    )
    found = demo.client().embeddings.create(model="ferrule-demo", input=texts)
    for text, choice, vector in zip(texts, scored.choices, found.data, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = model(ids, output_hidden_states=True)
        right = out.logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        assert choice.text == text
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(right.tolist(), abs=1e-3)
        last = out.hidden_states[-1][0, -1]
        assert vector.embedding == pytest.approx((last / last.norm()).tolist(), abs=1e-4)
