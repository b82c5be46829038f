"""A cache server dies: reads go on through the gutter without an error, and come back when it returns (§3.3)."""

import itertools
import socket

from leases import LeaseClient
from processes import eventually, stats


def key_of_server(cluster, server):
    """A key that the router sends to `server`."""
    client = cluster.client()
    try:
        for index in itertools.count():
            before = int(stats(server.port)["cmd_set"])
            client.set(f"probe:{index}", b"value")
            if int(stats(server.port)["cmd_set"]) > before:
                return f"probe:{index}"
    finally:
        client.close()


def test_reads_go_on_through_the_gutter_and_come_back(cluster):
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    client = cluster.client()
    victim.kill()

    # The first read finds the server dead and the gutter empty: a miss, not an error.
    assert client.get(key) is None
    assert client.set(key, b"from the database")
    for _ in range(100):
        assert client.get(key) == b"from the database"
    gutter = stats(cluster.gutter.port)
    assert int(gutter["get_hits"]) >= 100

    # A delete cannot be acknowledged while the server that may hold the key does not answer.
    deleter = LeaseClient(cluster.port)
    assert deleter.command(b"delete " + key.encode()).startswith(b"SERVER_ERROR")
    deleter.close()
    assert client.get(key) is None, "the gutter has deleted it all the same"
    victim.restart()
    before = int(stats(victim.port)["cmd_get"])

    def served_by_the_server_again() -> bool:
        client.get(key)
        return int(stats(victim.port)["cmd_get"]) > before

    eventually(served_by_the_server_again, "reads come back to the server")
    client.close()


def test_the_gutter_keeps_values_for_a_short_time_only(cluster):
    victim = cluster.servers[0]
    key = key_of_server(cluster, victim)
    victim.kill()
    client = cluster.client()
    assert client.set(key, b"value", expire=0)
    assert client.get(key) == b"value"
    client.close()
    # No need to wait until it expires: the server returns the remaining time.
    with socket.create_connection(("127.0.0.1", cluster.gutter.port), timeout=5) as connection:
        connection.sendall(f"mg {key} t\r\n".encode())
        answer = connection.recv(100).decode()
    assert answer.startswith("HD t"), answer
    assert 0 < int(answer.split("t")[1]) <= 10
