"""Prints where pymemcache's HashClient itself puts keys: the vectors of tests/other_clients.rs. No server is needed.

pip install pymemcache      (4.0.0 wrote the file beside this one)
python pymemcache_client.py < keys.txt > pymemcache.txt
"""

import sys

from pymemcache.client.hash import HashClient

keys = sys.stdin.read().split()
for count in (1, 2, 3, 7):
    servers = [(f"10.0.0.{n + 1}", 11211 + n) for n in range(count)]
    names = [f"{host}:{port}" for host, port in servers]
    client = HashClient(servers)
    print("hash pymemcache")
    print("servers", *(name + "=1" for name in names))
    for key in keys:
        print(key, names.index(client.hasher.get_node(key)))
