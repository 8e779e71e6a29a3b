"""A small llama-server for tests: the same flags, HTTP and events (tools/server/README.md of llama.cpp), over a model
whose next token follows from all before. It needs nothing but Python, so that it starts within moments.

``FAKE_LLAMA`` (JSON) makes it do wrong: ``unhealthy``: always; ``dies``: with these words, when it is started;
``crash``: when a prompt begins with this token; ``garbage``, ``cut``: an answer to such a prompt is none, has no end.
``tells``: each token has its event. ``vocabulary``: how many tokens it has. Each request is appended to ``log``, and
a line when its client hangs up.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

VOCABULARY = 1000
END = 2
UNTOLD = 7
"""Tokens that are multiples of it are in the midst of a character: no event tells them."""
CONTEXT = 512
STEP_SECONDS = 0.001


def next_token(tokens: list[int], seed: int = 0, vocabulary: int = VOCABULARY) -> int:
    """Greedy with seed 0. Never `END`, and never one of the first tokens, which prompts of tests begin with."""
    mixed = 0
    for token in tokens[-8:]:
        mixed = (mixed * 31 + token + 1) % 1_000_003
    return 100 + (mixed + seed * 7919 + 13 * len(tokens)) % (vocabulary - 100)


def answer(prompt: list[int], count: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, seed, vocabulary))
    return tokens[len(prompt) :]


class Server:
    def __init__(self, order: dict[str, object], slots: int) -> None:
        self.order, self.slots = order, threading.Semaphore(slots)
        self.vocabulary = int(order.get("vocabulary", VOCABULARY))
        self.lock = threading.Lock()

    def note(self, what: object) -> None:
        if "log" in self.order:
            with self.lock, Path(str(self.order["log"])).open("a") as log:
                log.write(json.dumps(what) + "\n")

    def serve(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(64)
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self.hear, args=(connection,), daemon=True).start()

    def hear(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while line := reader.readline():
                size = 0
                while (head := reader.readline().strip()) != b"":
                    name, _, value = head.partition(b":")
                    if name.lower() == b"content-length":
                        size = int(value)
                body = reader.read(size)
                try:
                    self.reply(connection, line.split()[1].decode(), body)
                except OSError:
                    self.note({"hung up": json.loads(body)["prompt"]})
                    return

    def reply(self, connection: socket.socket, path: str, body: bytes) -> None:
        if path == "/health":
            healthy = "unhealthy" not in self.order
            whole(connection, 200 if healthy else 503, {"status": "ok"} if healthy else fault(503, "Loading model"))
        elif path == "/props":
            whole(connection, 200, {"default_generation_settings": {"n_ctx": CONTEXT}})
        else:
            asked = json.loads(body)
            self.note(asked | {"pid": os.getpid()})
            with self.slots:
                self.complete(connection, asked)

    def complete(self, connection: socket.socket, asked: dict[str, object]) -> None:
        prompt = list(asked["prompt"])
        if prompt[0] == self.order.get("crash"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if prompt[0] == self.order.get("refuse"):
            whole(connection, 400, fault(400, "no such thing"))
            return
        if not asked["stream"]:
            made = answer(prompt, asked["n_predict"], self.seed(asked), self.vocabulary)
            whole(connection, 200, event(made, len(made), asked) | {"stop": True, "stop_type": "limit"})
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if prompt[0] == self.order.get("garbage"):
            chunk(connection, b'data: {"tokens": "what?"}\n\n')
        if prompt[0] == self.order.get("cut"):
            chunk(connection, b"")
            return
        tokens = list(prompt)
        for count in range(1, asked["n_predict"] + 1):
            threading.Event().wait(STEP_SECONDS)
            ended = prompt[0] == 3 and count == 4
            tokens.append(END if ended else next_token(tokens, self.seed(asked), self.vocabulary))
            if tokens[-1] % UNTOLD or "tells" in self.order:
                send(connection, event(tokens[-1:], count, asked))
            if ended:
                break
        send(connection, {"tokens": [], "content": "", "stop": True, "tokens_predicted": count,
                          "stop_type": "eos" if ended else "limit"})  # fmt: skip
        chunk(connection, b"")

    @staticmethod
    def seed(asked: dict[str, object]) -> int:
        return 0 if asked["temperature"] == 0 else int(asked["seed"])


def fault(code: int, message: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message, "type": "error"}}


def event(tokens: list[int], count: int, asked: dict[str, object]) -> dict[str, object]:
    said = {"tokens": tokens, "content": "" if tokens[-1] == END else "x", "stop": False, "tokens_predicted": count}
    if asked["n_probs"]:
        said["completion_probabilities"] = [
            {"id": token, "logprob": -token / 100, "top_logprobs": [{"id": token, "logprob": -token / 100}]}
            for token in tokens
        ]
    return said


def send(connection: socket.socket, said: dict[str, object]) -> None:
    chunk(connection, b"data: " + json.dumps(said).encode() + b"\n\n")


def chunk(connection: socket.socket, data: bytes) -> None:
    connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def whole(connection: socket.socket, status: int, said: dict[str, object]) -> None:
    data = json.dumps(said).encode()
    connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def echo(host: str, port: int) -> None:
    """What an rpc-server does here: say again what it hears, to one after the other."""
    with socket.create_server((host, port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)


def hold(places: list[str]) -> None:
    """Keep a connection to each worker, and die with the first that is lost, as llama-server does."""
    connections = []
    for place in places:
        host, _, port = place.rpartition(":")
        connections.append(socket.create_connection((host, int(port))))
    while all(heard(each) for each in connections):
        threading.Event().wait(0.02)
    os._exit(1)


def heard(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"hello")
        return connection.recv(5, socket.MSG_WAITALL) == b"hello"
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    if "--version" in arguments or "--help" in arguments:
        sys.stdout.write("version: 1 (fake)\n--offline --fit [on|off]\n")
        return 0
    order = json.loads(os.environ.get("FAKE_LLAMA", "{}"))
    if "dies" in order:
        sys.stderr.write(f"{order['dies']}\n")
        return 3
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    if Path(sys.argv[0]).name == "rpc-server":
        echo(given["--host"], int(given["--port"]))
    if "--rpc" in given:
        threading.Thread(target=hold, args=(given["--rpc"].split(","),), daemon=True).start()
    Server(order, int(given["--parallel"])).serve(given["--host"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
