"""Processes that hang (SIGSTOP): nothing but their own requests waits for them, and that for one timeout only."""

import contextlib
import socket
import time

import pytest
from leases import LeaseClient
from processes import PROGRAMS, Process, answers, eventually, free_port, frozen, stats
from test_gutter import key_of_server

SERVER_TIMEOUT_S = 1.0
# For a loaded machine. Less than half of a second timeout.
MARGIN_S = 0.6


@contextlib.contextmanager
def router(cluster, tmp_path, *arguments: str, port: int | None = None):
    """A router of one thread in front of a cluster's servers, which it never finds TKO by timeouts."""
    port = port or free_port()
    command = [
        PROGRAMS / "lookaside-router", "-p", port, "-R", f"/local/{cluster.name}/", "--num-proxies", "1",
        "-f", cluster.configuration_path, "--server-timeout", f"{SERVER_TIMEOUT_S * 1000:.0f}",
        "--timeouts-until-tko", "1000", *arguments,
    ]  # fmt: skip
    running = Process(f"router-{port}", command, tmp_path)
    running.port = port
    running.wait_ready(lambda: answers(port))
    try:
        yield running
    finally:
        running.stop()


def deletes(server) -> int:
    """How many deletes a server has executed."""
    figures = stats(server.port)
    return int(figures["delete_hits"]) + int(figures["delete_misses"])


def outstanding(running, server) -> int:
    """How many requests of a router a server has not answered."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
        client.sendall(b"stats servers_detailed\r\nquit\r\n")
        lines = client.makefile("r").readlines()
    (line,) = [line for line in lines if f"127.0.0.1:{server.port} " in line]
    return int(line.split("outstanding:")[1].split()[0])


@pytest.mark.parametrize("hung", ["server", "gutter"])
def test_deletes_of_one_connection_do_not_wait_for_a_hung_process(cluster, tmp_path, hung):
    """Once a router routed one batch of a connection at a time, and each delete waited for the one before it."""
    healthy = cluster.servers[1]
    victim = {"server": cluster.servers[0], "gutter": cluster.gutter}[hung]
    first = key_of_server(cluster, cluster.servers[0])
    with router(cluster, tmp_path) as running, socket.create_connection(("127.0.0.1", running.port)) as client:
        client.settimeout(10)
        key = key_of_server(cluster, healthy)
        before = deletes(healthy)
        with frozen(victim):
            client.sendall(b"delete " + first.encode() + b"\r\n")
            eventually(
                lambda: outstanding(running, victim) == 1, "the first delete is in progress", SERVER_TIMEOUT_S / 2
            )
            started = time.monotonic()
            client.sendall(b"delete " + key.encode() + b"\r\n")
            eventually(lambda: deletes(healthy) == before + 1, "applied at the healthy server", SERVER_TIMEOUT_S)
            waited = time.monotonic() - started
            assert waited < SERVER_TIMEOUT_S / 2, waited
            print(f"a delete behind one of a hung {hung} was applied after {waited * 1000:.1f} ms")
            replies = client.makefile("rb")
            assert replies.readline().startswith(b"SERVER_ERROR Reply timeout")
            assert replies.readline() == (b"DELETED\r\n" if hung == "server" else b"SERVER_ERROR Reply timeout\r\n")
        assert stats(running.port)["overlapped_batches"] == "1"


def test_a_spooled_delete_waits_for_one_timeout(cluster, tmp_path):
    """Once peers were asked for fences only when they had failed to forward: two timeouts."""
    ports = [free_port(), free_port()]

    def spooling(one: int, other: int):
        spool = tmp_path / f"spool-{one}"
        return router(cluster, tmp_path, "--spool", str(spool), "--spool-peers", f"127.0.0.1:{other}", port=one)

    key = key_of_server(cluster, cluster.servers[0])
    with spooling(*ports) as first:
        eventually(lambda: "spool peer unreachable" in first.log(), "the second router is not there yet")
        with spooling(*reversed(ports)):
            client = LeaseClient(ports[0])
            eventually(lambda: "spool peer reachable again" in first.log(), "the first router has found the second")
            with frozen(cluster.servers[0]):
                for attempt in range(20):
                    started = time.monotonic()
                    reply = client.command(b"delete " + key.encode())
                    waited = time.monotonic() - started
                    assert reply == b"NOT_FOUND", (attempt, reply)
                    most = SERVER_TIMEOUT_S + MARGIN_S if attempt == 0 else MARGIN_S
                    assert waited < most, (attempt, waited)
                for port in ports:
                    figures = stats(port)
                    assert int(figures["spool_servers_fenced"]) + int(figures["spool_servers_fenced_by_peers"]) == 1
            client.close()


def test_a_page_costs_one_timeout_while_a_server_and_the_gutter_hang(cluster, tmp_path):
    """Once it cost a timeout of the server and one of the gutter."""
    keys = [f"user:{number}".encode() for number in range(24)]
    with router(cluster, tmp_path) as running:
        client = LeaseClient(running.port)
        for key in keys:
            assert client.command(b"set " + key + b" 0 0 1", b"1") == b"STORED"
        with frozen(cluster.servers[0]), frozen(cluster.gutter):
            for _ in range(2):
                started = time.monotonic()
                client.socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
                lines = []
                while not lines or not lines[-1].startswith((b"SERVER_ERROR", b"END")):
                    lines.append(client.reader.readline())
                waited = time.monotonic() - started
                found = sum(line.startswith(b"VALUE") for line in lines)
                assert 0 < found < len(keys), "the keys of the healthy server are answered"
                assert waited < SERVER_TIMEOUT_S + MARGIN_S, waited
        client.close()
