"""What an upgrade hands over beside plain TCP connections: other ports, TLS, UDP, Unix sockets, pid files, systemd."""

import contextlib
import os
import signal
import socket
import struct
import subprocess

from certificates import Authority
from processes import STOP_S, Process, answers, connect, eventually, free_port
from tools import need
from upgrade import (
    SERVER,
    Connection,
    ServerChain,
    background_load,
    check_ports,
    conn_states,
    wait_for_requests,
)


def test_another_command_line_opens_closes_and_keeps_ports(tmp_path):
    kept, closed, opened, metrics = (free_port() for _ in range(4))
    chain = ServerChain(tmp_path, "-l", f"127.0.0.1:{kept},127.0.0.1:{closed}", "--metrics-address", str(metrics))
    chain.port = kept
    try:
        chain.begin()
        with background_load(kept) as pools:
            arguments = [*chain.arguments[:-4], "-l", f"127.0.0.1:{kept},127.0.0.1:{opened}", "-t", "5"]
            server = chain.upgrade("--metrics-address", str(metrics), arguments=arguments)
            wait_for_requests(pools)
            for port in (closed, metrics):
                assert (f"127.0.0.1:{port} was handed over, and no option asks for it" in server.log()) == (
                    port == closed
                )
        check_ports(opened, closed, metrics)
    finally:
        chain.stop()


def test_a_port_that_cannot_be_had_leaves_the_running_server_alone(chain):
    server = chain.begin()
    with background_load(chain.port), socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        new = chain.spawn([*chain.arguments, "-l", f"127.0.0.1,127.0.0.1:{taken}", "--take-over"])
        assert new.running.wait(STOP_S) == 1
        assert f"cannot listen on 127.0.0.1:{taken}" in new.log()
        eventually(lambda: "does not take over" in server.log(), "it has noticed")
    chain.processes.pop()
    assert "handing over" not in server.log()


def test_tls_connections_close_cleanly_after_their_last_reply(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    secured = free_port()
    tls = ["-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"]
    chain = ServerChain(tmp_path, *tls, "-l", f"127.0.0.1:{secured},notls:127.0.0.1")
    try:
        chain.begin()
        with (
            background_load(chain.port),
            connect_tls(authority, secured) as old,
            connect_tls(authority, secured, 4096) as slow,
        ):
            old.sendall(b"set key 0 0 900000\r\n" + b"x" * 900_000 + b"\r\n")
            assert old.recv(100) == b"STORED\r\n"
            slow.sendall(b"get key\r\n" * 9 + b"delete key\r\n")
            eventually(lambda: conn_states(chain.port)["conn_mwrite"] == 1, "a reader is too slow")
            chain.spawn([*chain.arguments, "--take-over"])
            assert old.recv(100) == b"", "closed in order, not reset"
            got = b""
            while piece := slow.recv(1 << 20):
                got += piece
            # The reply in flight is complete; the requests behind it were not executed.
            assert got.startswith(b"VALUE key 0 900000\r\n") and b"DELETED" not in got
            chain.current.wait_ready(lambda: "has taken over" in chain.current.log())
            with connect_tls(authority, secured) as new:
                new.sendall(b"touch key 0\r\n")
                assert new.recv(100) == b"TOUCHED\r\n"
    finally:
        chain.stop()


def connect_tls(authority: Authority, port: int, receive_bytes: int = 1 << 20):
    """A handshaken connection."""
    plain = socket.socket()
    plain.settimeout(STOP_S)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    plain.connect(("127.0.0.1", port))
    return authority.context().wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


def test_udp_loses_no_datagram(tmp_path):
    chain = ServerChain(tmp_path)
    chain.arguments += ["-U", chain.port]
    try:
        chain.begin()
        clients = []
        for number in range(20):
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.settimeout(STOP_S)
            client.connect(("127.0.0.1", chain.port))
            clients.append((number, client))
        for round_ in range(4):
            # Fewer workers, more workers: every socket that the kernel has chosen for a client is served.
            after = chain.spawn([*chain.arguments, "-t", str([1, 4, 1, 2][round_]), "--take-over"])
            while "has taken over" not in after.log():
                assert after.running.poll() is None, after.log()
                for number, client in clients:
                    request = struct.pack("!HHHH", number, 0, 1, 0) + b"set %d 0 0 1\r\nx\r\n" % number
                    client.send(request)
                for number, client in clients:
                    assert client.recv(2000) == struct.pack("!HHHH", number, 0, 1, 0) + b"STORED\r\n"
        for _, client in clients:
            client.close()
    finally:
        chain.stop()


def test_a_unix_socket_is_handed_over_too(tmp_path):
    path = tmp_path / "cache"
    chain = ServerChain(tmp_path, "-s", path)
    try:
        chain.begin()
        with Connection(str(path)) as old:
            assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
            chain.upgrade()
            assert old.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
            with Connection(str(path)) as new:
                assert new.ask(b"get key\r\n") == b"VALUE key 0 1\r\n"
    finally:
        chain.stop()


def test_a_link_in_place_of_a_file_changes_and_overwrites_no_other_file(tmp_path):
    path, pid_path, other = tmp_path / "cache", tmp_path / "pid", tmp_path / "other"
    other.write_text("another's")
    other.chmod(0o600)
    chain = ServerChain(tmp_path, "-s", path, "-a", "777")
    try:
        chain.begin()
        path.unlink()
        for link, more, why in ((path, [], "not a socket"), (pid_path, ["-P", pid_path], "symbolic link")):
            link.symlink_to(other)
            new = chain.spawn([*chain.arguments, *more, "--take-over"])
            new.running.wait(STOP_S)
            assert (other.stat().st_mode & 0o777, other.read_text()) == (0o600, "another's")
            assert new.running.returncode == 1 and why in new.log()
            chain.processes.remove(new)
            link.unlink()
            if link is path:
                # The mode of a socket file can be set again.
                with socket.socket(socket.AF_UNIX) as another:
                    another.bind(str(path))
    finally:
        chain.stop()


def test_connections_of_a_removed_listener_are_closed(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    secured = ["-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"]
    for number, more in enumerate((["-Y", users], ["-B", "binary"], secured)):
        folder = tmp_path / str(number)
        folder.mkdir()
        chain = ServerChain(folder)
        try:
            chain.begin()
            with Connection(("127.0.0.1", chain.port)) as old:
                assert old.ask(b"set key 0 0 1\r\n1\r\n") == b"STORED\r\n"
                chain.upgrade(*more)
                with contextlib.suppress(OSError):
                    assert old.ask(b"get key\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        finally:
            chain.stop()


def test_the_pid_file_always_exists(tmp_path):
    path = tmp_path / "pid"
    chain = ServerChain(tmp_path, "-P", path)
    try:
        chain.begin()
        for _ in range(3):
            new = chain.upgrade()
            assert path.read_text() == f"{new.running.pid}\n"
        other = tmp_path / "other"
        new = chain.upgrade("-P", str(other))
        assert other.read_text() == f"{new.running.pid}\n" and not path.exists()
        assert new.stop() == 0 and not other.exists()
    finally:
        chain.stop()


def test_systemd_learns_the_new_main_pid_before_the_old_process_exits(tmp_path):
    chain = ServerChain(tmp_path)
    path = tmp_path / "notify"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
            supervisor.bind(str(path))
            supervisor.settimeout(STOP_S)
            os.environ["NOTIFY_SOCKET"] = str(path)
            first = chain.begin()
            assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % first.running.pid
            new = chain.spawn([*chain.arguments, "--take-over"])
            assert supervisor.recv(1000) == b"MAINPID=%d\nREADY=1\n" % new.running.pid
            assert first.running.wait(STOP_S) == 0
    finally:
        del os.environ["NOTIFY_SOCKET"]
        chain.stop()


def test_systemd_sockets_are_served_and_handed_over(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        chain = ServerChain(tmp_path)
        chain.port = chain.arguments[1] = listener.getsockname()[1]
        script = f'exec 3<&{listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        command = ["bash", "-c", script, "bash", SERVER, *chain.arguments]
        first = Process("server-0", command, tmp_path, pass_fds=[listener.fileno()])
        chain.processes.append(first)
        try:
            first.wait_ready(lambda: answers(chain.port))
            with background_load(chain.port):
                chain.upgrade()
            assert chain.current.stop() == 0
            socket.create_connection(("127.0.0.1", chain.port)).close()
        finally:
            chain.stop()


def test_a_server_that_dropped_root_is_replaced_by_one_that_drops_it_too(tmp_path):
    need("root")
    for folder in [tmp_path, *tmp_path.parents][:4]:
        folder.chmod(0o755)
    chain = ServerChain(tmp_path, "-u", "nobody", "-P", tmp_path / "pid")
    try:
        chain.begin()
        with background_load(chain.port):
            for _ in range(2):
                new = chain.upgrade()
                assert (tmp_path / "pid").read_text() == f"{new.running.pid}\n"
                assert (chain.gate.stat().st_uid, chain.gate.stat().st_mode & 0o777) == (65534, 0o600)
        assert "starts empty" not in chain.current.log()
    finally:
        for server in chain.processes:
            server.stop()
        removal = [SERVER, "--remove-region", chain.region]
        subprocess.run(removal, check=False, capture_output=True, timeout=STOP_S, user="nobody")


def test_upgrade_of_a_daemonised_server(tmp_path):
    chain = ServerChain(tmp_path, "-d", "-P", tmp_path / "pid")
    try:
        for more in [], ["--take-over"]:
            ended = subprocess.run([SERVER, *map(str, chain.arguments), *more], check=False, timeout=STOP_S)
            assert ended.returncode == 0
            connect(chain.port).add("key", "value")
            assert connect(chain.port).get("key") == b"value"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        eventually(lambda: not (tmp_path / "pid").exists(), "it has ended")
        chain.stop()
