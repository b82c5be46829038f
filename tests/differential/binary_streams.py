"""Random binary-protocol streams from a seed: all opcodes, valid and invalid.

A request is a `Packet`. Its key gets the stream's own prefix. The CAS unique of an existing item is looked up when the
packet is sent.
"""

import random
import struct
from dataclasses import dataclass

GETS = {"get": 0x00, "getq": 0x09, "getk": 0x0C, "getkq": 0x0D}
TOUCHES = {"touch": 0x1C, "gat": 0x1D, "gatq": 0x1E, "gatk": 0x23, "gatkq": 0x24}
STORES = {"set": 0x01, "add": 0x02, "replace": 0x03, "setq": 0x11, "addq": 0x12, "replaceq": 0x13}
EXTENSIONS = {"append": 0x0E, "prepend": 0x0F, "appendq": 0x19, "prependq": 0x1A}
COUNTS = {"incr": 0x05, "decr": 0x06, "incrq": 0x15, "decrq": 0x16}
DELETES = {"delete": 0x04, "deleteq": 0x14}
NOOP = 0x0A
UNKNOWN = (0x1B, 0x1F, 0x20, 0x25, 0x30, 0x3C, 0x40, 0xFF)

NAMES = (b"a", b"b", b"c", b" d\n", b"\x00\xff")
# Keys that are counted with: what begins with white space or is empty memcached reads past its end.
NUMBER_NAMES = (b"n", b"o")
NUMBER_VALUES = (b"0", b"5", b"99", b"18446744073709551615", b"abc", b"12a", b"12345678901234567890123")
VALUES = (*NUMBER_VALUES, b"", b"\r\n", bytes(range(256)), b"x" * 1000)
EXPTIMES = (0, 0, 0, 100, 2592000, 2592001, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
# Far ahead, and one moment for all: a server need not remember many.
FLUSH_AT_S = 4_000_000_000
DELTAS = (0, 1, 7, 100, 1 << 32, (1 << 64) - 1)
KEY_BYTES_MAX = 250


@dataclass(frozen=True)
class Packet:
    """One request. `cas` is a number, or True for the one that the key's item has; `lengths` replaces those of the
    header: key, extras, body."""

    opcode: int
    key: bytes = b""
    extras: bytes = b""
    value: bytes = b""
    cas: int | bool = 0
    opaque: int = 0
    lengths: tuple[int, int, int] | None = None
    magic: int = 0x80
    reserved: tuple[int, int] = (0, 0)

    def encoded(self, prefix: bytes, cas_of) -> bytes:
        """The bytes; `cas_of(key)` looks a CAS unique up."""
        key = prefix + self.key if self.has_own_key() else self.key
        cas = cas_of(key) if self.cas is True else self.cas
        lengths = self.lengths or (len(key), len(self.extras), len(self.extras) + len(key) + len(self.value))
        header = struct.pack(
            ">BBHBBHIIQ", self.magic, self.opcode, lengths[0], lengths[1], self.reserved[0], self.reserved[1],
            lengths[2], self.opaque, cas,
        )  # fmt: skip
        return header + self.extras + key + self.value

    def has_own_key(self) -> bool:
        """Whether its key is the name of an item."""
        return bool(self.key) and self.opcode not in (0x10, 0x20, 0x21, 0x22)


def random_packets(seed: int) -> list[Packet]:
    """The requests of one client, 1 to 30 of them, and a `noop`."""
    chance = random.Random(seed)
    return [packet(chance) for _ in range(chance.randint(1, 30))] + [Packet(NOOP, opaque=0xFFFFFFFF)]


def packet(chance: random.Random) -> Packet:
    """One request, mostly right."""
    kind = chance.random()
    if kind < 0.9:
        return right(chance)
    if kind < 0.94:
        return keyless(chance)
    return broken(chance)


def right(chance: random.Random) -> Packet:
    """An operation on a key."""
    opaque = chance.getrandbits(32)
    key = chance.choice(NAMES + NUMBER_NAMES)
    table = chance.choice((GETS, GETS, TOUCHES, STORES, STORES, EXTENSIONS, COUNTS, COUNTS, DELETES))
    if table is COUNTS:
        key = chance.choice(NUMBER_NAMES)
    opcode = chance.choice(list(table.values()))
    exptime = chance.choice(EXPTIMES)
    values = NUMBER_VALUES if key in NUMBER_NAMES else VALUES
    cas = chance.choice((0, 0, 0, True, 77)) if table not in (GETS, TOUCHES) else 0
    if table is GETS:
        return Packet(opcode, key, opaque=opaque)
    if table is TOUCHES:
        return Packet(opcode, key, struct.pack(">I", exptime), opaque=opaque)
    if table is STORES:
        extras = struct.pack(">II", chance.choice((0, 1, 0xFFFFFFFF)), exptime)
        return Packet(opcode, key, extras, chance.choice(values), cas, opaque)
    if table is EXTENSIONS:
        return Packet(
            opcode, key, b"", chance.choice(NUMBER_VALUES[:3] if key in NUMBER_NAMES else VALUES), cas, opaque
        )
    if table is COUNTS:
        extras = struct.pack(">QQI", chance.choice(DELTAS), chance.choice(DELTAS), exptime)
        return Packet(opcode, key, extras, b"", cas, opaque)
    return Packet(opcode, key, cas=cas, opaque=opaque)


def keyless(chance: random.Random) -> Packet:
    """A request about the server, or one that it does not know."""
    opaque = chance.getrandbits(32)
    return chance.choice(
        (
            Packet(NOOP, opaque=opaque),
            Packet(0x0B, opaque=opaque),
            Packet(0x08, extras=struct.pack(">I", FLUSH_AT_S), opaque=opaque),
            Packet(0x18, extras=struct.pack(">I", FLUSH_AT_S), opaque=opaque),
            Packet(0x10, chance.choice((b"nonsense", b"detail", b"detail on", b"detail off", b"conns", b"items ")),
                   opaque=opaque),
            Packet(0x21, b"PLAIN", b"", b"\0a\0b", opaque=opaque),
            Packet(0x22, b"PLAIN", b"", b"", opaque=opaque),
            Packet(chance.choice((0x07, 0x17)), opaque=opaque),
            Packet(chance.choice(UNKNOWN), value=chance.choice((b"", b"dropped" * 10)), opaque=opaque),
        )
    )  # fmt: skip


def broken(chance: random.Random) -> Packet:
    """A request whose parts or lengths are wrong."""
    good = right(chance)
    damage = chance.randrange(7)
    parts = {"opcode": good.opcode, "opaque": good.opaque, "cas": 0}
    if damage == 0:
        return Packet(key=good.key, extras=good.extras[:-1], value=good.value, **parts)
    if damage == 1:
        return Packet(key=b"", extras=good.extras, value=good.value, **parts)
    if damage == 2:
        return Packet(key=good.key, extras=good.extras + b"x", value=good.value, **parts)
    if damage == 3:
        return Packet(key=b"k" * (KEY_BYTES_MAX - 6 + chance.randint(0, 1)), extras=good.extras, **parts)
    if damage == 4:
        return Packet(key=good.key, extras=good.extras, lengths=(3, len(good.extras), 2), **parts)
    if damage == 5:
        return Packet(key=good.key, extras=good.extras, value=good.value, reserved=(3, 9), **parts)
    return Packet(key=good.key, extras=good.extras, value=good.value, magic=chance.choice((0x81, 0x00, 0x67)), **parts)
