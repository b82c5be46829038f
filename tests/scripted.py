"""Servers that answer every request alike, or not at all."""

import socket
import socketserver
import threading
from contextlib import ExitStack, contextmanager


class Scripted(socketserver.ThreadingTCPServer):
    """A server that has one answer to every line, or a behaviour: `hang`, `hold`, `close`, `reset`.

    With `hold` it answers once `released` is set, with a miss. With `hang` it answers nothing until it is stopped.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answer: bytes | str) -> None:
        self.answer = answer
        self.lines: list[bytes] = []
        self.released = threading.Event()
        self.stopped = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        """Its address in a configuration."""
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(socketserver.StreamRequestHandler):
    """Answers the lines of one connection."""

    def handle(self) -> None:
        server: Scripted = self.server
        for line in self.rfile:
            if line.startswith(b"version"):
                self.wfile.write(b"VERSION 1.6.45\r\n")
                continue
            server.lines.append(line)
            if line.startswith(b"set"):
                self.rfile.readline()
            if server.answer == "hold":
                server.released.wait(20)
                self.wfile.write(b"END\r\n")
                continue
            if server.answer == "hang":
                server.stopped.wait()
                return
            if server.answer == "reset":
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.request.close()
                return
            if server.answer == "close":
                return
            self.wfile.write(server.answer)


@contextmanager
def scripted(*answer: bytes | str):
    """Servers with these answers."""
    with ExitStack() as stack:
        servers = [Scripted(one) for one in answer]
        for server in servers:
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            stack.callback(server.stopped.set)
        yield servers
