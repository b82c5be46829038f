"""`lookaside advise`: where the keys of a trace should be cached (§3.2.2, §3.2.3, §4.2)."""

import json
import random
import subprocess

from processes import PROGRAMS

SECONDS = 20


def advise(path, *arguments: str) -> subprocess.CompletedProcess:
    command = [PROGRAMS / "lookaside", "advise", "--clusters", "4", *arguments, path]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def requests_of_table_1():
    """Family `a` is used by many users, `b` by one for each key; `feed` is rewritten all the time."""
    rng = random.Random(1)
    for second in range(SECONDS):
        for _ in range(400):
            yield f"{second},a:{rng.randrange(200)},10,10700,user{rng.randrange(30)},get,0"
        for _ in range(60):
            key = rng.randrange(300)
            yield f"{second},b:{key},10,4340,user{key},get,0"
        for _ in range(50):
            yield f"{second},feed:{rng.randrange(20)},10,1000,user{rng.randrange(30)},set,0"


def test_the_families_of_the_paper_are_placed_as_in_the_paper(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(requests_of_table_1()) + "\n")
    done = advise(trace, "--json")
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)
    families = {family["family"]: family for family in advice["families"]}
    placements = {name: family["placement"] for name, family in families.items()}
    assert placements == {"a": "cluster", "b": "regional", "feed": "own_pool"}
    b = families["b"]
    assert (b["users_per_key_median"], b["value_bytes_median"], b["gets_per_s"]) == (1, 4340, 60)
    # Four gets of a key reach 2.7 of four clusters on average.
    assert advice["saved_bytes"] == b["saved_bytes"]
    assert b["data_bytes"] * 1.4 < b["saved_bytes"] < b["data_bytes"] * 2

    text = advise(trace).stdout
    assert "regional" in text and "would be saved" in text, text


def test_a_trace_without_keys_is_refused_with_the_line(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("1,a:1,3,100,u,get,0\nnonsense\n")
    done = advise(trace)
    assert done.returncode == 1 and "line 2" in done.stderr, done.stderr
    trace.write_text("")
    done = advise(trace)
    assert done.returncode == 1 and "has no requests" in done.stderr, done.stderr
