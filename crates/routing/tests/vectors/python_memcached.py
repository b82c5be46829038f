"""Prints where python-memcached itself puts keys: `key servers index`, the vectors of tests/other_clients.rs.

Needs `pip install python-memcached` (1.62 wrote the file beside this one). No server is needed: the client's own
choice of a bucket is asked, with sockets that claim to be connected.
"""

import memcache

for servers in (1, 2, 3, 7, 20):
    client = memcache.Client(["127.0.0.1:%d" % (5000 + n) for n in range(servers)])
    for server in client.servers:
        server.connect = lambda: 1
    for n in range(20):
        key = "user:%d|#|x" % n
        server, _ = client._get_server(key.encode())
        print(key, servers, server.port - 5000)
