"""`-p` and `-U`: which ports are opened, as memcached opens them; and UDP beside TLS, which is not."""

import socket
import struct
import subprocess

import pytest
from certificates import Authority
from processes import PROGRAMS, Process, accepts, answers, connect, free_port

UDP_HEADER = struct.pack("!HHHH", 7, 0, 1, 0)


class PortServer(Process):
    """A server with these arguments; its ports are those of the file that it writes once they are open."""

    def __init__(self, folder, *arguments: object) -> None:
        self.ports_path = folder / "ports"
        command = [PROGRAMS / "lookaside-server", "-t", "2", *arguments]
        super().__init__("server", command, folder, env={"MEMCACHED_PORT_FILENAME": str(self.ports_path)})
        self.wait_ready(self.ports_path.exists)
        ports = dict(line.split(" INET: ") for line in self.ports_path.read_text().splitlines())
        self.tcp, self.udp = (int(ports.get(transport, 0)) for transport in ("TCP", "UDP"))

    def settings(self) -> tuple[int, int]:
        """The ports of `stats settings`."""
        reply = (ask_udp(self.udp) if not self.tcp else ask_tcp(self.tcp)).decode()
        settings = dict(line.split(" ")[1:3] for line in reply.splitlines() if line.startswith("STAT "))
        return int(settings["tcpport"]), int(settings["udpport"])


def ask_tcp(port: int) -> bytes:
    """The reply to `stats settings` by TCP."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"stats settings\r\n")
        received = b""
        while not received.endswith(b"END\r\n"):
            received += connection.recv(65536)
        return received


def ask_udp(port: int) -> bytes:
    """The same by UDP, in a request that is as large as its reply."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.sendto(UDP_HEADER + b"stats settings" + b" " * 1000 + b"\r\n", ("127.0.0.1", port))
        datagrams = {}
        while True:
            datagram = client.recv(65536)
            _, number, count, _ = struct.unpack("!HHHH", datagram[:8])
            datagrams[number] = datagram[8:]
            if len(datagrams) == count:
                return b"".join(datagrams[number] for number in range(count))


def serves_udp(port: int) -> bool:
    """Whether a datagram is answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.connect(("127.0.0.1", port))
        try:
            client.send(UDP_HEADER + b"mn\r\n")
            return client.recv(100)[8:] == b"MN\r\n"
        except ConnectionRefusedError:
            return False


FREE = "a free one"


@pytest.mark.parametrize(
    ("arguments", "tcp", "udp"),
    [
        (["-p", "{one}"], "one", None),
        (["-U", "{one}"], "one", "one"),
        (["-p", "{one}", "-U", "{two}"], "one", "two"),
        (["-p", "-1"], FREE, None),
        (["-U", "-1"], FREE, FREE),
        (["-p", "{one}", "-U", "-1"], "one", FREE),
        (["-p", "-1", "-U", "{two}"], FREE, "two"),
        (["--port=-1", "--udp-port={two}"], FREE, "two"),
        (["-p", "0", "-U", "{two}", "--udp-reply-limit", "64k"], None, "two"),
    ],
)
def test_ports_are_those_of_memcached(tmp_path, arguments, tcp, udp):
    numbers = {"one": free_port(), "two": free_port()}
    server = PortServer(tmp_path, *(word.format(**numbers) for word in arguments))
    try:
        for port, expected in ((server.tcp, tcp), (server.udp, udp)):
            if expected == FREE:
                assert port not in (0, 11211, *numbers.values())
            else:
                assert port == numbers.get(expected, 0)
        assert server.settings() == (server.tcp, server.udp)
        if server.tcp:
            assert answers(server.tcp)
            assert f"listening on 127.0.0.1:{server.tcp}" in server.log()
        assert serves_udp(server.udp or server.tcp) == bool(server.udp)
        assert accepts(server.udp) == (server.tcp == server.udp) if server.udp else True
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("arguments", [["-p", "0"], ["-p", "0", "-U", "0"], ["-p", "-2"], ["-p", "65536"], ["-U", "x"]])
def test_no_port_at_all_is_refused(arguments):
    ended = subprocess.run([PROGRAMS / "lookaside-server", *arguments], capture_output=True, text=True, timeout=20)
    assert ended.returncode == 2 and "port" in ended.stderr, ended.stderr


def test_udp_beside_tls_is_accepted_and_not_opened(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server")
    plain = free_port()
    options = f"ssl_chain_cert={certificate},ssl_key={key}"
    server = PortServer(tmp_path, "-Z", "-o", options, "-U", plain, "-l", f"notls:127.0.0.1:{plain}")
    try:
        assert server.udp == 0 and "-U has no effect beside -Z" in server.log()
        assert connect(plain).stats("settings")[b"udpport"] in (0, b"0")
        assert not serves_udp(plain)
    finally:
        assert server.stop() == 0
    server.ports_path.unlink()
    server = PortServer(tmp_path, "-Z", "-o", f"{options},plain_udp", "-U", plain, "-l", f"notls:127.0.0.1:{plain}")
    try:
        assert server.udp == plain and serves_udp(plain)
    finally:
        assert server.stop() == 0
