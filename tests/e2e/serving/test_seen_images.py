"""`ferrule serve` with a model that sees: files from OpenAI's client to its answer, which is transformers' own."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import openai
import pytest
from seeing_models import image, image_prompts, make
from server_process import start_server
from test_vision_parity import by_transformers

TEMPLATE = (
    "{% for message in messages %}w3 {% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %} "
    "{% endfor %}{% endfor %}w4"
)
TOKENS = 8


def data_url(file: bytes) -> str:
    return f"data:;base64,{base64.b64encode(file).decode()}"


@pytest.mark.slow
def test_images_are_answered_over_http_as_by_transformers(tmp_path: Path) -> None:
    make("qwen3_vl", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    one, two = image(40, 24, 1), image(20, 60, 2, "JPEG")
    text = "w3 w5 w17 <|vision_start|><|image_pad|><|vision_end|> w9 <|vision_start|><|image_pad|><|vision_end|> w4"
    prompt = asyncio.run(image_prompts(tmp_path).read(text, [one, two], 200, add_special_tokens=False))
    expected, _ = by_transformers(tmp_path, prompt, TOKENS)

    server = start_server(
        *(str(tmp_path), "--tp", "1", "--pp", "1", "--dtype", "float32", "--threads", "1"),
        *("--image-urls", "--name", "seer"),
    )
    try:
        client = server.client(timeout=60)

        def ask(*urls: str, **more: Any) -> Any:
            words = iter([{"type": "text", "text": "w5 w17"}, {"type": "text", "text": "w9"}])
            content = [each for url in urls for each in (next(words), {"type": "image_url", "image_url": {"url": url}})]
            fields: Any = {
                "model": "seer",
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
                "max_completion_tokens": TOKENS,
                "extra_body": {"ignore_eos": True},
            }
            return client.chat.completions.create(**{**fields, **more})

        answer = ask(data_url(one), data_url(two), n=2)
        assert [choice.message.content.split() for choice in answer.choices] == [[f"w{each}" for each in expected]] * 2
        assert answer.usage.prompt_tokens == len(prompt.tokens)
        events = list(ask(data_url(one), data_url(two), stream=True))
        said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert said == answer.choices[0].message.content
        assert "vision" in client.models.retrieve("seer").capabilities  # type: ignore[attr-defined]
        for url, told in (
            (data_url(one[:-300]), "image 1 cannot be read: it is damaged"),
            (f"{server.url.replace('http', 'https')}/a.png", "there is no '127.0.0.1' in the public internet"),
        ):
            with pytest.raises(openai.BadRequestError, match=told) as caught:
                ask(url)
            assert caught.value.param == "messages.0.content.1"
    finally:
        server.stop()
