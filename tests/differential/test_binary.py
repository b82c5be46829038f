"""The same binary conversations with memcached 1.6.45 and with `lookaside-server`: any difference in bytes fails.

As in `test_differential`, which has the servers: a failure prints the seed and the shortest conversation that still
shows the difference. What may differ is in `comparable` and `DEVIATIONS`, and nowhere else; the reasons are in
docs/deviations/005-memcached.md.
"""

import random
import struct

import pytest
from binary_streams import COUNTS, GETS, NOOP, STORES, TOUCHES, Packet, conversation
from conversing import exchange
from test_differential import SEED_FIRST, SEEDS_COUNT, SEEDS_PER_TEST, pair  # noqa: F401 - a fixture

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
    """What the server says, connection by connection: a new one before each packet that needs an item's CAS unique, and
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
def test_no_client_of_the_binary_dialect_can_tell_them_apart(pair, first):  # noqa: F811
    for seed in range(first, min(first + SEEDS_PER_TEST, SEED_FIRST + SEEDS_COUNT)):
        packets = [packet for packet in conversation(seed) if not any(differs(packet) for differs, _ in DEVIATIONS)]
        if told := difference(pair, packets, seed):
            shorter = shortest(pair, packets, seed)
            pytest.fail(f"seed {seed}, {len(shorter)} requests: {shorter}\n{difference(pair, shorter, seed) or told}")


def shortest(pair, packets: list[Packet], seed: int) -> list[Packet]:  # noqa: F811
    """A shorter conversation with a difference: requests are left out for as long as one remains."""
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


def test_statistics_have_the_names_that_the_text_dialect_tells(pair):  # noqa: F811
    for port in (pair.memcached_port, pair.ours.port):
        text = exchange(port, b"stats\r\n", random.Random(0)).split(b"\r\n")
        names = [line.split(b" ")[1] for line in text if line.startswith(b"STAT ")]
        answer = exchange(port, Packet(0x10).encoded(b"", None) + Packet(NOOP).encoded(b"", None), random.Random(0))
        told = []
        while answer:
            _, opcode, key_bytes, _, _, status, body_bytes, *_ = HEADER.unpack(answer[: HEADER.size])
            assert status == 0
            told.append(answer[HEADER.size : HEADER.size + key_bytes])
            answer = answer[HEADER.size + body_bytes :]
        assert told == [*names, b"", b""], "an empty name ends the statistics; then the noop"
        assert opcode == NOOP
