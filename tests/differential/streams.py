"""Random streams from a seed: all text and meta verbs, valid and invalid, as templates of one command each.

A template becomes bytes when its placeholders are filled in (`filled`):

* `@` is the stream's own prefix of `PREFIX_BYTES` bytes, so that streams do not share keys in one server;
* `{b:NAME}` is the key `@NAME` in base64;
* `{cas:NAME}` is the CAS unique that the item `@NAME` has at that moment, which differs from server to server.

Deliberately absent: anything that depends on how long a command took, such as a time to live of one second, and
lines of more than 2,000 bytes: whether memcached hangs up on them depends on how they arrive.
"""

import base64
import random
import re
from collections.abc import Callable

PREFIX_BYTES = 6
KEY_BYTES_MAX = 250

CAS_MARK = re.compile(rb"\{cas:(\w+)\}")
BASE64_MARK = re.compile(rb"\{b:(\w+)\}")

NAMES = ("a", "b", "c")
# Keys that are counted with hold nothing that is all white space: there memcached reads on, past the value's end.
NUMBER_NAMES = ("n", "o")
# Keys that only meta commands name: to others an item that has no value yet, or a stale one, is there in memcached and
# not in ours.
MARKED_NAMES = ("s", "w")
# Keys that are only ever named in base64: an item of memcached remembers which way its key came.
BASE64_NAMES = ("e1", "e2", "e3")
EXPTIMES = ("0", "0", "0", "100", "5000", "-1", "-100", "2592000", "4000000000", "2592001")
NUMBERS = (
    "0", "1", "2", "7", "10", "99", "100", "4294967295", "4294967296", "18446744073709551615",
    "18446744073709551616", "-1", "+1", "1.5", "0x10", "x", "007",
)  # fmt: skip
NUMBER_VALUES = (
    "0", "5", "10", "99", "100", "18446744073709551615", "abc", "12a", "12345678901234567890123", "12 x", "12  ", " 12",
    "+5", "-5", "-0", "-18446744073709551611", "\t7", "7\r\n8", "",
)  # fmt: skip
VALUES = (
    *NUMBER_VALUES, "", " 12", "12 ", "a b\r\nc", "\r\n", "END\r\n",
    "x" * 100, ("y" * 998 + "\r\n") * 3,
)  # fmt: skip
META_FLAGS = {
    "mg": (
        "v", "c", "f", "h", "k", "l", "s", "t", "u", "q", "b", "Oxyz", "T100", "T0", "T-1", "C{cas:%s}", "C9", "E77",
        "N30", "N0", "N100", "R30", "R-1", "R200",
    ),
    "ms": (
        "c", "k", "s", "q", "b", "Oxyz", "F7", "F4294967295", "T100", "T0", "T-1", "MS", "ME", "MA", "MP", "MR", "Ms",
        "Me", "Ma", "Mp", "Mr", "MX", "M", "N100", "N0", "C{cas:%s}", "C9", "C0", "E77", "E5", "I",
    ),
    "md": ("k", "q", "b", "Oxyz", "C{cas:%s}", "C9", "C0", "x", "I", "I", "T100", "E77", "E5"),
    "ma": (
        "v", "c", "t", "k", "q", "b", "Oxyz", "D1", "D10", "D18446744073709551615", "Dx", "J5", "Jx", "N0", "N100",
        "T100", "T0", "MI", "MD", "M+", "M-", "Mi", "Md", "Mincr", "MX", "C{cas:%s}", "C9", "E77",
    ),
    "me": ("b", "q", "k", "v"),
}  # fmt: skip
STRANGE_FLAGS = (
    "Z",
    "W",
    "X",
    "!",
    "v v",
    "0",
    "P",
    "Lpath",
    "Pq",
    "O" + "o" * 31,
    "O" + "o" * 32,
    "Fx",
    "Tx",
    "Cx",
    "Nx",
    "S",
    "i",
)
JUNK = (
    b"", b" ", b"  ", b"\t", b"nonsense", b"get", b"gets", b"gat", b"gat 0", b"gats x @a", b"set", b"set @a",
    b"set @a 0", b"set @a 0 0", b"cas @a 0 0 1", b"incr", b"incr @a", b"touch", b"touch @a", b"delete", b"mg", b"ms",
    b"ms @a", b"md", b"ma", b"me", b"mn extra", b"GET @a", b"version extra", b"verbosity", b"verbosity 1",
    b"verbosity x", b"verbosity 1 noreply", b"flush_all x", b"flush_all noreply x", b"mg  @a  v", b" get @a",
    b"get  @a  @b ", b"noreply", b"stats nonsense", b"mz @a", b"m", b"gets @a\t", b"delete @a 0",
    b"delete @a 0 noreply", b"delete @a 5x", b"delete @a noreply x", b"touch @a x", b"incr @n 1 2 3",
    b"get @a" + b" @b" * 30, b"mg @a" + b" v" * 20, b"cache_memlimit", b"cache_memlimit x", b"slabs",
    b"slabs nonsense", b"slabs automove", b"lru_crawler", b"lru", b"lru_crawler nonsense", b"watch nonsense",
    b"shutdown", b"refresh_certs", b"misbehave", b"extstore", b"debugtime", b"lru mode nonsense", b"lru tune",
    b"lru_crawler sleep", b"lru_crawler tocrawl x", b"lru_crawler crawl", b"slabs reassign", b"slabs reassign 1",
    b"slabs reassign x y", b"slabs automove 7", b"slabs automove 1", b"lru_crawler enable", b"lru_crawler disable",
    b"lru_crawler sleep 100", b"lru_crawler tocrawl 100", b"mn", b"me @n", b"lru_crawler sleep 9999999999",
    b"lru_crawler metadump", b"lru_crawler mgdump",
)  # fmt: skip


def filled(template: bytes, prefix: bytes, cas_of: Callable[[bytes], int]) -> bytes:
    """The bytes of one command; `cas_of(key)` looks a CAS unique up."""
    template = BASE64_MARK.sub(lambda mark: base64.b64encode(prefix + mark[1]), template)
    template = CAS_MARK.sub(lambda mark: b"%d" % cas_of(prefix + mark[1]), template)
    return template.replace(b"@", prefix)


def random_commands(seed: int) -> list[bytes]:
    """The commands of one client, 1 to 30 of them."""
    chance = random.Random(seed)
    return [command(chance) for _ in range(chance.randint(1, 30))]


def command(chance: random.Random) -> bytes:
    """One command, mostly right."""
    kind = chance.random()
    if kind < 0.45:
        return text_command(chance)
    if kind < 0.85:
        return meta_command(chance)
    if kind < 0.92:
        return chance.choice(JUNK) + chance.choice((b"\r\n", b"\r\n", b"\n"))
    return broken(chance)


def text_command(chance: random.Random) -> bytes:
    """A command of the text protocol, with `noreply` now and then."""
    verb = chance.choice(
        ("get", "get", "gets", "gat", "gats", "set", "set", "set", "add", "replace", "append", "prepend", "cas", "cas",
         "delete", "incr", "incr", "decr", "decr", "touch", "version", "flush_all"),
    )  # fmt: skip
    key, noreply = one_key(chance), chance.choice(("", "", "", " noreply"))
    if verb in ("incr", "decr"):
        key = "@" + chance.choice(NUMBER_NAMES)
    exptime, number = chance.choice(EXPTIMES), chance.choice(NUMBERS)
    if verb in ("get", "gets"):
        return f"{verb} {some_keys(chance)}\r\n".encode()
    if verb in ("gat", "gats"):
        return f"{verb} {exptime} {some_keys(chance)}\r\n".encode()
    if verb in ("set", "add", "replace", "append", "prepend", "cas"):
        value, flags = some_value(chance, key), chance.choice(("0", "1", "65535", "4294967295"))
        unique = chance.choice((f" {{cas:{key[1:2]}}}", f" {{cas:{key[1:2]}}}", " 1")) if verb == "cas" else ""
        return f"{verb} {key} {flags} {exptime} {len(value)}{unique}{noreply}\r\n{value}\r\n".encode()
    if verb == "delete":
        return f"delete {key}{noreply}\r\n".encode()
    if verb in ("incr", "decr"):
        return f"{verb} {key} {number}{noreply}\r\n".encode()
    if verb == "touch":
        return f"touch {key} {exptime}{noreply}\r\n".encode()
    if verb == "flush_all":
        return f"flush_all 4000000000{noreply}\r\n".encode()
    return f"{verb}\r\n".encode()


def meta_command(chance: random.Random) -> bytes:
    """A meta command with up to six flags, which may be strange ones or come twice."""
    verb = chance.choice(("mg", "mg", "mg", "ms", "ms", "ms", "md", "ma", "ma", "me"))
    names = {"ma": NUMBER_NAMES, "md": NAMES}.get(verb, NAMES + NUMBER_NAMES)
    name = chance.choice(names + MARKED_NAMES)
    flags = chance.sample(META_FLAGS[verb], min(len(META_FLAGS[verb]), chance.choice((0, 1, 1, 2, 3, 4, 6))))
    if chance.random() < 0.06:
        flags.append(chance.choice(STRANGE_FLAGS))
    key = "@" + name
    if "b" in flags and chance.random() < 0.9:
        name = chance.choice(BASE64_NAMES)
        key = f"{{b:{name}}}"
    if verb != "ma" and name not in MARKED_NAMES + BASE64_NAMES:
        flags = [flag for flag in flags if flag != "I" and (verb == "ms" or flag[0] != "N")]
    if verb == "mg" and name in BASE64_NAMES:
        # An item that memcached creates for an `mg` does not record that its key was in base64.
        flags = [flag for flag in flags if flag[0] != "N"]
    flags = [flag % name if "%s" in flag else flag for flag in flags]
    tail = "".join(f" {flag}" for flag in flags)
    if verb == "ms":
        value = chance.choice(VALUES if name in NAMES else NUMBER_VALUES)
        return f"ms {key} {len(value)}{tail}\r\n{value}\r\n".encode()
    return f"{verb} {key}{tail}\r\n".encode()


def broken(chance: random.Random) -> bytes:
    """A right command, damaged: its line's tokens dropped, doubled, mixed or replaced, or its block's end wrong."""
    line, end, block = (text_command(chance) if chance.random() < 0.6 else meta_command(chance)).partition(b"\r\n")
    tokens = CAS_MARK.sub(b"9", line).split(b" ")
    place = chance.randrange(len(tokens))
    damage = chance.randrange(7)
    if damage == 0:
        del tokens[place]
    elif damage == 1:
        tokens.insert(place, tokens[place])
    elif damage == 2:
        tokens[place] = chance.choice(
            (b"", b"x", b"-1", b"99999999999999999999", b"1x", b"k" * 251, b"\x01", b"a\tb", b"@\x7f")
        )
    elif damage == 3:
        tokens.append(chance.choice((b"x", b"noreply", b"", b"0")))
    elif damage == 4 and block:
        block = block[:-2] + chance.choice((b"x\r\n", b"\n", b"xx", b"\r\r\n"))
    elif damage == 5:
        end = b"\n"
    else:
        chance.shuffle(tokens)
    # Whatever the damage made the key, it belongs to this stream.
    if len(tokens) > 1 and tokens[1] and b"@" not in tokens[1] and b"{" not in tokens[1] and tokens[0] != b"flush_all":
        tokens[1] = b"@" + tokens[1]
    return b" ".join(tokens) + end + block


def one_key(chance: random.Random) -> str:
    """A key of few, so that commands meet; rarely the longest there may be, or one byte more."""
    if chance.random() < 0.03:
        return "@" + "k" * (KEY_BYTES_MAX - PREFIX_BYTES + chance.randint(0, 1))
    return "@" + chance.choice(NAMES + NUMBER_NAMES)


def some_value(chance: random.Random, key: str) -> str:
    """A value that may be stored under this key."""
    return chance.choice(NUMBER_VALUES if key[1:] in NUMBER_NAMES else VALUES)


def some_keys(chance: random.Random) -> str:
    """One to four keys, some twice."""
    return " ".join(one_key(chance) for _ in range(chance.choice((1, 1, 2, 4))))
