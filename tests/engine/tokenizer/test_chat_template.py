"""Chat templates against what transformers renders of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from ferrule.engine.tokenizer.chat_template import ChatTemplate
from ferrule.model import demo_path

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|h|>system<|/h|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|/h|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' + (tool_call.arguments | tojson) + "}<|eot|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|h|>ipython<|/h|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant<|/h|>\\n\\n' }}
{%- endif %}
"""
QWEN_3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and
        not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content or '' %}
        {%- if '</think>' in content and loop.index0 < ns.last_query_index %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set tool_call = tool_call.function if tool_call.function else tool_call %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
    {{ '[INST] ' + message['content'] + ' [/INST]' }}
  {% elif message['role'] == 'assistant' %}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% else %}{{ raise_exception('no ' ~ message.role ~ ' here') }}{% endif %}
{% endfor %}"""
FEATURES = """{% macro line(text, end="\\n") %}{{ text|upper }}{{ end }}{% endmacro %}
{% set found = namespace(**dict(count=0, last="")) %}
{% for message in messages %}
  {% if message.role == 'tool' %}{% continue %}{% endif %}
  {% if loop.index > 4 %}{% break %}{% endif %}
  {% set found.count = found.count + 1 %}
  {{ line(message.role) }}{{ message | tojson(sort_keys=true, separators=(",", ":"), ensure_ascii=true) }}
  {{- message.content | string | replace("<", "‹") | length }}
{% endfor %}
{{ dict.fromkeys(["a", "b"], 1) | tojson }} {{ found.count }} {{ tools }} {{ documents }}
{{ image_token }} {{ unknown }}
{% for key, value in messages[0] | dictsort %}{{ key }}={{ value }};{% endfor %}
{{ messages | map(attribute="role") | join(", ") }}
{{ messages | selectattr("role", "equalto", "user") | list | length }}
<a & b>{{ "<a & b>" }} {{ [1, "ü", none, true] | tojson }} {{ "%s" | format("x") }} {{ range(3) | list }}
"""
TEMPLATES = {
    "llama_3": LLAMA_3,
    "qwen_3": QWEN_3,
    "mistral": MISTRAL,
    "features": FEATURES,
    "demo": (demo_path() / "chat_template.jinja").read_text(),
}

USER, ASSISTANT = (
    {"role": "user", "content": " Größe <b>& 'x'</b>\n"},
    {"role": "assistant", "content": "<think>a</think>\n\nb"},
)
SYSTEM = {"role": "system", "content": "Be  brief.\n"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"type": "function", "id": "1", "function": {"name": "add", "arguments": {"a": [1, 2.5, None], "b": "ü"}}}
    ],
}
TOOL = {"role": "tool", "tool_call_id": "1", "name": "add", "content": '{"sum": 3}'}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}]
CONVERSATIONS = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, USER],
    "tools": [SYSTEM, USER, CALL, TOOL, ASSISTANT, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, ASSISTANT],
    "out of turn": [ASSISTANT, USER],
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "with tools"])
@pytest.mark.parametrize("opened", [True, False], ids=["", "closed"])
def test_a_conversation_is_rendered_as_by_transformers(
    template: str, conversation: str, tools: Any, opened: bool
) -> None:
    messages, source = CONVERSATIONS[conversation], TEMPLATES[template]

    def theirs() -> str:
        told = [{name: value for name, value in each.items() if value is not None} for each in messages]
        rendered, _ = render_jinja_template([told], tools, None, source, add_generation_prompt=opened, **SPECIAL)
        return str(rendered[0])

    try:
        expected = theirs()
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
            ChatTemplate(source, SPECIAL).render(messages, tools=tools, add_generation_prompt=opened)
    else:
        assert ChatTemplate(source, SPECIAL).render(messages, tools=tools, add_generation_prompt=opened) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ dict.mro() }}",
        "{{ dict.__call__.__globals__ }}",
        "{{ raise_exception.__globals__.os }}",
        "{% set n = namespace(__init__=1) %}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ range(10000000) | list }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ (messages | attr('append'))(1) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_does_not_leave_the_sandbox(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises((SecurityError, TemplateError, OverflowError, TypeError)):
        ChatTemplate(source, SPECIAL).render(messages)
    with pytest.raises((SecurityError, TemplateError, OverflowError, TypeError)):
        render_jinja_template([messages], None, None, source, **SPECIAL)
    assert messages == [{"role": "user", "content": "hi"}]


def test_the_variables_of_a_template_are_known_and_given() -> None:
    assigned = "{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}{{ level or 'none' }}"
    template = ChatTemplate(assigned, SPECIAL)
    assert {"tools", "level"} <= template.names
    assert "tools" not in ChatTemplate("{{ messages }}{% set tools = 1 %}", SPECIAL).names
    assert template.render([], tools=[{"a": 1}], options={"level": "high", "tools": 2}) == "[{'a': 1}]high"
    assert ChatTemplate("{{ bos_token }}", SPECIAL).render([], options={"bos_token": "other"}) == "other"
