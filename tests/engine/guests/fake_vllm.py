"""A small vLLM for tests: the same flags, HTTP and events, over the model of `fake_llama`.

``FAKE_VLLM`` (JSON): ``refuse``, ``lost``: what becomes of a prompt that begins with this token; the second one has the
server say that its engine died, and end. Each request is appended to ``log``. With ``--headless`` it only lives.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading

from fake_llama import END, STEP_SECONDS, Server, chunk, fault, next_token, send, whole

CONTEXT = 400


class FakeVllm(Server):
    def reply(self, connection: socket.socket, path: str, body: bytes) -> None:
        if path == "/v1/models":
            whole(connection, 200, {"object": "list", "data": [{"id": "model", "max_model_len": CONTEXT}]})
        elif path == "/v1/completions":
            asked = json.loads(body)
            self.note(asked | {"pid": os.getpid()})
            self.complete(connection, asked)
        else:
            whole(connection, 200, {})

    def complete(self, connection: socket.socket, asked: dict[str, object]) -> None:
        prompt = list(asked["prompt"])
        if prompt[0] == self.order.get("refuse"):
            whole(connection, 400, fault(400, "no such thing"))
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        tokens = list(prompt)
        for count in range(1, asked["max_tokens"] + 1):
            threading.Event().wait(STEP_SECONDS)
            if prompt[0] == self.order.get("lost") and len(tokens) == 12 > len(prompt):  # not where it goes on
                send(connection, fault(500, "EngineCore encountered an issue."))
                os.kill(os.getpid(), signal.SIGKILL)
            ended = prompt[0] == 3 and count == 4
            tokens.append(END if ended else next_token(tokens, self.seed(asked)))
            finish = "stop" if ended else "length" if count == asked["max_tokens"] else None
            send(connection, {"object": "text_completion", "choices": [said(tokens[-1], finish, asked)]})
            if ended:
                break
        chunk(connection, b"data: [DONE]\n\n")
        chunk(connection, b"")


def said(token: int, finish: str | None, asked: dict[str, object]) -> dict[str, object]:
    found = {"index": 0, "text": "x", "token_ids": [token], "finish_reason": finish, "logprobs": None}
    if "logprobs" in asked:
        name = f"token_id:{token}"
        top = [{name: -token / 100, "token_id:1": -99.0}]
        found["logprobs"] = {"tokens": [name], "token_logprobs": [-token / 100], "top_logprobs": top}
    return found


def main(arguments: list[str]) -> None:
    order = json.loads(os.environ.get("FAKE_VLLM", "{}"))
    server = FakeVllm(order, 64)
    if "--headless" in arguments:
        told = {name: os.environ.get(name) for name in ("FERRULE_VLLM", "GLOO_SOCKET_IFNAME", "VLLM_HOST_IP")}
        number = arguments[arguments.index("--node-rank") + 1]
        server.note({"host": number, "pid": os.getpid(), "line": " ".join(arguments), "environment": told})
        signal.pause()
    assert os.environ["FERRULE_VLLM"] == "cpu"
    server.serve(arguments[arguments.index("--uds") + 1])


if __name__ == "__main__":
    main(sys.argv[1:])
