"""A family of short-lived keys in a full server, with the transient item cache (§6.3 of the paper) and without.

What: `lookaside replay family:SECONDS` (crates/workload/src/family.rs): 160 keys a second with an exptime of
two seconds, each asked for four times within a second and never again, among long-lived keys of the same sizes that
are more than fit. The family's share of all items in memory over time, dead ones included, and both kinds' hit ratios.

How: two servers of 16 MiB replay it side by side in real time, one with `--transient-seconds 0`. The share is seen from
outside: `stats` says how many items there are, `lru_crawler metadump all` which long-lived ones are among them.

    python3 -m experiments.server.transient           four minutes; draws docs/measurements/pictures/transient_items.svg
"""

import concurrent.futures
import json
import re
import socket
import sys
import threading
import time

from experiments import command_line
from experiments.plots import lines
from experiments.programs import ROOT, Unusable
from experiments.server.hit_ratio import Workload, replay, server

PICTURE = ROOT / "docs" / "measurements" / "pictures" / "transient_items.svg"
MEMORY_MIB = 16
SECONDS = 240
SAMPLE_S = 4.0
TRANSIENT_S = {"off": 0, "on": 60}
# Long-lived objects have the first numbers, and a key is its object's number.
LASTING = 160_000
REDUCTION_BAR = 20.0


def ask(port: int, command: bytes) -> bytes:
    """The answer to a command that ends with END."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(command + b"\r\n")
        answer = bytearray()
        while not answer.endswith(b"END\r\n"):
            block = connection.recv(1 << 20)
            if not block or answer.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")):
                raise Unusable(f"{command.decode()}: {bytes(answer[:100])!r}")
            answer += block
        return bytes(answer)


def share(port: int) -> float:
    """The family's share of the items in memory."""
    listed = ask(port, b"lru_crawler metadump all")
    lasting = sum(1 for key in re.findall(rb"^key=([0-9a-f]+) ", listed, re.MULTILINE) if int(key, 16) < LASTING)
    items = int(re.search(rb"STAT curr_items (\d+)", ask(port, b"stats"))[1])
    return max(0, items - lasting) / max(items, 1)


def watch(port: int, ended: threading.Event) -> list[tuple[float, float]]:
    """The share over time, until the replay has ended."""
    started, seen = time.monotonic(), []
    while not ended.wait(SAMPLE_S):
        at = time.monotonic() - started
        seen.append((at, share(port)))
    return seen


def measure(transient_s: int, seconds: int) -> dict:
    """One server's run."""
    workload = Workload("family", f"family:{seconds}", MEMORY_MIB)
    ended = threading.Event()
    with (
        server("lookaside", MEMORY_MIB, "--transient-seconds", transient_s) as (_, port),
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        watching = pool.submit(watch, port, ended)
        try:
            # The long-lived keys' first gets fill the memory and are not counted.
            figures = json.loads(replay(port, workload, "--json", "--speed", "1", "--warmup", str(LASTING)))
        finally:
            ended.set()
        samples = watching.result()
    if figures["errors"] or figures["refused"] or not samples:
        raise Unusable(f"family with --transient-seconds {transient_s}: {figures}")
    others = figures["gets"] - figures["expiring_gets"]
    late = [value for at, value in samples if at > seconds / 2]
    return {
        "transient_s": transient_s,
        "samples": samples,
        "share": sum(late) / len(late),
        "family_hit_ratio": 1 - figures["expiring_misses"] / figures["expiring_gets"],
        "others_hit_ratio": 1 - (figures["misses"] - figures["expiring_misses"]) / others,
    }


def run(seconds: int = SECONDS) -> dict:
    """Both servers side by side; the picture."""
    with concurrent.futures.ThreadPoolExecutor(len(TRANSIENT_S)) as pool:
        running = {name: pool.submit(measure, transient_s, seconds) for name, transient_s in TRANSIENT_S.items()}
        results = {name: done.result() for name, done in running.items()}
    results["reduction"] = results["off"]["share"] / max(results["on"]["share"], 1e-9)
    curves = {
        f"transient items {name}": [(at, 100 * value) for at, value in results[name]["samples"]] for name in TRANSIENT_S
    }
    title = f"A short-lived family's share of the items of a full server of {MEMORY_MIB} MiB"
    PICTURE.write_text(lines.svg(title, "time (s)", "share of items (%)", curves))
    return results


def main() -> int:
    """Measures, draws, prints JSON."""
    parser = command_line.parser(__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS, metavar="N", help=f"how long; {SECONDS}")
    command_line.add_json_path(parser)
    options = parser.parse_args()

    def measure() -> None:
        results = run(options.seconds)
        for name in TRANSIENT_S:
            result = results[name]
            print(
                f"{name:3}: share {result['share']:.4%}; hit ratio of the family {result['family_hit_ratio']:.4f}, of"
                f" the others {result['others_hit_ratio']:.4f}",
                file=sys.stderr,
            )
        print(f"{results['reduction']:.1f} times less; the bar is {REDUCTION_BAR:g}", file=sys.stderr)
        command_line.print_results(results, options.json)

    return command_line.run_measurement("transient", measure)


if __name__ == "__main__":
    sys.exit(main())
