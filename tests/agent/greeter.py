"""Program that an agent starts: says what it was told and given, and ends with that status."""

import json
import os
import socket


def main(arguments, line):
    listening = socket.socket(fileno=int(os.environ["FERRULE_LISTEN_FD"])).getsockname()[1]
    told = {"pid": os.getpid(), "arguments": arguments, "listening": listening, "rank": os.environ["FERRULE_RANK"]}
    line.send(json.dumps(told).encode() + b"\n")
    os.write(1, b"and these are my last words\n")
    return int(arguments[0])
