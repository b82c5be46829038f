"""A server for tests of gets by UDP: it loses and reorders datagrams, or refuses commands, as the test says."""

import contextlib
import socket
import struct
import threading
from typing import BinaryIO

from forwarder import PIECE_BYTES, Forwarder

HEADER_BYTES = 8
GETS = (b"get ", b"lease-get ")


class LossyServer(Forwarder):
    """In front of a server. Its port is that of TCP; `udp_port` is the other. Each reply by UDP is two datagrams."""

    def __init__(self, target: int) -> None:
        #: What becomes of replies by UDP: "sent", "lost" or "reordered".
        self.replies = "sent"
        #: The line in reply to the refused commands; empty if nothing is refused.
        self.refusal = b""
        self.refused: tuple[bytes, ...] = GETS
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp_port = self.udp.getsockname()[1]
        super().__init__(target)
        self.udp_thread = threading.Thread(target=self.serve_udp, daemon=True)
        self.udp_thread.start()

    def copy(self, source: socket.socket, destination: socket.socket, is_from_server: bool) -> None:
        if is_from_server:
            super().copy(source, destination, is_from_server)
            return
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if self.refuses(piece):
                    source.sendall(self.refusal)
                else:
                    destination.sendall(piece)
        for end in (source, destination):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def refuses(self, command: bytes) -> bool:
        """Whether this command is refused."""
        return bool(self.refusal) and command.startswith(self.refused)

    def serve_udp(self) -> None:
        """Answers requests by UDP with what the server replies by TCP, until an empty datagram comes."""
        with (
            socket.create_connection(("127.0.0.1", self.target)) as server,
            server.makefile("rb") as reader,
            self.udp,
        ):
            while True:
                datagram, client = self.udp.recvfrom(PIECE_BYTES)
                if not datagram:
                    return
                if self.replies == "lost":
                    continue
                command = datagram[HEADER_BYTES:]
                reply = self.refusal
                if not self.refuses(command):
                    reply = self.exchange(command, server, reader)
                middle = len(reply) // 2
                parts = [
                    datagram[:2] + struct.pack(">HHH", number, 2, 0) + part
                    for number, part in enumerate((reply[:middle], reply[middle:]))
                ]
                for part in reversed(parts) if self.replies == "reordered" else parts:
                    self.udp.sendto(part, client)

    def exchange(self, command: bytes, server: socket.socket, reader: BinaryIO) -> bytes:
        """What the server replies to gets."""
        server.sendall(command)
        reply = reader.readline()
        while not reply.endswith(b"END\r\n"):
            reply += reader.readline()
        return reply

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"", ("127.0.0.1", self.udp_port))
        self.udp_thread.join()
        super().close()
