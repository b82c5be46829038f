"""What clients of mcrouter see on the wire: replies of servers that pass, errors by their beginnings, bad input."""

import json
import threading

import pytest
from mcrouter_setups import reply, setup
from processes import PROGRAMS, Process, answers, eventually, free_port, silent_address
from routers import router
from scripted import scripted

KEY = "secret:user:1"


def pool(*servers: str) -> dict:
    """The configuration of one pool."""
    return {"pools": {"A": {"servers": list(servers)}}, "route": "PoolRoute|A"}


PASSED = [
    b"SERVER_ERROR out of memory storing object\r\n",
    b"SERVER_ERROR 42 \xc3\xa4\xff is wrong\r\n",
    b"SERVER_ERROR\r\n",
    b"SERVER_ERROR 307 busy\r\n",
    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    b"CLIENT_ERROR\r\n",
    b"CLIENT_ERROR 7 \x80\r\n",
]


@pytest.mark.parametrize("passed", PASSED)
def test_errors_of_servers_pass_as_they_are(tmp_path, passed):
    with scripted(passed) as (server,), router(tmp_path, pool(server.address)) as port:
        for request in (f"get {KEY}", f"delete {KEY}", f"incr {KEY} 1", f"touch {KEY} 1", f"set {KEY} 0 0 1\r\nx"):
            assert reply(port, f"{request}\r\n".encode()) == passed, request


def test_a_bare_error_is_a_remote_error_and_the_server_stays_in_use(tmp_path):
    unknown = b"SERVER_ERROR ERROR reply received from server.\r\n"
    with scripted(b"ERROR\r\n", b"END\r\n") as (server, other):
        with router(tmp_path, pool(server.address), "--timeouts-until-tko", "1") as port:
            for _ in range(5):
                assert reply(port, f"get {KEY}\r\ntouch {KEY} 1\r\n".encode()) == unknown * 2
            assert len(server.lines) == 10 and reply(port, b"stats suspect_servers\r\n") == b"END\r\n"
        failover = {"type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}
        pools = {"A": {"servers": [server.address]}, "B": {"servers": [other.address]}}
        with router(tmp_path, {"pools": pools, "route": failover}) as port:
            assert reply(port, f"get {KEY}\r\n".encode()) == b"END\r\n"


@pytest.mark.parametrize(
    ("answer", "errors", "fails_over"),
    [
        (b"SERVER_ERROR 307 busy\r\n", ["busy"], True),
        (b"SERVER_ERROR 307 busy\r\n", ["remote_error"], False),
        (b"SERVER_ERROR no\r\n", ["remote_error"], True),
        (b"SERVER_ERROR 3070\r\n", ["busy"], False),
        (b"CLIENT_ERROR no\r\n", None, False),
    ],
)
def test_which_errors_fail_over(tmp_path, answer, errors, fails_over):
    with scripted(answer, b"END\r\n") as (server, other):
        route = {"type": "FailoverRoute", "children": ["PoolRoute|A", "PoolRoute|B"]}
        route |= {"failover_errors": errors} if errors else {}
        pools = {"A": {"servers": [server.address]}, "B": {"servers": [other.address]}}
        with router(tmp_path, {"pools": pools, "route": route}) as port:
            assert reply(port, f"get {KEY}\r\n".encode()) == (b"END\r\n" if fails_over else answer)


@pytest.mark.parametrize(
    ("behaviour", "beginning", "then"),
    [
        ("refuse", b"AsyncSocketException: connect failed", b"Server unavailable. Reason: mc_res_connect_error"),
        ("port 0", b"AsyncSocketException: connect failed", b"Server unavailable. Reason: mc_res_connect_error"),
        ("hang", b"Reply timeout", b"Server unavailable. Reason: mc_res_timeout"),
        ("close", b"Connection closed by the server.", None),
        ("reset", b"Failed to read from socket with remote endpoint 127.0.0.1:", None),
    ],
)
def test_errors_of_the_routers_own_making_by_their_beginnings(tmp_path, behaviour, beginning, then):
    unreachable = {"refuse": f"127.0.0.1:{free_port()}", "port 0": "127.0.0.1:0"}
    with scripted("close" if behaviour in unreachable else behaviour) as (server,):
        address = unreachable.get(behaviour, server.address)
        arguments = ("--timeouts-until-tko", "1", "--probe-timeout-initial", "60000")
        with router(tmp_path, pool(address), *arguments) as port:
            for expected in (beginning, then or beginning):
                for request in (f"get {KEY}", f"delete {KEY}"):
                    got = reply(port, f"{request}\r\n".encode())
                    assert got.startswith(b"SERVER_ERROR " + expected) and got.count(b"\r\n") == 1, got
                    assert KEY.encode() not in got, "keys do not belong into errors"
                    if then:
                        expected = then


def test_a_connect_that_hangs(tmp_path):
    with silent_address() as address, router(tmp_path, pool(address), "--probe-timeout-initial", "60000") as port:
        got = reply(port, f"get {KEY}\r\n".encode())
        assert got.startswith(b"SERVER_ERROR Timed out when trying to connect to server. Ex: "), got
        assert KEY.encode() not in got
        got = reply(port, f"delete {KEY}\r\n".encode())
        assert got.startswith(b"SERVER_ERROR Server unavailable. Reason: mc_res_connect_timeout"), got


def test_a_request_that_was_never_sent(tmp_path):
    """The first request keeps the second one from its server until the time of both is up."""
    arguments = ("--target-max-inflight-requests", "1", "--timeouts-until-tko", "100")
    with scripted("hold") as (server,), router(tmp_path, pool(server.address), *arguments) as port:
        got: dict[str, bytes] = {}

        def ask(key: str) -> None:
            got[key] = reply(port, f"get {key}\r\n".encode())

        first = threading.Thread(target=ask, args=("sent",))
        first.start()
        eventually(lambda: server.lines == [b"get sent\r\n"], "the first request is at the server")
        ask("queued")
        first.join()
        server.released.set()
        assert got["sent"].startswith(b"SERVER_ERROR Reply timeout"), got
        assert got["queued"].startswith(b"SERVER_ERROR Client queue timeout"), got
        assert b"get queued\r\n" not in server.lines


def test_marks_of_servers_in_the_log(tmp_path):
    """Scripts search for mcrouter's words; the lines of failures name the router."""
    with scripted("hang") as (first,), setup(tmp_path) as it:
        it.file("r.json", pool(first.address))
        arguments = ("-t", "200", "--timeouts-until-tko", "1", "-r", "60000", "--service-name", "cache")
        it.start("-f", tmp_path / "r.json", *arguments)
        it.ask(f"get {KEY}\r\n".encode())

        def line_with(words: str) -> str:
            return next((line for line in it.router.log().splitlines() if words in line), "")

        totals = "Total hard TKOs: 0; soft TKOs: 1. Reply: mc_res_timeout"
        marked = f"{first.address} marked soft TKO. {totals}"
        eventually(lambda: line_with(marked), "the timeout marks the server")
        assert f"service=libmcrouter.cache.{it.port}" in line_with(marked), it.router.log()
        it.file("r.json", pool(it.address("second")))
        removed = f"{first.address} was TKO, removed from config. Total hard TKOs: 0; soft TKOs: 0. Reply: mc_res_tko"
        eventually(lambda: line_with(removed), "the server is not in the configuration any more")


def test_connections_that_are_open_do_not_count_as_closed(tmp_path):
    """Two pools have the same server, with different timeouts: two connections. A timeout of one closes that one."""
    with scripted(b"END\r\n") as (server,):
        pools = {"A": {"servers": [server.address]}, "B": {"servers": [server.address], "server_timeout": 5_000}}
        policies = {"b": "PoolRoute|B"}
        route = {"type": "PrefixSelectorRoute", "policies": policies, "wildcard": "PoolRoute|A"}
        arguments = ("--timeouts-until-tko", "1", "--probe-timeout-initial", "60000")
        with router(tmp_path, {"pools": pools, "route": route}, *arguments) as port:

            def connections() -> tuple[str, str]:
                lines = reply(port, b"stats\r\n").decode().splitlines()[:-1]
                values = dict(line.split(" ", 2)[1:] for line in lines)
                return values["num_connections_opened"], values["num_connections_closed"]

            assert reply(port, b"get a\r\nget b\r\n") == b"END\r\n" * 2
            assert connections() == ("2", "0")
            server.answer = "hang"
            assert reply(port, b"get a\r\n").startswith(b"SERVER_ERROR Reply timeout")
            eventually(lambda: connections()[1] != "0", "the connection of the timeout is closed")
            assert connections() == ("2", "1"), "the other one is open, though its server is out"


def test_too_many_requests_that_wait(tmp_path):
    with scripted("hang") as (server,), router(tmp_path, pool(server.address), "--target-max-pending", "2") as port:
        got = reply(port, b"get a b c\r\n")
        assert got == f"SERVER_ERROR Max pending requests (2) reached for destination {server.address}\r\n".encode()


def test_errors_of_routes(tmp_path):
    long, replaced = "k" * 240, {"ensure_key_prefix": "", "replace_key_prefix": "gone"}
    configuration = {
        "pools": {"empty": {"servers": []}},
        "route": {
            "type": "PrefixSelectorRoute",
            "policies": {
                "empty": "PoolRoute|empty",
                "bad": {"type": "ModifyKeyRoute", "target": "NullRoute", "ensure_key_prefix": "p" * 20},
                "gone": {"type": "ModifyKeyRoute", "target": "NullRoute", **replaced},
                "text": "ErrorRoute|some text",
            },
            "wildcard": "NullRoute",
        },
    }
    with router(tmp_path, configuration) as port:
        for key, expected in (
            ("/x/y/key", "RootRoute: No rh found"),
            ("empty:1", "HashRoute with empty children, name: empty"),
            (f"bad{long}", "ModifyKeyRoute: invalid key: too long"),
            ("gone", "ModifyKeyRoute: invalid key: missing"),
            ("text:1", "some text"),
        ):
            got = reply(port, f"get {key}\r\n".encode()).decode()
            assert got.startswith(f"SERVER_ERROR {expected}"), got
        assert reply(port, b"get /x/y/key\r\n") == b"SERVER_ERROR RootRoute: No rh found\r\n"


def test_all_errors_are_alike_with_group_remote_errors(tmp_path):
    with scripted(b"CLIENT_ERROR a\r\n", "close") as (server, other):
        for address in (server.address, other.address, f"127.0.0.1:{free_port()}"):
            with router(tmp_path, pool(address), "--group-remote-errors") as port:
                assert reply(port, f"get {KEY}\r\ndelete {KEY}\r\n".encode()) == b"SERVER_ERROR remote error\r\n" * 2


LONG = "k" * 251

BAD_INPUT = [
    # The command, the reply, whether the connection stays open.
    (f"get {LONG}", "CLIENT_ERROR bad key", True),
    (f"set {LONG} 0 0 1\r\nx", "CLIENT_ERROR bad key", True),
    (f"delete {LONG}", "CLIENT_ERROR bad key", True),
    (f"incr {LONG} 1", "CLIENT_ERROR bad key", True),
    (f"gat 0 {LONG}", "CLIENT_ERROR bad key", True),
    ("nonsense", "CLIENT_ERROR malformed request", False),
    ("get", "CLIENT_ERROR malformed request", False),
    ("statsfoo", "CLIENT_ERROR malformed request", False),
    ("incr k x", "CLIENT_ERROR malformed request", False),
    ("set k 0 0 x", "CLIENT_ERROR malformed request", False),
    ("shutdown", "CLIENT_ERROR malformed request", False),
    ("stats nonsense", "CLIENT_ERROR bad stats command", True),
    ("flush_all", "SERVER_ERROR Command disabled", True),
    ("flush_regex x", "SERVER_ERROR Command not supported", True),
]


@pytest.mark.parametrize(("command", "line", "stays"), BAD_INPUT)
def test_bad_input(tmp_path, command, line, stays):
    with router(tmp_path, {"route": "NullRoute"}) as port:
        expected = f"NOT_FOUND\r\n{line}\r\n" + ("NOT_FOUND\r\n" if stays else "")
        assert reply(port, f"delete k\r\n{command}\r\ndelete k\r\n".encode()) == expected.encode()


def test_a_multiget_with_a_bad_key_has_its_other_keys(tmp_path):
    with scripted(b"VALUE a 0 1\r\nx\r\nEND\r\n") as (server,), router(tmp_path, pool(server.address)) as port:
        assert reply(port, f"get {LONG} a\r\n".encode()) == b"VALUE a 0 1\r\nx\r\nCLIENT_ERROR bad key\r\n"
        assert server.lines == [b"get a\r\n"]
        assert b"mcrouter" in reply(port, b"version\n")
        assert reply(port, b"stats all  \r\n").endswith(b"END\r\n"), "blanks behind a group are ignored"


def test_a_delete_that_is_answered_with_an_error_of_the_server_is_spooled(tmp_path):
    with scripted(b"SERVER_ERROR not now\r\n") as (server,):
        for arguments, expected in (
            ((), b"SERVER_ERROR not now\r\n"),
            (("--asynclog-disable",), b"SERVER_ERROR not now\r\n"),
        ):
            spool = ("--spool", str(tmp_path / "off")) if arguments else ()
            with router(tmp_path, pool(server.address), *arguments, *spool) as port:
                assert reply(port, f"delete {KEY}\r\n".encode()) == expected
        with router(tmp_path, pool(server.address), "--spool", str(tmp_path / "spool")) as port:
            assert reply(port, f"delete {KEY}\r\n".encode()) == b"NOT_FOUND\r\n"
            assert b"STAT asynclog_requests 1\r\n" in reply(port, b"stats\r\n")
            server.answer = b"DELETED\r\n"
            eventually(lambda: b"STAT spool_pending 0\r\n" in reply(port, b"stats\r\n"), "it is replayed")
            server.answer = b"CLIENT_ERROR no\r\n"
            eventually(
                lambda: reply(port, f"delete {KEY}\r\n".encode()) == b"CLIENT_ERROR no\r\n", "errors of clients pass"
            )


def test_the_worst_reply_of_all_children_wins(tmp_path):
    answers_by_severity = [
        b"DELETED\r\n",
        b"SERVER_ERROR 307 busy\r\n",
        b"SERVER_ERROR remote\r\n",
        b"CLIENT_ERROR c\r\n",
    ]
    for better, worse in zip(answers_by_severity, answers_by_severity[1:], strict=False):
        for order in ((better, worse), (worse, better)):
            with scripted(*order) as servers:
                configuration = pool(*(server.address for server in servers)) | {"route": "AllSyncRoute|Pool|A"}
                with router(tmp_path, configuration) as port:
                    assert reply(port, f"delete {KEY}\r\n".encode()) == worse, order


def test_new_up_closed_and_down_are_all_servers(tmp_path):
    """The states of destinations add up to the number of servers, also while some fail."""
    with scripted(b"END\r\n", "close", b"END\r\n", "hang") as servers:
        addresses = [server.address for server in servers] + [f"127.0.0.1:{free_port()}"]
        pools = {f"P{at}": {"servers": [address]} for at, address in enumerate(addresses)}
        policies = {f"{at}": f"PoolRoute|P{at}" for at in range(len(addresses))}
        route = {"type": "PrefixSelectorRoute", "policies": policies, "wildcard": "NullRoute"}
        path, port = tmp_path / "states.json", free_port()
        path.write_text(json.dumps({"pools": pools, "route": route}))
        command = [PROGRAMS / "lookaside-router", "-p", port, "-f", path, "--num-proxies", "2", "-t", "200"]
        running = Process("states", [*command, "--timeouts-until-tko", "1", "-r", "60000"], tmp_path)
        running.wait_ready(lambda: answers(port))
        try:
            untouched = {"new": 10, "up": 0, "closed": 0, "down": 0}
            # One of the two threads may answer before the other one has its servers.
            eventually(lambda: states(port) == untouched, "each thread has its servers")
            for key in ("0", "1", "3", "4"):
                reply(port, f"get {key}\r\n".encode())
                eventually(lambda: sum(states(port).values()) == 10, "they add up")
            found = states(port)
            assert found["up"] == 1 and found["closed"] == 1 and found["down"] == 4 and found["new"] == 4, found
            suspects = reply(port, b"stats suspect_servers\r\n").decode()
            assert f"STAT {addresses[4]} status:tko num_failures:2\r\n" in suspects, suspects
            assert f"STAT {addresses[3]} status:tko num_failures:1\r\n" in suspects, suspects
            assert f"STAT {addresses[1]} status:down num_failures:1\r\n" in suspects and suspects.count("STAT") == 3
        finally:
            running.stop()


def states(port: int) -> dict[str, int]:
    """The number of destinations in each state; they add up to `num_servers`."""
    values = dict(line.split(" ")[1:3] for line in reply(port, b"stats\r\n").decode().splitlines()[:-1])
    found = {state: int(values[f"num_servers_{state}"]) for state in ("new", "up", "closed", "down")}
    assert sum(found.values()) == int(values["num_servers"])
    return found
