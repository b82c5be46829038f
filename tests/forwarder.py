"""A TCP forwarder between two processes of a test: the link between them can be cut, or lead to another process."""

import contextlib
import socket
import threading
import time

PIECE_BYTES = 65536


class Forwarder:
    """Listens on `port` and forwards each connection to `target`, a port of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_open = threading.Event()
        self.is_open.set()
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        """Forwards connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client: socket.socket) -> None:
        """Connects a client, unless nothing listens at the target."""
        self.is_open.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self.sockets += [client, server]
        for source, destination in ((client, server), (server, client)):
            threading.Thread(target=self.copy, args=(source, destination, source is server), daemon=True).start()

    def copy(self, source: socket.socket, destination: socket.socket, is_from_server: bool) -> None:
        """Copies until either side ends. While the link is cut, bytes wait, as they do when packets are lost."""
        is_first = True
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self.is_open.wait()
                destination.sendall(self.change(piece, is_first) if is_from_server else self.change_request(piece))
                is_first = False
        for end in (source, destination):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def change(self, piece: bytes, is_first: bool) -> bytes:
        """What is forwarded of a server's bytes, which may be the first of a connection."""
        del is_first
        return piece

    def change_request(self, piece: bytes) -> bytes:
        """What is forwarded of a client's bytes."""
        return piece

    def cut(self) -> None:
        """Nothing passes any more, without an error."""
        self.is_open.clear()

    def heal(self) -> None:
        """What was sent meanwhile arrives."""
        self.is_open.set()

    def switch(self, target: int) -> None:
        """Ends all connections; new ones lead to another target."""
        self.target = target
        for end in self.sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.sockets.clear()

    def close(self) -> None:
        """Ends all."""
        self.heal()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.switch(self.target)


class LateServer(Forwarder):
    """Forwards what a server replies `delay_s` seconds later."""

    def __init__(self, target: int) -> None:
        self.delay_s = 0.0
        # What has been replied and not forwarded.
        self.held: list[bytes] = []
        super().__init__(target)

    def change(self, piece: bytes, is_first: bool) -> bytes:
        self.held.append(piece)
        time.sleep(self.delay_s)
        self.held.remove(piece)
        return piece


class HandshakeProxy(Forwarder):
    """Names other sessions in the handshakes of a database than those that serve the connections, as a proxy does that
    shares sessions."""

    def change(self, piece: bytes, is_first: bool) -> bytes:
        """Changes a byte of the session's id."""
        changed, at = bytearray(piece), 0
        if is_first and piece[4:5] == b"\x0a":
            # MySQL and MariaDB: four bytes, the protocol, the version up to a NUL, the id.
            at = piece.index(b"\0", 5) + 1
        elif (key := piece.find(b"K\0\0\0\x0c")) >= 0:
            # PostgreSQL: a message of 12 bytes, which begins with the id.
            at = key + 5
        if at:
            changed[at] ^= 0x40
        return bytes(changed)
