"""Runs the load generator (crates/load) against what is measured."""

import json
import os
import subprocess

from experiments.programs import CacheServer, Unusable, lookaside, pin_and_prioritise


def load(target: CacheServer, *words: object, core: int | None = None, transport: str = "tcp") -> dict:
    """One run at the target's priority, on `core` if it is given; its figures.

    The figures are those of `lookaside-load --json`; none after `--fill`.
    """
    pid = target.process.pid
    command = [lookaside("lookaside-load"), target.address(transport), "--json", "--server-pid", pid, *words]
    is_realtime = os.sched_getscheduler(pid) == os.SCHED_RR
    prepare = pin_and_prioritise(os.getpriority(os.PRIO_PROCESS, pid), core, is_realtime)
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True, preexec_fn=prepare)
    if run.returncode != 0:
        asked = " ".join(map(str, words))
        raise Unusable(f"{target.name}, {asked}: the load failed ({run.returncode}): {run.stderr.strip()[:500]}")
    return json.loads(run.stdout) if run.stdout.strip() else {}
