"""A TCP forwarder between two processes of a test: the link between them can be cut, or lead to another process."""

import contextlib
import socket
import threading

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
            threading.Thread(target=self.copy, args=(source, destination), daemon=True).start()

    def copy(self, source: socket.socket, destination: socket.socket) -> None:
        """Copies until either side ends. While the link is cut, bytes wait, as they do when packets are lost."""
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self.is_open.wait()
                destination.sendall(piece)
        for end in (source, destination):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

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
