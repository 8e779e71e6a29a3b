"""The embedded model on two ranks, asked by the real client."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import jsonschema
import ollama
import psutil
import pytest
import torch
from anthropic import Anthropic
from ollama import ResponseError
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel, Field
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


def test_responses_follow_each_other_as_a_chat_does(demo: Server) -> None:
    client = demo.client()
    ask: dict[str, Any] = {"model": "ferrule-demo", "temperature": 0}
    first = client.responses.create(input="What does json.dumps do?", max_output_tokens=48, **ask)
    assert first.output_text == alone(QUESTION, 48)
    assert (first.status, first.usage and first.usage.output_tokens) == ("incomplete", 48)
    events = list(
        client.responses.create(
            previous_response_id=first.id, input="And json.loads?", max_output_tokens=24, stream=True, **ask
        )
    )
    last = events[-1]
    assert last.type == "response.incomplete"
    said = [
        *QUESTION,
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And json.loads?"},
    ]
    assert last.response.output_text == alone(said, 24)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == last.response.output_text
    usage = last.response.usage
    assert usage
    counted = httpx.post(f"{demo.url}/tokenize", json={"messages": said}).json()
    assert counted["count"] == usage.input_tokens
    shut = httpx.post(f"{demo.url}/tokenize", json={"messages": said, "add_generation_prompt": False}).json()
    assert shut["tokens"] == counted["tokens"][: shut["count"]]
    assert shut["count"] < counted["count"]
    text = httpx.post(f"{demo.url}/detokenize", json={"tokens": counted["tokens"]}).json()["prompt"]
    assert httpx.post(f"{demo.url}/tokenize", json={"prompt": text, "add_special_tokens": False}).json() == counted

    class Place(BaseModel):
        city: Annotated[str, Field(max_length=20)]
        tags: Annotated[list[Literal["old", "new"]], Field(min_length=1, max_length=3)]

    with client.responses.stream(
        model="ferrule-demo", previous_response_id=last.response.id, input="Where?", text_format=Place, temperature=1
    ) as stream:
        stream.until_done()
        assert stream.get_final_response().output_parsed is not None
    with pytest.raises(BadRequestError, match="knows no tools"):
        client.responses.create(
            input="?", tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}], **ask
        )


def test_anthropics_client_gets_the_same_answer(demo: Server) -> None:
    expected = alone(QUESTION, 48)
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as client:
        asked: Any = {"model": "ferrule-demo", "messages": QUESTION, "extra_body": {"temperature": 0}}
        whole = client.messages.create(**asked, max_tokens=48)
        with client.messages.stream(**asked, max_tokens=48) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
        counted = client.messages.count_tokens(model="ferrule-demo", messages=asked["messages"])
        word = expected.split()[4]
        stopped = client.messages.create(**asked, max_tokens=48, stop_sequences=[word])
    assert [block.text for block in whole.content if block.type == "text"] == [text] == [expected]
    assert whole.usage == streamed.usage
    assert whole.stop_reason == streamed.stop_reason
    assert counted.input_tokens == whole.usage.input_tokens
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)


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


def test_ollamas_client_is_answered_the_same(demo: Server) -> None:
    said = demo.client().chat.completions.create(
        model="ferrule-demo",
        messages=QUESTION,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=24,
    )
    greedy = {"temperature": 0, "num_predict": 24}
    with ollama.Client(demo.url, timeout=60) as client:
        (listed,) = client.list().models
        name = listed.model or ""
        assert name == "ferrule-demo:latest"
        parts = list(client.chat(name, QUESTION, stream=True, options=greedy))
        assert "".join(part.message.content or "" for part in parts) == said.choices[0].message.content
        last = parts[-1]
        assert said.usage is not None
        assert (last.prompt_eval_count, last.eval_count) == (said.usage.prompt_tokens, said.usage.completion_tokens)
        measured = (last.load_duration, last.prompt_eval_duration, last.eval_duration)
        assert all(each is not None and each > 0 for each in measured)
        assert sum(each or 0 for each in measured) <= (last.total_duration or 0)

        first = client.generate(name, QUESTION[0]["content"], options=greedy)
        assert first.response == said.choices[0].message.content
        more = client.generate(name, "Why?", context=first.context, options=greedy)
        assert (more.prompt_eval_count or 0) > len(first.context or ())
        raw = client.generate(name, "def main(", raw=True, options=greedy, logprobs=True, top_logprobs=3)
        completed = demo.client().completions.create(
            model="ferrule-demo", prompt="def main(", temperature=0, max_tokens=24
        )
        assert raw.response == completed.choices[0].text
        assert all(len(each.top_logprobs or ()) == 3 for each in raw.logprobs or ())
        schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
        answer = client.chat(name, QUESTION, format=schema, options={"seed": 1})
        jsonschema.validate(json.loads(answer.message.content or ""), schema)

        shown = client.show(name)
        assert shown.modelinfo is not None
        assert shown.details is not None
        assert (shown.details.family, shown.modelinfo["llama.context_length"]) == ("llama", 1024)
        assert shown.capabilities is not None
        tool = {"type": "function", "function": {"name": "look"}}
        for ability, ask in (
            ("tools", lambda: client.chat(name, QUESTION, tools=[tool], options=greedy)),
            ("thinking", lambda: client.chat(name, QUESTION, think=True, options=greedy)),
            ("embedding", lambda: client.embed(name, "a text")),
        ):
            if ability in shown.capabilities:
                assert ask()
            else:
                with pytest.raises(ResponseError) as refused:
                    ask()
                assert refused.value.status_code == 400, ability
        (held,) = client.ps().models
        assert (held.size or 0) > (listed.size or 0)  # float32 of bfloat16
        assert held.size_vram == 0
    assert httpx.get(demo.url).text == "Ollama is running"
