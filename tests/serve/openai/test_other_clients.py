"""Libraries that speak OpenAI's APIs in their own ways: litellm, langchain-openai and llm, chats and responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from pydantic import BaseModel
from running import running
from test_serve_tools import FIRST, MODEL, SECOND, WEATHER, calling, prompt_of

pytestmark = pytest.mark.slow
HELLO: Any = [{"role": "user", "content": "Weather?"}]
PLACE = '{"city": "Köln"}'


class Place(BaseModel):
    """Where somebody is."""

    city: str


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return calling()


@pytest.fixture(scope="module")
def base(engine: FakeEngine) -> Iterator[str]:
    with running(engine) as url:
        yield f"{url}/v1"


def test_litellm_completes_streams_calls_and_responds(
    engine: FakeEngine, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
    litellm = pytest.importorskip("litellm", reason="pip install litellm")
    ask: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": base, "api_key": "none", "num_retries": 0}
    whole = litellm.completion(messages=HELLO, tools=[WEATHER], **ask)
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == ("I look.", "Grüße?")
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [FIRST, SECOND]
    chunks = list(litellm.completion(messages=HELLO, tools=[WEATHER], stream=True, **ask))
    joined = litellm.stream_chunk_builder(chunks).choices[0].message
    assert joined.content == "I look."
    assert [json.loads(call.function.arguments) for call in joined.tool_calls] == [FIRST, SECOND]
    history = [*HELLO, message.model_dump()]
    history += [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    monkeypatch.setattr(engine, "text", PLACE)
    structured = litellm.completion(messages=history, response_format=Place, **ask)
    assert Place.model_validate_json(structured.choices[0].message.content) == Place(city="Köln")
    response = litellm.responses(input="Where?", **ask)
    assert response.output[0].content[0].text == PLACE
    assert response.usage.output_tokens == engine.calls[-1].made
    events = list(litellm.responses(input="And?", previous_response_id=response.id, stream=True, **ask))
    assert events[-1].type == "response.completed"
    assert f"Where?<|end|><|assistant|>{PLACE}<|end|><|user|>And?" in prompt_of(engine)


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_invokes_streams_calls_and_structures(
    engine: FakeEngine, base: str, responses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
    messages = pytest.importorskip("langchain_core.messages")
    model = langchain.ChatOpenAI(
        model=MODEL, base_url=base, api_key="none", max_retries=0, use_responses_api=responses, stream_usage=True
    )
    bound = model.bind_tools([WEATHER])
    answer = bound.invoke("Weather?")
    assert answer.text == "I look."
    assert [call["args"] for call in answer.tool_calls] == [FIRST, SECOND]
    assert answer.usage_metadata["output_token_details"]["reasoning"] > 0
    chunks = list(bound.stream("Weather?"))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert [call["args"] for call in joined.tool_calls] == [FIRST, SECOND]
    results = [messages.ToolMessage("rain", tool_call_id=call["id"]) for call in answer.tool_calls]
    monkeypatch.setattr(engine, "text", PLACE)
    assert bound.invoke([messages.HumanMessage("Weather?"), answer, *results]).text == PLACE
    assert "rain" in engine.tokenizer.decode(engine.calls[-1].prompt)
    for method in ("json_schema", "json_mode"):
        assert model.with_structured_output(Place, method=method).invoke("Where?") == Place(city="Köln")
        assert engine.calls[-1].params.constraint is not None


def test_llm_prompts_by_an_entry_of_its_own_file(
    engine: FakeEngine, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"model_id": "here", "model_name": MODEL, "api_base": base, "supports_tools": True, "supports_schema": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    llm = pytest.importorskip("llm", reason="pip install llm")
    model = llm.get_model("here")
    assert "".join(model.prompt("Weather?")) == "I look.\n" + engine.text.partition("I look.\n")[2]
    assert engine.calls[-1].params.constraint is None
    monkeypatch.setattr(engine, "text", PLACE)
    assert json.loads(model.prompt("Where?", schema=Place).text()) == {"city": "Köln"}
    assert engine.calls[-1].params.constraint is not None
