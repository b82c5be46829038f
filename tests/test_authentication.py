"""ASCII authentication: before it succeeds, a client gets only refusals."""

import re
import signal
import socket
import subprocess

import pytest
from certificates import Authority
from guarded import GuardedServer
from processes import PROGRAMS, connect, eventually, free_port
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError

# `secret`, at the lowest cost that bcrypt has, as `htpasswd -nB -C 4` prints it.
SECRET_HASHED = "$2y$04$QyVU2CZsTkGc8dRsRIRgxOyJ21HaRWQxaOheC5m1Rbeb7XyN8KgXW"


def test_a_client_is_served_after_authentication(tmp_path):
    server = GuardedServer(tmp_path, users="ada:secret\nbob:x y\n")
    try:
        client = connect(server.port)
        with pytest.raises(MemcacheClientError, match="unauthenticated"):
            client.get("k")
        with pytest.raises(MemcacheClientError, match="authentication failure"):
            client.set("auth", "ada wrong")
        assert client.set("auth", "ada secret") and client.set("k", "v") and client.get("k") == b"v"
        assert client.get("auth") is None, "the password is no item"
        values = client.stats()
        assert (values[b"auth_cmds"], values[b"auth_errors"]) == (2, 1)
        assert client.stats("settings")[b"auth_enabled_ascii"] == str(server.users).encode()
        assert server.exchange(b"set x 0 0 7\r\nbob x y\r\n") == [b"STORED\r\n"]
        assert server.exchange(b"set x 0 0 5\r\neve x\r\n") == [b"CLIENT_ERROR authentication failure\r\n"]
    finally:
        assert server.stop() == 0


def test_refused_logins_are_logged_with_name_and_address_but_no_password(tmp_path):
    server = GuardedServer(tmp_path)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
            port = client.getsockname()[1]
            for name in [b"ada", b"e\x1bve", *[b"guess"] * 50]:
                value = name + b" pass-%d-word" % port
                client.sendall(b"set x 0 0 %d\r\n%s\r\n" % (len(value), value))
                assert client.recv(4096) == b"CLIENT_ERROR authentication failure\r\n"
        eventually(lambda: server.log().count("was refused") >= 3, "refusals are logged")
        log = server.log()
        assert f'a login as "ada" from tcp:127.0.0.1:{port} was refused' in log and r'as "e\x1bve"' in log
        assert "word" not in log and "pass-" not in log, log
        assert log.count("was refused") <= 10, "a client that guesses does not fill the log"
        assert (
            int(
                server.exchange(b"set x 0 0 10\r\nada secret\r\n", b"stats\r\n")[1].split(b"auth_errors ")[1].split()[0]
            )
            == 52
        )
    finally:
        assert server.stop() == 0


def test_no_password_is_logged_with_the_commands(tmp_path):
    server = GuardedServer(tmp_path, "-vv")
    try:
        # Of a wrong length, so that a part of the password comes where a command should.
        server.exchange(b"set x 0 0 3\r\nada secret\r\nset x 0 0 10\r\nada secret\r\nset k 0 0 1\r\nx\r\nmn\r\n")
        eventually(lambda: re.search(r">\d+ MN", server.log()), "the last reply is logged")
        log = server.log()
        assert re.search(r"<\d+ set k 0 0 1", log) and "(refused, not logged)" in log and "cret" not in log, log
    finally:
        assert server.stop() == 0


def test_pipelining_and_the_binary_protocol_do_not_bypass_authentication(tmp_path):
    server = GuardedServer(tmp_path, "-A")
    try:
        refused = b"CLIENT_ERROR unauthenticated\r\n"
        assert server.exchange(b"shutdown\r\nstats\r\nwatch\r\n") == [refused * 3]
        pipelined = b"set x 0 0 10\r\nada secret\r\nset k 0 0 1\r\nv\r\nget k\r\n"
        assert server.exchange(pipelined) == [b"STORED\r\nSTORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n"]
        assert server.exchange(b"get k\r\n") == [refused], "each connection for itself"
        get = b"\x80\x00\x00\x01" + bytes(4) + b"\x00\x00\x00\x01" + bytes(12) + b"k"
        assert server.exchange(get + b"\r\n") == [refused]
    finally:
        server.stop()


def test_hashed_passwords_and_reload_of_the_file(tmp_path):
    server = GuardedServer(tmp_path, users=f"ada:{SECRET_HASHED}\n")
    try:
        right, wrong = b"set x 0 0 10\r\nada secret\r\n", b"set x 0 0 9\r\nada other\r\n"
        stored, failure = [b"STORED\r\n"], [b"CLIENT_ERROR authentication failure\r\n"]
        assert server.exchange(right) == stored and server.exchange(wrong) == failure
        hashed = f"ada {SECRET_HASHED}".encode()
        assert server.exchange(b"set x 0 0 %d\r\n%s\r\n" % (len(hashed), hashed)) == failure
        server.users.write_text("ada:other\n")
        server.running.send_signal(signal.SIGHUP)
        eventually(lambda: server.exchange(wrong) == stored, "the new file counts")
        assert server.exchange(right) == failure
        server.users.write_text("no user\n")
        server.running.send_signal(signal.SIGHUP)
        eventually(lambda: "keeping the old ones" in server.log(), "the log says that it cannot be used")
        assert server.exchange(wrong) == stored
    finally:
        server.stop()


def test_passwords_through_tls(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    server = GuardedServer(tmp_path, "-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}")
    try:
        client = Client(("localhost", server.port), tls_context=authority.context(), timeout=10, default_noreply=False)
        with pytest.raises(MemcacheClientError, match="unauthenticated"):
            client.get("k")
        assert client.set("auth", "ada secret") and client.set("k", "v") and client.get("k") == b"v"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("users", "arguments", "complaint", "status"),
    [
        (None, [], "users", 1),
        ("ada\n", [], "line 1", 1),
        ("ada:secret\n", ["-U", "11311"], "-U", 2),
        ("ada:secret\n", ["-B", "binary"], "-B binary", 2),
    ],
)
def test_a_server_that_cannot_guarantee_its_options_does_not_start(tmp_path, users, arguments, complaint, status):
    path = tmp_path / "users"
    if users is not None:
        path.write_text(users)
    command = [PROGRAMS / "lookaside-server", "-p", str(free_port()), "-Y", path, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert ended.returncode == status and "-Y" in ended.stderr and complaint in ended.stderr, ended.stderr
