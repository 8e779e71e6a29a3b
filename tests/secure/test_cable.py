"""Connections that a process of their own encrypts, for programs that know only plain sockets."""

import contextlib
import socket
import subprocess
import sys
import threading

from ferrule.secure.cable import encrypted

KEY, OTHER = bytes(range(32)), bytes(32)
SECONDS = 30.0
WORD = b"hidden states and weights "


class Tap:
    """Between two sockets, in a thread of its own: ``seen`` is what goes each way, ``alter`` what becomes of it."""

    def __init__(self, alter=lambda data: data):
        self.client, ours = socket.socketpair()
        theirs, self.server = socket.socketpair()
        self.seen = [bytearray(), bytearray()]
        self._ways = [(ours, theirs, self.seen[0], alter), (theirs, ours, self.seen[1], lambda data: data)]
        for way in self._ways:
            threading.Thread(target=self._copy, args=way, daemon=True).start()

    @staticmethod
    def _copy(source, sink, seen, alter):
        try:
            while data := source.recv(1 << 16):
                seen += data
                sink.sendall(alter(data))
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def ends(tap, client_key=KEY, server_key=KEY):
    found = encrypted(tap.client, client_key, server=False), encrypted(tap.server, server_key, server=True)
    for end in found:
        end.settimeout(SECONDS)
    return found


def read_all(sock):
    found = bytearray()
    while data := sock.recv(1 << 16):
        found += data
    return bytes(found)


def test_what_is_said_arrives_both_ways_and_cannot_be_read_on_the_cable():
    tap = Tap()
    one, two = ends(tap)
    text = WORD * 200_000  # more than any buffer holds
    sending = threading.Thread(target=lambda: (one.sendall(text), one.shutdown(socket.SHUT_WR)))
    sending.start()
    assert read_all(two) == text
    sending.join(SECONDS)
    two.sendall(WORD)  # the other direction is still open
    two.close()
    assert read_all(one) == WORD
    one.close()
    assert len(tap.seen[0]) > len(text)
    assert not any(WORD in direction for direction in tap.seen)


def test_another_key_is_the_end():
    one, two = ends(Tap(), server_key=OTHER)
    one.sendall(WORD)
    assert read_all(two) == b""
    with contextlib.suppress(ConnectionResetError):  # what it had said was not taken
        assert one.recv(1) == b""
    one.close()
    two.close()


def test_what_was_altered_is_the_end():
    altering = []

    def alter(data):
        return data if not altering else data[:-1] + bytes([data[-1] ^ 1])

    one, two = ends(Tap(alter))
    one.sendall(WORD)
    heard = bytearray()
    while len(heard) < len(WORD):
        heard += two.recv(100)
    altering.append(True)
    one.sendall(WORD)
    assert read_all(two) == b""
    one.close()
    two.close()


def test_last_words_arrive_though_the_program_has_ended():
    listener = socket.create_server(("127.0.0.1", 0))
    program = (
        "import socket, sys\n"
        "from ferrule.secure.cable import encrypted\n"
        f"cable = socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}))\n"
        f"end = encrypted(cable, {KEY!r}, server=False)\n"
        f"end.sendall({WORD!r} * 4000)\n"
        "end.close()\n"
    )
    with listener, subprocess.Popen([sys.executable, "-c", program]) as process:
        cable, _ = listener.accept()
        assert process.wait(SECONDS) == 0
        end = encrypted(cable, KEY, server=True)
        end.settimeout(SECONDS)
        assert read_all(end) == WORD * 4000
        end.close()
