"""The same binary-protocol streams to memcached 1.6.45 and with `lookaside-server`: any difference in bytes fails.

As in `test_differential`, which has the servers: a failure prints the seed and the shortest stream that still
shows the difference. What may differ is in `comparable` and `DEVIATIONS`, and nowhere else; the reasons are in
docs/deviations/005-memcached.md.
"""

import os
import random
import struct

import pytest
from binary_streams import COUNTS, GETS, NOOP, STORES, TOUCHES, Packet, random_packets
from exchange import exchange
from processes import PROGRAMS, Process, accepts, free_port
from test_differential import MEMCACHED, SEED_FIRST, SEEDS_COUNT, SEEDS_PER_TEST, pair  # noqa: F401 - a fixture

HEADER = struct.Struct(">BBHBBHIIQ")
VERSION = 0x0B
KNOWN = {*GETS.values(), *TOUCHES.values(), *STORES.values(), *range(0x1B), 0x20, 0x21, 0x22}

# Which requests are not compared, and why.
DEVIATIONS = (
    (
        lambda packet: packet.opcode not in KNOWN and (packet.key or packet.extras),
        "memcached drops more than the body of an opcode that it does not know, and reads on inside of a request",
    ),
    (
        lambda packet: packet.opcode in (*TOUCHES.values(), 0x10) and packet.value,
        "memcached reads what follows the key of a touch or a stat as a request",
    ),
    (
        lambda packet: packet.magic != 0x80,
        "at a byte that begins no request memcached hangs up without the replies it has not sent yet",
    ),
)


def cas_of(port: int, key: bytes) -> int:
    """The item's CAS unique; 1 if there is no item."""
    answer = exchange(port, Packet(0x00, key).encoded(b"", None), random.Random(0))
    return HEADER.unpack(answer[: HEADER.size])[-1] or 1


def held(port: int, packets: list[Packet], prefix: bytes, seed: int) -> list[bytes]:
    """The server's replies, connection by connection: a new one before each packet that needs an item's CAS unique, and
    before each that counts, which memcached pads by what the connection still holds."""
    chance, answers, waiting = random.Random(seed), [], b""
    for packet in packets:
        if waiting and (packet.cas is True or packet.opcode in COUNTS.values()):
            answers.append(exchange(port, waiting, chance))
            waiting = b""
        waiting += packet.encoded(prefix, lambda key: cas_of(port, key))
    return [*answers, exchange(port, waiting, chance)]


def comparable(answers: list[bytes]) -> list[tuple]:
    """The responses, one by one, with CAS uniques by the order in which they are first seen."""
    uniques: dict[int, str] = {0: "none"}
    responses = []
    for answer in answers:
        while len(answer) >= HEADER.size:
            *head, cas = HEADER.unpack(answer[: HEADER.size])
            body = answer[HEADER.size : HEADER.size + head[6]]
            answer = answer[HEADER.size + head[6] :]
            if head[1] == VERSION and head[5] == 0:
                head[6], body = 0, b""
            responses.append((*head, uniques.setdefault(cas, f"#{len(uniques)}"), body))
        responses.append((answer, "end"))
    return responses


def difference(pair, packets: list[Packet], seed: int) -> str | None:  # noqa: F811
    """How the two answer differently, if they do, and do again."""
    for _ in range(2):
        prefix = next(pair.prefixes)
        theirs, ours = (comparable(held(port, packets, prefix, seed)) for port in (pair.memcached_port, pair.ours.port))
        if theirs == ours:
            return None
    return f"memcached: {theirs}\nours:      {ours}"


@pytest.mark.parametrize("first", range(SEED_FIRST, SEED_FIRST + SEEDS_COUNT, SEEDS_PER_TEST))
def test_binary_replies_are_identical(pair, first):  # noqa: F811
    for seed in range(first, min(first + SEEDS_PER_TEST, SEED_FIRST + SEEDS_COUNT)):
        packets = [packet for packet in random_packets(seed) if not any(differs(packet) for differs, _ in DEVIATIONS)]
        if found := difference(pair, packets, seed):
            shorter = shortest(pair, packets, seed)
            pytest.fail(f"seed {seed}, {len(shorter)} requests: {shorter}\n{difference(pair, shorter, seed) or found}")


def shortest(pair, packets: list[Packet], seed: int) -> list[Packet]:  # noqa: F811
    """A shorter stream with a difference: requests are left out for as long as one remains."""
    size = len(packets) // 2
    while size:
        start = 0
        while start < len(packets):
            fewer = packets[:start] + packets[start + size :]
            if fewer and difference(pair, fewer, seed):
                packets = fewer
            else:
                start += size
        size //= 2
    return packets


NOOP_PACKET, VERSION_PACKET = Packet(NOOP), Packet(VERSION)
SASL_START, SASL_STEP = 0x21, 0x22

# memcached's users are libsasl's: only the replies to a client without a password are compared.
WITHOUT_PASSWORD = (
    (NOOP_PACKET,),
    (VERSION_PACKET, VERSION_PACKET),
    (Packet(0x00, b"k"),),
    (Packet(0x11, b"k", bytes(8), b"x"), NOOP_PACKET),
    (Packet(0x00, b"key", lengths=(3, 0, 1)),),
    (Packet(0x00, b"k" * 251),),
    (Packet(0x40), NOOP_PACKET),
    (Packet(0x07),),
    (Packet(VERSION, b"x"), NOOP_PACKET),
    (Packet(SASL_START, b"PLAIN", b"", b"\0nobody\0secret"), VERSION_PACKET, NOOP_PACKET),
    (Packet(SASL_STEP, b"PLAIN", b"", b"\0nobody\0secret"), VERSION_PACKET),
    (Packet(SASL_START, b"NOPE", b"", b"\0nobody\0secret"), VERSION_PACKET),
    (Packet(SASL_START, b"NOPE"), VERSION_PACKET),
    (Packet(SASL_START, b"M" * 33, b"", b"word"), VERSION_PACKET),
    (Packet(SASL_START, b"PLAIN", b"x", b"word"), VERSION_PACKET),
    (Packet(SASL_START, b"", b"", b"word"), VERSION_PACKET),
    (Packet(0x67, magic=0x67, value=bytes(40)),),
)


@pytest.fixture(scope="module")
def sasl_ports(tmp_path_factory):
    """The ports of both with `-S`."""
    if not MEMCACHED:
        pytest.skip("NOT COMPARED WITH memcached: set LOOKASIDE_MEMCACHED to the path of memcached 1.6.45")
    log_dir = tmp_path_factory.mktemp("sasl")
    (log_dir / "users").write_text("ada:secret\n")
    (log_dir / "memcached.conf").write_text("mech_list: plain\n")
    files = {"MEMCACHED_SASL_PWDB": str(log_dir / "users"), "SASL_CONF_PATH": str(log_dir / "memcached.conf")}
    user = ("-u", "nobody") if os.geteuid() == 0 else ()
    servers = []
    for name, program, options in (("memcached", MEMCACHED, user), ("ours", PROGRAMS / "lookaside-server", ())):
        port = free_port()
        command = [program, "-S", "-l", "127.0.0.1", "-p", port, "-t", "1", *options]
        server = Process(name, command, log_dir, env={**os.environ, **files})
        server.port = port
        servers.append(server)
    try:
        for server in servers:
            server.wait_ready(lambda server=server: accepts(server.port))
        yield [server.port for server in servers]
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("packets", WITHOUT_PASSWORD)
def test_missing_password_gets_same_error(sasl_ports, packets):
    theirs, ours = (comparable(held(port, list(packets), b"", 1)) for port in sasl_ports)
    assert ours == theirs


def test_binary_statistics_have_the_names_of_the_text_protocol(pair):  # noqa: F811
    for port in (pair.memcached_port, pair.ours.port):
        text = exchange(port, b"stats\r\n", random.Random(0)).split(b"\r\n")
        names = [line.split(b" ")[1] for line in text if line.startswith(b"STAT ")]
        answer = exchange(port, Packet(0x10).encoded(b"", None) + Packet(NOOP).encoded(b"", None), random.Random(0))
        found = []
        while answer:
            _, opcode, key_bytes, _, _, status, body_bytes, *_ = HEADER.unpack(answer[: HEADER.size])
            assert status == 0
            found.append(answer[HEADER.size : HEADER.size + key_bytes])
            answer = answer[HEADER.size + body_bytes :]
        assert found == [*names, b"", b""], "an empty name ends the statistics; then the noop"
        assert opcode == NOOP
