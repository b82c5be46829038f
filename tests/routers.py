"""A router of its own configuration in front of servers, and clients that ask it."""

import json
import socket
from contextlib import contextmanager

from processes import PROGRAMS, Process, answers, free_port


@contextmanager
def router(tmp_path, configuration: dict, *arguments: str):
    """A router with that configuration; its port."""
    path, port = tmp_path / f"router-{free_port()}.json", free_port()
    path.write_text(json.dumps(configuration))
    command = [PROGRAMS / "lookaside-router", "-p", port, "-f", path, "--server-timeout", "300", *arguments]
    running = Process(path.stem, command, tmp_path)
    running.wait_ready(lambda: answers(port))
    try:
        yield port
    finally:
        running.stop()


ENDS = (b"END\r\n", b"STORED\r\n", b"DELETED\r\n", b"FOUND\r\n")


def ask(port: int, client: str, command: bytes) -> bytes:
    """The router's reply to one command of a client with that source address."""
    with socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(client, 0)) as connection:
        connection.sendall(command)
        answer = b""
        while not (answer.endswith(ENDS) or answer.startswith(b"SERVER_ERROR") and answer.endswith(b"\r\n")):
            piece = connection.recv(4096)
            assert piece, f"closed after {answer}"
            answer += piece
        return answer
