"""A look-aside application over pymemcache: `look_aside.py CACHE DATABASE KEYS READERS SECONDS own|pooled`.

Its threads have a connection each, or share a pool of connections. It knows no leases. It prints
{"reads": N, "hits": N, "stored": N, "refused": N}.
"""

import json
import random
import socket
import sys
import threading
import time

from pymemcache.client.base import Client, PooledClient

OPTIONS = {"timeout": 10, "connect_timeout": 10, "default_noreply": False}


def address(text: str) -> tuple[str, int]:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def read(client, database: str, keys: int, end: float, counts: dict[str, int]) -> None:
    """Reads keys until the end."""
    with socket.create_connection(address(database), timeout=10) as connection, connection.makefile("rb") as rows:
        while time.monotonic() < end:
            key = f"row:{random.randrange(keys)}"
            counts["reads"] += 1
            if client.get(key) is not None:
                counts["hits"] += 1
                continue
            connection.sendall(f"{key}\n".encode())
            row = rows.readline().rstrip(b"\n")
            counts["stored" if client.set(key, row) else "refused"] += 1


def main() -> None:
    """Runs the readers."""
    cache, database, keys, readers, seconds, connections = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    pool = PooledClient(address(cache), max_pool_size=int(readers), **OPTIONS)
    counts = [dict.fromkeys(("reads", "hits", "stored", "refused"), 0) for _ in range(int(readers))]
    threads = []
    for own in counts:
        client = pool if connections == "pooled" else Client(address(cache), **OPTIONS)
        threads.append(threading.Thread(target=read, args=(client, database, int(keys), end, own)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({name: sum(own[name] for own in counts) for name in counts[0]}))


if __name__ == "__main__":
    main()
