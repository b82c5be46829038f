"""Prints where twemproxy itself puts keys: the vectors of tests/other_clients.rs.

    apt-get install nutcracker      (0.5.0 wrote the file beside this one)
    python twemproxy.py < keys.txt > twemproxy.txt

Servers that say `n` for their index stand behind a real twemproxy, one listener a hash function.
"""

import socket
import subprocess
import sys
import tempfile
import threading
import time

DIGESTS = ["one_at_a_time", "md5", "crc16", "crc32", "crc32a", "fnv1_64", "fnv1a_64", "fnv1_32", "fnv1a_32", "murmur"]
POOLS = [[1, 1, 1], [1, 2, 5]]


def serve(index: int) -> int:
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        for line in connection.makefile("rb"):
            key = line.split()[1]
            connection.sendall(b"VALUE %s 0 1\r\n%d\r\nEND\r\n" % (key, index))

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def connect(port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    keys = sys.stdin.read().split()
    ports = [serve(index) for index in range(3)]
    cases, text = [], ""
    for weights in POOLS:
        names = ["10.0.0.1:5001", "cache.example", "third"]
        servers = "".join(
            f"    - 127.0.0.1:{port}:{weight} {name}\n"
            for port, weight, name in zip(ports, weights, names, strict=True)
        )
        pairs = " ".join(f"{name}={weight}" for name, weight in zip(names, weights, strict=True))
        hashes = [("ketama", digest) for digest in DIGESTS] + [("modula", "fnv1a_64"), ("modula", "md5")]
        for distribution, digest in hashes:
            port = free_port()
            cases.append((f"twemproxy-{distribution}:{digest}", pairs, port))
            text += (
                f"pool{len(cases)}:\n  listen: 127.0.0.1:{port}\n  hash: {digest}\n"
                f"  distribution: {distribution}\n  servers:\n{servers}"
            )
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(text)
        file.flush()
        proxy = subprocess.Popen(["nutcracker", "-c", file.name, "-s", str(free_port())], stderr=subprocess.DEVNULL)
        try:
            for name, pairs, port in cases:
                print(f"hash {name}\nservers {pairs}")
                with connect(port) as connection:
                    replies = connection.makefile("rb")
                    for key in keys:
                        connection.sendall(b"get %s\r\n" % key.encode())
                        replies.readline()
                        print(key, int(replies.readline()))
                        replies.readline()
        finally:
            proxy.terminate()


main()
