"""A new configuration has a pool of which nothing is known: under a name, and with servers, that no former one had. Its
servers are read only if they are empty, or as the operator says."""

import pytest
from leases import LeaseClient
from processes import Server, connect, eventually, free_port, stats
from resized_region import KEYS, Router, metric_states, routes, text_of

OLD, PRESENT = b"old", b"present"
HOLDS_ITEMS = "servers of a pool under a new name hold items"


class Renewal:
    """Two routers that are peers. Their pool has the first server, and a pool with another name gets the others."""

    def __init__(self, tmp_path) -> None:
        self.servers = [Server(f"server-{index}", tmp_path) for index in range(3)]
        self.first = text_of(self.servers[:1])
        ports = [free_port() for _ in range(2)]
        self.routers = [Router(tmp_path, self.first, port, [peer for peer in ports if peer != port]) for port in ports]

    def configure(self, **pool) -> str:
        """Gives both routers the configuration with the other pool."""
        text = text_of(self.servers[1:], "renewed", **pool)
        for router in self.routers:
            router.configure(text)
        return text

    def fill(self, server: Server, value: bytes) -> None:
        """A server holds that value of every key."""
        client = connect(server.port)
        assert client.set_many(dict.fromkeys(KEYS, value), noreply=False) == []
        client.close()

    def values(self) -> set[bytes]:
        """What clients of both routers read."""
        clients = [connect(router.port) for router in self.routers]
        values = {value for client in clients for value in client.get_many(KEYS).values()}
        for client in clients:
            client.close()
        return values

    def wait_state(self, state: str) -> None:
        """Waits until both routers are in a step of the change."""
        for router in self.routers:
            is_there = lambda router=router: stats(router.port)["resize_state"] == state  # noqa: E731
            eventually(is_there, f"{state}:\n{router.log()[-4000:]}", 30)

    def wait_in_force(self, text: str) -> None:
        """Waits until both routers read by that configuration."""
        for router in self.routers:
            eventually(lambda router=router: router.reads_by(text), f"in force:\n{router.log()[-4000:]}", 30)

    def flushes(self) -> list[int]:
        """How often each server of the new pool was flushed."""
        return [int(stats(server.port)["cmd_flush"]) for server in self.servers[1:]]

    def stop(self) -> None:
        for process in [*self.routers, *self.servers]:
            process.stop()


@pytest.fixture
def renewal(tmp_path):
    renewal = Renewal(tmp_path)
    try:
        yield renewal
    finally:
        renewal.stop()


@pytest.mark.parametrize("decision", ["flush", "trust", "by hand"])
def test_old_values_of_a_pool_under_a_new_name_are_not_read(renewal, decision):
    """They were read: the pool's servers were trusted, with a warning. Some routers had used one of them before."""
    _, used, empty = renewal.servers
    renewal.fill(renewal.servers[0], PRESENT)
    renewal.fill(used, OLD)
    text = renewal.configure()
    renewal.wait_state("waiting_for_operator")
    assert renewal.values() == {PRESENT}, "the former configuration is in force"
    for router in renewal.routers:
        assert metric_states(router) == ["waiting_for_operator"]
        eventually(lambda router=router: HOLDS_ITEMS in router.log(), "the log says so")
        named = next(line for line in router.log().splitlines() if HOLDS_ITEMS in line)
        assert f"127.0.0.1:{used.port}" in named and f"127.0.0.1:{empty.port}" not in named
    _, reported = routes(KEYS[0], renewal.routers[0], *(router.port for router in renewal.routers))
    assert [report["resize_state"] for report in reported] == ["waiting_for_operator"] * 2

    # It is found again by a process that starts.
    renewal.routers[0].kill()
    renewal.routers[0].restart()
    renewal.wait_state("waiting_for_operator")
    assert renewal.values() == {PRESENT} and renewal.flushes() == [0, 0]

    if decision == "by hand":
        client = connect(used.port)
        assert client.flush_all(noreply=False)
        client.close()
    else:
        text = renewal.configure(flush_new_servers=decision == "flush")
    renewal.wait_in_force(text)
    assert renewal.values() == ({OLD} if decision == "trust" else set())
    flushed_used, flushed_empty = renewal.flushes()
    assert (flushed_used > 0, flushed_empty) == (decision != "trust", 0)


def test_an_empty_pool_under_a_new_name_is_read_at_once_and_keeps_its_values(renewal):
    """Each router asks the servers. The second one finds the values of the first one, and neither waits nor flushes."""
    first, second = renewal.routers
    text = text_of(renewal.servers[1:], "renewed")
    first.configure(text)
    eventually(lambda: first.reads_by(text), f"in force:\n{first.log()[-4000:]}", 30)
    client = LeaseClient(first.port)
    for key in KEYS:
        _, token, _ = client.lease_get(key)
        assert client.lease_set(key, token, PRESENT) == b"STORED"
    client.close()
    second.configure(text)
    renewal.wait_in_force(text)
    for router in renewal.routers:
        client = connect(router.port)
        assert len(client.get_many(KEYS)) == len(KEYS)
        client.close()
        assert HOLDS_ITEMS not in router.log()
        assert stats(router.port)["servers_emptied"] == "0"
    assert renewal.flushes() == [0, 0]


def test_a_server_of_a_pool_under_a_new_name_that_does_not_answer_is_waited_for(renewal):
    renewal.fill(renewal.servers[0], PRESENT)
    renewal.servers[2].kill()
    text = renewal.configure()
    renewal.wait_state("emptying")
    for router in renewal.routers:
        eventually(lambda router=router: "whether it is empty" in router.log(), "the log names the server")
    assert renewal.values() == {PRESENT}
    renewal.servers[2].restart()
    renewal.wait_in_force(text)
    assert renewal.flushes() == [0, 0]
