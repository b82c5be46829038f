"""Prints SpookyHash V2 of many lengths: `bytes seed hash`, the vectors of src/hash/spooky.rs.

The text hashed has the byte (7 * i + 3) mod 256 at i.

    pip install spookyhash      (2.1.1, around the author's own code, wrote the file beside this one)
    python spooky.py > spooky.txt
"""

import spookyhash

LENGTHS = [*range(0, 34), 47, 48, 63, 64, 65, 95, 96, 97, 127, 160, 190, 191, 192, 193, 200, 250, 287, 288, 289, 400]
for length in LENGTHS:
    text = bytes((7 * i + 3) % 256 for i in range(length))
    for seed in (0, 0xFACE2014):
        print(length, seed, spookyhash.hash32(text, seed))
