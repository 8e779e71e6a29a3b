"""Items of an answer as they grow, and the events that tell of it, in OpenAI's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from ferrule.serve.answer.transcript import TokenLogprob
from ferrule.serve.openai.responses.items import new_id
from ferrule.serve.openai.responses.objects import (
    CustomCallItem,
    Event,
    FunctionCallItem,
    Logprob,
    MessageItem,
    OutputItem,
    OutputText,
    PlainText,
    ReasoningItem,
    TopLogprob,
)
from ferrule.serve.openai.responses.tools import Offered, begun_text, call_status, free_text
from ferrule.serve.tools.parts import Call, CallPiece, Part, Reasoning, Text

_LOOKS = 64
"""Of a long input about so many more looks for each time that it doubles: each look reads all of it."""


class Output:
    """Output of one answer. ``tell``: takes each event at once, since the item in it goes on growing.

    ``summary``: reasoning is told as its own summary, where a request asked for one: clients show nothing else.
    """

    def __init__(self, offered: Offered, tell: Callable[[Event], None], *, summary: bool, logprobs: bool) -> None:
        self.items: list[OutputItem] = []
        self._offered, self._tell, self._summary, self._wants_logprobs = offered, tell, summary, logprobs
        self._open: OutputItem | None = None
        self._text: list[str] = []
        self._begun = self._read = 0
        """Characters of the arguments of the custom tool's call that is open, and how many of them were looked at."""
        self._logprobs: list[Logprob] = []

    def add(self, part: Part, entries: Sequence[TokenLogprob] = ()) -> None:
        match part:
            case Text(text):
                self._say(text, [logprob(each) for each in entries] if self._wants_logprobs else [])
            case Reasoning(text):
                self._reason(text)
            case Call():
                self._call(part)

    def close(self, status: str = "completed") -> None:
        """End the item that is open. ``status``: incomplete where the answer was cut."""
        item, self._open = self._open, None
        if item is None:
            return
        text, self._text = "".join(self._text), []
        item.status = status
        match item:
            case MessageItem():
                part = item.content[0] = OutputText(text, self._logprobs)
                self._tell_of("response.output_text.done", item, Event("", text=text, logprobs=self._logprobs))
                self._tell_of("response.content_part.done", item, Event("", part=part))
            case ReasoningItem():
                self._end_reasoning(item, text)
            case FunctionCallItem():
                item.arguments, item.status = text, call_status(text)
                done = Event("", arguments=text, name=item.name)
                self._tell_of("response.function_call_arguments.done", item, done)
            case CustomCallItem():
                item.status = call_status(text)
                self._say_input(item, free_text(text))
                self._tell_of("response.custom_tool_call_input.done", item, Event("", input=item.input))
        self._tell_item("response.output_item.done", item)

    def _end_reasoning(self, item: ReasoningItem, text: str) -> None:
        plain = PlainText(text, "summary_text" if self._summary else "reasoning_text")
        kind = "reasoning_summary" if self._summary else "reasoning"
        if self._summary:
            item.summary = [plain]
        else:
            item.content = [plain]
        self._tell_of(f"response.{kind}_text.done", item, Event("", text=text))
        part_done = "response.reasoning_summary_part.done" if self._summary else "response.content_part.done"
        self._tell_of(part_done, item, Event("", part=plain))

    def _say(self, text: str, logprobs: list[Logprob]) -> None:
        item = self._open
        if not isinstance(item, MessageItem):
            self.close()
            item = self._open = MessageItem(new_id("msg"), "in_progress", [])
            self._logprobs = []
            self._begin(item)
            item.content.append(OutputText("", []))
            self._tell_of("response.content_part.added", item, Event("", part=item.content[0]))
        self._text.append(text)
        self._logprobs += logprobs
        self._tell_of("response.output_text.delta", item, Event("", delta=text, logprobs=logprobs))

    def _reason(self, text: str) -> None:
        item = self._open
        kind, part = ("reasoning_summary", "reasoning_summary_part") if self._summary else ("reasoning", "content_part")
        if not isinstance(item, ReasoningItem):
            self.close()
            item = self._open = ReasoningItem(new_id("rs"), "in_progress", [], UNSET if self._summary else [])
            self._begin(item)
            empty = PlainText("", "summary_text" if self._summary else "reasoning_text")
            self._tell_of(f"response.{part}.added", item, Event("", part=empty))
        self._text.append(text)
        self._tell_of(f"response.{kind}_text.delta", item, Event("", delta=text))

    def _call(self, call: Call) -> None:
        """A whole call, or a piece of one, which has either its name or arguments."""
        if call.name:
            self.close()
            origin = self._offered.origin(call.name)
            call_id, space = call.id or new_id("call"), origin.namespace or UNSET
            if origin.custom:
                item: OutputItem = CustomCallItem(new_id("ctc"), "in_progress", call_id, origin.name, "", space)
            else:
                item = FunctionCallItem(new_id("fc"), "in_progress", call_id, origin.name, "", space)
            self._open, self._begun, self._read = item, 0, 0
            self._begin(item)
        if call.arguments:
            self._text.append(call.arguments)
            if isinstance(self._open, FunctionCallItem):
                told = Event("", delta=call.arguments)
                self._tell_of("response.function_call_arguments.delta", self._open, told)
            elif isinstance(self._open, CustomCallItem) and isinstance(call, CallPiece):
                self._begun += len(call.arguments)
                if self._begun - self._read >= max(1, self._begun // _LOOKS):
                    self._read = self._begun
                    self._say_input(self._open, begun_text("".join(self._text)))
        if not isinstance(call, CallPiece):
            self.close()

    def _say_input(self, item: CustomCallItem, text: str) -> None:
        """Tell what ``text``, all of the input so far, has more than before."""
        if len(text) < len(item.input):  # cut in the midst of a character
            return
        delta, item.input = text[len(item.input) :], text
        if delta:
            self._tell_of("response.custom_tool_call_input.delta", item, Event("", delta=delta))

    def _begin(self, item: OutputItem) -> None:
        self.items.append(item)
        self._tell_item("response.output_item.added", item)

    def _tell_item(self, kind: str, item: OutputItem) -> None:
        self._tell(Event(kind, output_index=len(self.items) - 1, item=item))

    def _tell_of(self, kind: str, item: OutputItem, event: Event) -> None:
        """An event within the newest item. Texts have one part each, whose index is 0."""
        event.type, event.item_id, event.output_index = kind, item.id, len(self.items) - 1
        if "summary" in kind:
            event.summary_index = 0
        elif isinstance(item, MessageItem | ReasoningItem):
            event.content_index = 0
        self._tell(event)


def logprob(entry: TokenLogprob) -> Logprob:
    top = [TopLogprob(text, value, _bytes(text)) for text, value in entry.top]
    return Logprob(entry.text, entry.logprob, _bytes(entry.text), top)


def _bytes(text: str) -> list[int]:
    return [] if "\ufffd" in text else list(text.encode())
