"""mcrouter's command line, word for word, at the built router."""

import json
import os
import re
import socket
import subprocess

import pytest
from mcrouter_setups import Setup, hit, reply, set_of, setup
from processes import PROGRAMS, Process, accepts_at, answers, eventually, free_port, frozen
from routers import ask

ROUTER = PROGRAMS / "lookaside-router"
NOWHERE = '{"route": "NullRoute"}'


def ended(*arguments: object) -> subprocess.CompletedProcess:
    """A router that ends by itself."""
    return subprocess.run([ROUTER, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)


def test_only_gets_reach_the_servers(tmp_path):
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", tmp_path / "r.json", "--allow-only-gets", "--enable-flush-cmd")
        assert reply(it.servers["one"].port, set_of("k", "5")) == b"STORED\r\n"
        assert it.ask(b"get k\r\n", b"gat 0 k\r\n") == [hit("k", "5")] * 2
        assert it.ask(b"gets k\r\n")[0].startswith(b"VALUE k 0 1 ")
        change = b"%s k 0 0 1\r\nx\r\n"
        for verb in (b"set", b"add", b"replace", b"append", b"prepend"):
            assert it.ask(change % verb) == [b"NOT_STORED\r\n"], verb
        assert it.ask(b"cas k 0 0 1 1\r\nx\r\n") == [b"NOT_STORED\r\n"]
        for request in (b"delete k\r\n", b"touch k 9\r\n", b"incr k 1\r\n", b"decr k 1\r\n"):
            assert it.ask(request) == [b"NOT_FOUND\r\n"], request
        assert it.ask(b"ms k 1\r\nx\r\n", b"md k\r\n") == [b"NS\r\n", b"NF\r\n"]
        assert it.ask(b"flush_all\r\n")[0].startswith(b"SERVER_ERROR")
        assert it.at("one", "k") == b"5"


@pytest.mark.parametrize(
    "flag",
    [
        "--acl-checker-enforce",
        "--ssl-service-identity-authorization-enforce",
        "--key-client-binding-enable",
        "--auth-fiel=u",
    ],
)
def test_a_flag_that_restricts_access_is_not_ignored(flag):
    done = ended("-p", free_port(), "--config-str", NOWHERE, flag)
    assert done.returncode == 3 and flag.split("=")[0] in done.stderr, done.stderr


def test_flags_without_effect_leave_one_line_each_in_the_log(tmp_path):
    log = tmp_path / "by-option.log"
    port = free_port()
    words = [
        "--por", port, "--config-s", NOWHERE, "-L", log, "-v", "0", "--fibers-max-pool-size", "1000", "--use-thrift",
        "--frobnicate", "17", "--server-timeout=never", "--ssl-verify-peers", "--enable-flush-cmd=0",
    ]  # fmt: skip
    router = Process("router", [ROUTER, *words], tmp_path)
    try:
        router.wait_ready(lambda: answers(port))
        lines = log.read_text().splitlines()
        for words in (
            "--fibers-max-pool-size has no effect",
            "--use-thrift is not supported",
            "Unrecognized option: --frobnicate",
            "--server-timeout never: not a number",
        ):
            assert sum(words in line for line in lines) == 1, lines
        assert not any("--ssl-verify-peers" in line for line in lines), lines
        assert reply(port, b"flush_all\r\n").startswith(b"SERVER_ERROR")
        assert router.log() == "", "standard error is the file"
    finally:
        assert router.stop() == 0


def test_a_socket_of_the_parent_is_taken_over(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        command = [ROUTER, "--listen-sock-fd", listener.fileno(), "-p", free_port(), "--config-str", NOWHERE]
        router = Process("router", [*command, "--num-proxies", "2"], tmp_path, pass_fds=[listener.fileno()])
    try:
        router.wait_ready(lambda: answers(port))
        assert not answers(int(router.command[4])), "it listens nowhere else"
    finally:
        assert router.stop() == 0


def test_a_descriptor_that_is_no_listener_is_refused():
    with open(os.devnull, "rb") as file:
        command = [str(ROUTER), "--listen-sock-fd", str(file.fileno()), "--config-str", NOWHERE]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, pass_fds=[file.fileno()], check=False
        )
    assert done.returncode == 3 and "--listen-sock-fd" in done.stderr, done.stderr


def test_a_unix_socket_replaces_ports_and_is_removed(tmp_path):
    path, port = tmp_path / "router.sock", free_port()
    router = Process("router", [ROUTER, "--unix-domain-sock", path, "-p", port, "--config-str", NOWHERE], tmp_path)
    try:
        router.wait_ready(lambda: accepts_at(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(path))
            client.sendall(b"version\r\n")
            assert client.recv(100).startswith(b"VERSION")
        assert not answers(port)
    finally:
        assert router.stop() == 0
    assert not path.exists()


def test_exit_statuses(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(NOWHERE)
    bad.write_text('{"route": "PoolRoute|none"}')
    assert ended("-f", good, "--validate-config").returncode == 0
    assert ended("-f", bad, "--validate-config=exit").returncode == 3
    assert ended("-f", bad, "--validate-config=run", "-p", free_port()).returncode == 3
    assert ended("-p", free_port()).returncode == 3, "no configuration"
    assert ended("-f", good, "--config-str", NOWHERE).returncode == 3, "two of them"
    assert ended("-f", good, "-I", "0").returncode == 3
    started = ended("-f", bad, "-p", free_port())
    assert started.returncode == 2 and "CRITICAL: Failed to initialize mcrouter" in started.stderr, started.stderr
    missing = ended("-f", tmp_path / "none.json", "--validate-config")
    assert missing.returncode == 3 and f"Can not read config from {tmp_path}/none.json" in missing.stderr
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert ended("-f", good, "-p", other.getsockname()[1]).returncode == 2, "the port may be free later"


def test_validation_may_go_on_to_serve(tmp_path):
    port = free_port()
    router = Process("router", [ROUTER, "-p", port, "--config-str", NOWHERE, "--validate-config=run"], tmp_path)
    try:
        router.wait_ready(lambda: answers(port))
    finally:
        assert router.stop() == 0


def test_an_unknown_key_is_a_warning_and_an_unknown_route_an_error(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('{"pools": {"A": {"servers": ["h:0"], "weigths": [1]}}, "route": "PoolRoute|A", }')
    done = ended("-f", path, "--validate-config")
    assert done.returncode == 0 and "weigths" in done.stderr and "weights" in done.stderr, done.stderr
    path.write_text('{\n"route": {"type": "NoSuchRoute"}}')
    done = ended("-f", path, "--validate-config")
    assert done.returncode == 3 and "Unknown RouteHandle: NoSuchRoute line: 2" in done.stderr, done.stderr


def test_one_thread_that_connects_when_a_request_needs_it(tmp_path):
    with setup(tmp_path) as it:
        it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})

        def connections() -> int:
            line = next(
                line for line in reply(it.servers["one"].port, b"stats\r\n").splitlines() if b" curr_conn" in line
            )
            return int(line.split()[-1])

        before = connections()
        it.start("-f", tmp_path / "r.json")
        assert b"STAT threads 1\r\n" in it.ask(b"stats\r\n")[0]
        assert connections() == before
        assert it.ask(b"get k\r\n") == [b"END\r\n"] and connections() == before + 1
        it.router.stop()
        it.start("-f", tmp_path / "r.json", "--num-proxies", "2", "--connect-ahead")
        eventually(lambda: connections() == before + 2, "each thread connects")


def test_configurations_that_are_read_once(tmp_path):
    with setup(tmp_path) as it:
        path = it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", path, "--disable-reload-configs")
        path.write_text("{ broken")
        it.router.running.send_signal(1)
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"]
        assert b"STAT config_failures 0\r\n" in it.ask(b"stats\r\n")[0]


def test_a_dump_of_the_configuration_is_used_at_the_next_start(tmp_path):
    with setup(tmp_path) as it:
        path = it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        text, root = path.read_text(), tmp_path / "dump"
        it.start("-f", path, "--config-dump-root", root, "--service-name", "cache")
        escaped = str(path).replace("/", "%2F")
        dump = root / "cache" / str(it.port) / f"file-{escaped}"
        assert dump.read_text() == text
        path.write_text("{ broken")
        eventually(lambda: "Failed to reconfigure: " in it.router.log(), "the change is refused")
        assert "Error while reconfiguring mcrouter after config change" in it.router.log()
        assert dump.read_text() == text
        router = it.router
        router.stop()
        router.start()
        router.wait_ready(lambda: answers(it.port))
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"] and it.at("one", "k") == b"v"
        assert "Failed to configure, initial error '" in router.log() and f"', from backup {path}" in router.log()
        router.stop()
        router.command += ["--max-dumped-config-age", "0"]
        done = subprocess.run(router.command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr


@pytest.mark.parametrize(
    "imported",
    [
        "{ broken",
        # Valid, and never in force together with the configuration in the dump.
        '{"servers": ["127.0.0.1:1"]}',
    ],
)
def test_imported_files_come_from_the_dump_together_with_the_configuration(tmp_path, imported):
    """The configuration came from the dump, and its imports from beside it: it did not start, or was a mixture."""
    with setup(tmp_path) as it:
        it.file("pool.json", {"servers": [it.address("one")]})
        text = '{"pools": {"A": "@import(file:pool.json)"}, "route": "PoolRoute|A"}'
        path = it.file("r.json", text)
        it.start("-f", path, "--config-dump-root", tmp_path / "dump")
        router = it.router
        first_broken = tmp_path / "pool.json" if imported == "{ broken" else path
        first_broken.write_text("{ broken")
        eventually(lambda: "Failed to reconfigure: " in router.log(), "the change is refused")
        it.file("pool.json", imported)
        router.stop()
        router.start()
        router.wait_ready(lambda: answers(it.port))
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"] and it.at("one", "k") == b"v"
        assert f"', from backup {path}" in router.log()


def test_an_import_that_was_absent_is_absent_in_the_dump(tmp_path):
    """Its default was in force. A copy from before must not come back."""
    with setup(tmp_path) as it:
        pool = it.file("pool.json", {"servers": [it.address("one")]})
        default = {"type": "import", "path": "file:pool.json", "default": {"servers": [it.address("two")]}}
        path = it.file("r.json", {"pools": {"A": default}, "route": "PoolRoute|A"})
        it.start("-f", path, "--config-dump-root", tmp_path / "dump")
        router = it.router
        pool.unlink()
        eventually(lambda: it.ask(set_of("k", "v")) and it.at("two", "k") == b"v", "the default is in force")
        path.write_text("{ broken")
        eventually(lambda: "Failed to reconfigure: " in router.log(), "the change is refused")
        router.stop()
        router.start()
        router.wait_ready(lambda: answers(it.port))
        assert it.ask(set_of("other", "v")) == [b"STORED\r\n"] and it.holders("other") == {"two"}


def test_empty_texts_are_off(tmp_path):
    """mcrouter's default of these flags is the empty text, so unit files have it."""
    port = free_port()
    words = [
        "-p", port, "--config-str", NOWHERE, "--stats-root=", "--config-dump-root", "", "--async-dir", "", "-a", "",
        "--log-path=", "--pem-cert-path=", "--pem-key-path=", "--pem-ca-path=", "--unix-domain-sock=",
        "--config-params=", "--runtime-vars-file=", "--listen-addresses=", "--config=", "-f", "",
    ]  # fmt: skip
    router = Process("router", [ROUTER, *words], tmp_path)
    try:
        router.wait_ready(lambda: answers(port))
    finally:
        assert router.stop() == 0


def test_numbers_beyond_what_is_possible_are_replaced(tmp_path):
    with setup(tmp_path) as it:
        path = it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        it.start("-f", path, "--keepalive-interval", "99999", "--big-value-split-threshold", "2000000000",
                 "--target-max-pending-requests=0")  # fmt: skip
        for words in (
            "--keepalive-interval 99999: expected 1 to 32767; 32767 is used",
            "--big-value-split-threshold 2000000000: expected 0 to 1073741824; 1073741824 is used",
            "--target-max-pending-requests 0: expected 1 to 4294967295; 1 is used",
        ):
            assert it.router.log().count(words) == 1, it.router.log()
        assert it.ask(b"get __mcrouter__.options(target_max_pending_requests)\r\n")[0].split(b"\r\n")[1] == b"1"
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"]


def test_no_client_and_no_file_gets_a_password(tmp_path):
    """`stats` showed the whole command line to every client, the password of etcd included."""
    with setup(tmp_path) as it:
        path = it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        root = tmp_path / "stats"
        secret = "hunter2"
        it.start(
            "-f", path, "--etcd-password", secret, f"--etcd-pass={secret}", "--etcd-passwrod", secret,
            "--config-str", '{"ignored": "' + 1000 * "x" + '"}', "--config", f"file:{path}", "--stats-root", root,
            "--stats-logging-interval", "50", "-vv",
        )  # fmt: skip
        options = root / f"libmcrouter.mcrouter.{it.port}.startup_options"
        eventually(options.exists, "the files are there")
        shown = it.ask(b"stats\r\n", b"stats all\r\n", b"get __mcrouter__.options\r\n")
        (line,) = (line for line in shown[0].splitlines() if line.startswith(b"STAT commandargs "))
        assert b" --etcd-password ... --etcd-pass=... --etcd-passwrod ... --config-str {...} --config " in line
        files = [file.read_text() for file in root.iterdir() if not file.name.endswith(".new")]
        for text in (*map(bytes.decode, shown), *files, it.router.log()):
            assert secret not in text


def test_options_of_mcrouter_are_constants_of_macros(tmp_path):
    """A configuration may name any of them, and was refused for those that have another name here, or no effect."""
    with setup(tmp_path) as it:
        route = {
            "type": "if",
            "condition": "@and(@equals(%mcr_opts-async_dir%,),@equals(%mcr_opts-fibers_stack_size%,24576))",
            "is_true": "PoolRoute|A",
            "is_false": "@fail(%mcr_opts-fibers_stack_size%)",
        }
        server = it.address("one").replace("127.0.0.1", "%mcr_opts-listen_addresses%")
        it.file("r.json", {"pools": {"A": {"servers": [server]}}, "route": route})
        it.start("-f", tmp_path / "r.json", "--listen-addresses", "127.0.0.1")
        assert it.ask(set_of("k", "v")) == [b"STORED\r\n"] and it.at("one", "k") == b"v"
        assert it.ask(b"get __mcrouter__.options(use_thrift)\r\n")[0].split(b"\r\n")[1] == b"false"


@pytest.mark.parametrize(
    ("words", "warns"),
    [([], True), (["--listen-addresses", "127.0.0.1"], False), (["-l", "127.0.0.1", "-s", "r.sock"], False)],
)
def test_a_port_without_addresses_is_a_warning(tmp_path, words, warns):
    """mcrouter listens at all addresses then; other hosts would find the port closed without a word."""
    port = free_port()
    socket_file = tmp_path / "r.sock"
    words = [str(socket_file) if word == "r.sock" else word for word in words]
    router = Process("router", [ROUTER, "-p", port, "--config-str", NOWHERE, *words], tmp_path)
    try:
        router.wait_ready(lambda: accepts_at(socket_file) if "-s" in words else answers(port))
        assert ("--listen-addresses='*'" in router.log()) == warns, router.log()
    finally:
        assert router.stop() == 0


def test_a_socket_of_the_parent_cannot_require_certificates():
    """It was served plain, without a line in the log."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        command = [ROUTER, "--listen-sock-fd", listener.fileno(), "--ssl-require-peer-certs", "--config-str", NOWHERE]
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=60, pass_fds=[listener.fileno()],
            check=False,
        )  # fmt: skip
    assert done.returncode == 3 and "--ssl-require-peer-certs" in done.stderr, done.stderr


def test_macros_that_choose_otherwise_than_mcrouters_are_a_warning(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(
        """{ "pools": { "A": { "servers": { "type": "shuffle", "dictionary": ["h:1", "h:2"] } } },
             "route": "PoolRoute|A" }"""
    )
    done = ended("-f", path, "--validate-config")
    assert done.returncode == 0 and "@shuffle gives other results than mcrouter's" in done.stderr, done.stderr


def test_files_of_statistics_without_any_request(tmp_path):
    with setup(tmp_path) as it:
        path = it.file("r.json", {"pools": {"A": {"servers": [it.address("one")]}}, "route": "PoolRoute|A"})
        root = tmp_path / "stats"
        it.start("-f", path, "--stats-root", root, "--stats-logging-interval", "50")
        name = f"libmcrouter.mcrouter.{it.port}"
        options = root / f"{name}.startup_options"
        eventually(lambda: options.exists() and (root / f"{name}.config_sources_info").exists(), "the files are there")
        statistics = json.loads((root / f"{name}.stats").read_text())
        assert statistics[f"{name}.num_servers"] == 1 and all(
            isinstance(value, (int, float)) for value in statistics.values()
        )
        assert list(statistics) == sorted(statistics)
        given = json.loads(options.read_text())
        assert given["stats_logging_interval"] == "50" and given["pid"] == str(it.router.running.pid)
        written = options.stat().st_mtime_ns
        eventually(lambda: options.stat().st_mtime_ns > written, "they are written again")
        sources = json.loads((root / f"{name}.config_sources_info").read_text())
        assert sources["config_file"] == str(path) and len(sources["mcrouter_config"]) == 32


def test_timeouts_by_the_place_of_a_pool(tmp_path):
    """Each flag has its own pools: one that was taken for another would go unnoticed until a region is slow."""
    places = {"here": ("r", "one"), "next": ("r", "two"), "far": ("s", "one"), "nowhere": (None, None)}
    flags = ("--within-cluster-timeout-ms", 111, "--cross-cluster-timeout-ms", 222, "--cross-region-timeout-ms=333")
    with setup(tmp_path) as it:
        pools = {name: {"servers": [f"127.0.0.1:{free_port()}"], "server_timeout": 444} for name in places}
        for name, (region, cluster) in places.items():
            pools[name] |= {"region": region, "cluster": cluster} if region else {}
        policies = {name: f"PoolRoute|{name}" for name in pools}
        route = {"type": "PrefixSelectorRoute", "policies": policies, "wildcard": "NullRoute"}
        it.file("r.json", {"pools": pools, "route": route})
        it.start("-f", tmp_path / "r.json", "-R", "/r/one/", *flags)
        found = {name: timeouts_ms(it, name) for name in places}
        assert found == {"here": [111], "next": [222], "far": [333], "nowhere": [444]}


def timeouts_ms(it: Setup, key: str) -> list[int]:
    """The timeouts of the servers that a key goes to."""
    (tree,) = it.ask(f"get __mcrouter__.route_handles(get,{key})\r\n".encode())
    return [int(timeout) for timeout in re.findall(r"\|timeout=(\d+)ms", tree.decode())]


@pytest.mark.parametrize("words", [(), ("--retain-source-ip",)])
def test_routes_know_the_address_of_a_client(tmp_path, words):
    """mcrouter's routes know it only with the flag: a router that did not would send all clients to one replica."""
    clients = [f"127.0.0.{number}" for number in range(1, 13)]
    with setup(tmp_path) as it:
        pools = {name: {"servers": [it.address(name)]} for name in ("one", "two")}
        route = {"type": "OriginalClientHashRoute", "children": [f"PoolRoute|{name}" for name in pools]}
        it.file("r.json", {"pools": pools, "route": route})
        it.start("-f", tmp_path / "r.json", *words)
        chosen = {}
        for client in clients:
            assert ask(it.port, client, set_of(f"of:{client}", "v")) == b"STORED\r\n"
            (chosen[client],) = it.holders(f"of:{client}")
        assert set(chosen.values()) == {"one", "two"}
        for client, name in chosen.items():
            assert ask(it.port, client, set_of(f"again:{client}", "v")) == b"STORED\r\n"
            assert it.holders(f"again:{client}") == {name}, "whatever the key"
        assert "retain-source-ip" not in it.router.log(), "it is supported"


def test_under_mcrouters_name_its_defaults_are_in_force(tmp_path):
    """A unit file that starts mcrouter relies on them: other hosts would find the port closed."""
    program, port = tmp_path / "mcrouter", free_port()
    program.symlink_to(ROUTER)
    router = Process("router", [program, "-p", port, "--config-str", NOWHERE], tmp_path)
    try:
        router.wait_ready(lambda: answers(port))
        assert ask(port, "127.0.0.1", b"get k\r\n") == b"END\r\n"
        with socket.create_connection(("127.0.0.2", port), timeout=5) as client:
            client.sendall(b"get k\r\n")
            assert client.recv(100) == b"END\r\n", "it listens at all addresses"
        expected = {
            "max_conns": "0",
            "client_timeout": "1000",
            "probe_timeout_initial": "10000",
            "probe_timeout_max": "60000",
        }
        for name, value in expected.items():
            assert reply(port, f"get __mcrouter__.options({name})\r\n".encode()).split(b"\r\n")[1] == value.encode()
        assert "started under the name mcrouter" in router.log() and "--listen-addresses='*'" not in router.log()
    finally:
        assert router.stop() == 0
    without_port = [program, "--config-str", NOWHERE]
    done = subprocess.run(without_port, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3 and "--port" in done.stderr, done.stderr


def test_broadcasts_in_the_background(tmp_path):
    """As in mcrouter: the reply is the local cluster's, and no cluster that hangs delays it."""
    with setup(tmp_path) as it:
        pools = {name: {"servers": [it.address(name)]} for name in ("east", "west")}
        routes = [{"aliases": [f"/r/{name}/"], "route": f"PoolRoute|{name}"} for name in pools]
        it.file("clusters.json", {"pools": pools, "routes": routes})
        arguments = ("-f", tmp_path / "clusters.json", "-R", "/r/east/", "--server-timeout", "60000")
        it.start(*arguments, "--broadcast-in-background")
        assert it.ask(set_of("k", "e"), set_of("/r/west/k", "w")) == [b"STORED\r\n"] * 2
        with frozen(it.servers["west"]):
            assert it.ask(b"delete /*/*/k\r\n") == [b"DELETED\r\n"]
            assert it.at("east", "k") is None
        eventually(lambda: it.at("west", "k") is None, "the other cluster has the delete, too")
        it.servers["west"].kill()
        assert it.ask(b"delete /*/*/k\r\n") == [b"NOT_FOUND\r\n"], "no error of another cluster"
        it.router.stop()
        it.start(*arguments)
        assert it.ask(b"delete /*/*/k\r\n")[0].startswith(b"SERVER_ERROR "), "by default all clusters count"
