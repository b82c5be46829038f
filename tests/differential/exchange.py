"""Sends one stream of commands to a server and makes the replies comparable.

A stream is cut into connections before every command that names a CAS unique, because that has to be asked for
first, and before `incr`, `decr` and `ma`: memcached pads a number with spaces, or not, by whether an earlier reply of
the same connection still holds the item. A connection sends its bytes in pieces, ends its side, and reads until the
server ends the other: so the last reply, and a connection closed in the middle, are compared as well.
"""

import random
import re
import socket

from streams import CAS_MARK, filled

TIMEOUT_S = 10
CUT_PIECES_MAX = 4

# Bytes that a command without a block may take as its block: memcached refuses only after it.
FILLER = (b" " * 98 + b"\r\n") * 60

COUNTING = re.compile(rb"incr|decr|ma ")


class Script:
    """Commands, the prefix of their keys, and where their bytes are cut."""

    def __init__(self, commands: list[bytes], prefix: bytes, cuts_seed: int) -> None:
        self.commands = commands
        self.prefix = prefix
        self.cuts_seed = cuts_seed

    def with_server(self, port: int) -> list[bytes]:
        """The replies of the server on this port, connection by connection."""
        chance = random.Random(self.cuts_seed)
        answers, waiting = [], b""
        for template in self.commands:
            if (CAS_MARK.search(template) or COUNTING.match(template)) and waiting:
                answers.append(exchange(port, waiting + FILLER, chance))
                waiting = b""
            waiting += filled(template, self.prefix, lambda key: cas_of(port, key))
        return [*answers, exchange(port, waiting + FILLER, chance)]


def exchange(port: int, sent: bytes, chance: random.Random) -> bytes:
    """Sends in up to `CUT_PIECES_MAX` pieces, and reads to the end."""
    cuts = sorted(chance.randrange(len(sent) + 1) for _ in range(chance.randrange(CUT_PIECES_MAX)))
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
                connection.sendall(sent[start:end])
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # The server closed the connection: the replies before that are compared.
        received = b""
        try:
            while piece := connection.recv(1 << 16):
                received += piece
        except ConnectionResetError:
            pass
        return received


def cas_of(port: int, key: bytes) -> int:
    """The item's CAS unique; 1 if there is no item. The item does not notice."""
    answer = exchange(port, b"me %s\r\n" % key, random.Random(0))
    match = re.match(rb"ME \S+ .*\bcas=(\d+)", answer)
    return int(match[1]) if match else 1


class Normaliser:
    """Replaces the parts that may differ between two servers. The list is complete; reasons in docs/deviations."""

    VALUE_WITH_CAS = re.compile(rb"^(VALUE \S+ \d+ \d+) (\d+)\r$", re.MULTILINE)
    META_LINE = re.compile(rb"^(?:HD|VA|NS|EX|NF)[ \r].*$", re.MULTILINE)
    META_CAS = re.compile(rb"(?<= )c(\d+)")
    META_TTL = re.compile(rb"(?<= )t(-?\d+)")
    META_IDLE = re.compile(rb"(?<= )l[0-9](?=[ \r])")
    DEBUG_LINE = re.compile(rb"^ME \S+ exp=(-?\d+) la=(\d+) cas=(\d+) fetch=(yes|no) cls=\d+ size=\d+", re.MULTILINE)

    def __init__(self) -> None:
        self.uniques: dict[bytes, bytes] = {}

    def __call__(self, answer: bytes) -> bytes:
        """The answer, comparable."""
        answer = self.VALUE_WITH_CAS.sub(lambda found: found[1] + b" " + self.unique(found[2]), answer)
        answer = self.META_LINE.sub(self.meta_line, answer)
        return self.DEBUG_LINE.sub(self.debug_line, answer)

    def unique(self, cas: bytes) -> bytes:
        """CAS uniques by the order in which they are first seen: equal ones stay equal."""
        return cas if cas in (b"0", b"5", b"77") else self.uniques.setdefault(cas, b"#%d" % len(self.uniques))

    def meta_line(self, found: re.Match) -> bytes:
        """CAS uniques; seconds that a clock's tick may change."""
        line = self.META_CAS.sub(lambda cas: b"c" + self.unique(cas[1]), found[0])
        line = self.META_TTL.sub(lambda ttl: b"t" + near(ttl[1]), line)
        return self.META_IDLE.sub(b"l~0", line)

    def debug_line(self, found: re.Match) -> bytes:
        """As a meta line; slab class and size are each store's own."""
        return b"ME exp=%s la=%s cas=%s fetch=%s" % (near(found[1]), near(found[2]), self.unique(found[3]), found[4])


def near(seconds: bytes) -> bytes:
    """Seconds, to the nearest ten; an item that has expired was `T-1`'s, and memcached counts from its own start."""
    number = int(seconds)
    if number == -1:
        return seconds
    return b"~%d" % round(number / 10) if 0 <= number < 1 << 31 else b"past"


def normalised(answers: list[bytes]) -> list[bytes]:
    """The replies to a stream, comparable with another server's."""
    normaliser = Normaliser()
    return [normaliser(answer) for answer in answers]
