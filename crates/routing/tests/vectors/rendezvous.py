"""Prints where mcrouter's rendezvous hashes put keys, from published parts: the vectors of tests/other_clients.rs.

MurmurHash64A is Austin Appleby's (MurmurHash2.cpp, public domain). SMHasher publishes a number over many keys and
seeds by which an implementation is verified, 0x1F0D3804 for this one; it is checked first. The combination of 128 bits
to 64 is that of Google's CityHash.

    python rendezvous.py < keys.txt > rendezvous.txt
"""

import math
import sys

BITS = (1 << 64) - 1
MURMUR = 0xC6A4A7935BD1E995
CITY = 0x9DDFEA08EB382D69


def murmur64a(text: bytes, seed: int) -> int:
    found = seed ^ (len(text) * MURMUR & BITS)
    whole = len(text) - len(text) % 8
    for at in range(0, whole, 8):
        word = int.from_bytes(text[at : at + 8], "little") * MURMUR & BITS
        word = (word ^ word >> 47) * MURMUR & BITS
        found = (found ^ word) * MURMUR & BITS
    if whole < len(text):
        found = (found ^ int.from_bytes(text[whole:], "little")) * MURMUR & BITS
    found = (found ^ found >> 47) * MURMUR & BITS
    return found ^ found >> 47


def verification() -> int:
    hashes = b"".join(murmur64a(bytes(range(n)), 256 - n).to_bytes(8, "little") for n in range(256))
    return murmur64a(hashes, 0) & 0xFFFFFFFF


def combine(upper: int, lower: int) -> int:
    first = (lower ^ upper) * CITY & BITS
    first ^= first >> 47
    second = (upper ^ first) * CITY & BITS
    second ^= second >> 47
    return second * CITY & BITS


def scores(tags: list[str], key: str) -> list[int]:
    hashed = murmur64a(key.split("|#|")[0].encode(), 2718281828)
    return [combine(murmur64a(tag.encode(), 4193360111), hashed) for tag in tags]


def weighted(score: int, weight: float) -> float:
    part = score % (1 << 53) / (1 << 53)
    return weight / -math.log(part) if part else 0.0


def last_of_highest(values: list) -> int:
    return max(range(len(values)), key=lambda at: (values[at], at))


assert verification() == 0x1F0D3804
keys = sys.stdin.read().split()
TAGS = ["one", "two", "10.0.0.3:11211", "a-longer-tag-than-the-others", "5", "six", "7"]
WEIGHTS = [1, 0.5, 0.25, 0, 1, 0.75, 0.125]
for count in (1, 2, 4, 7):
    for name in ("Rendezvous", "WeightedRendezvous"):
        tags, weights = TAGS[:count], WEIGHTS[:count]
        print("hash", name)
        print("servers", *(f"{tag}={weight}" for tag, weight in zip(tags, weights, strict=True)))
        for key in keys:
            values = scores(tags, key)
            if name == "WeightedRendezvous":
                values = [weighted(*pair) for pair in zip(values, weights, strict=True)]
            print(key, last_of_highest(values))
