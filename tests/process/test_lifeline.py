import json
import socket
import threading

from ferrule.process.lifeline import BEAT, Lifeline


def test_signs_of_life_never_stand_in_the_way_and_never_cut_a_line_in_two():
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    line = Lifeline(theirs.detach())
    with ours, line.socket:
        line.start()
        assert ours.recv(len(BEAT), socket.MSG_WAITALL) == BEAT  # although nothing was sent
        line.socket.setblocking(False)
        try:
            while True:
                line.socket.send(BEAT)
        except BlockingIOError:
            line.socket.setblocking(True)
        line._beat()  # no one reads: it does not wait
        words = json.dumps({"event": "words", "text": "x" * (1 << 22)}).encode() + b"\n"
        sending = threading.Thread(target=line.send, args=(words,))
        beating = threading.Thread(target=line._beat)
        sending.start()
        beating.start()
        with ours.makefile("rb") as reading:
            heard = iter(reading.readline, words)
            assert set(heard) == {BEAT}  # whatever came before the words
        sending.join()
        beating.join()
