"""The sample units of docs/operating/install.md: systemd accepts them, the router's command line survives a broken
configuration, and the invalidator's works."""

import json
import re
import shutil
import subprocess

import pytest
from processes import PROGRAMS, ROOT, Process, Server, accepts, answers, connect, eventually, free_port, stats

UNITS = re.findall(
    r"`/etc/systemd/system/(\S+)`:\n\n```\n(.*?)```", (ROOT / "docs/operating/install.md").read_text(), re.DOTALL
)


UNIT_NAMES = ("server", "router", "invalidator", "monitor")


def setting(unit: str, name: str) -> str:
    """The value of a setting that the unit has once."""
    (value,) = re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)
    return value


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
def test_systemd_accepts_the_units(tmp_path):
    assert [name for name, _ in UNITS] == [f"lookaside-{name}.service" for name in UNIT_NAMES]
    for name, unit in UNITS:
        path = tmp_path / name
        # The installed program need not exist on this machine.
        path.write_text(unit.replace("/usr/local/bin", str(PROGRAMS)))
        command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and name not in done.stderr, done.stderr


def test_the_invalidators_command_line_works_with_its_environment_file(tmp_path):
    unit = dict(UNITS)["lookaside-invalidator.service"]
    assert setting(unit, "StateDirectory") == "lookaside-invalidator"
    command = setting(unit, "ExecStart").replace("/usr/local/bin", str(PROGRAMS))
    command = command.replace("/var/lib/lookaside-invalidator", str(tmp_path / "state"))
    (variable,) = re.findall(r"^# (LOOKASIDE_SOURCE)=mysql://", unit, re.MULTILINE)
    port, metrics_port = free_port(), free_port()
    command = command.replace("9152", str(metrics_port)) + f" --listen 127.0.0.1:{port}"
    environment = {variable: f"sqlite://{tmp_path}/app.db"}
    invalidator = Process("invalidator", command.split(), tmp_path, env=environment)
    try:
        invalidator.wait_ready(lambda: answers(port) and accepts(metrics_port))
        assert "secret" not in command and stats(port)["cluster:front-1:position"] == "-"
    finally:
        assert invalidator.stop() == 0


def test_the_monitors_command_line_works_with_the_invalidators_environment_file(tmp_path):
    unit = dict(UNITS)["lookaside-monitor.service"]
    assert setting(unit, "StateDirectory") == "lookaside-monitor"
    command = setting(unit, "ExecStart").replace("/usr/local/bin", str(PROGRAMS))
    command = command.replace("/var/lib/lookaside-monitor", str(tmp_path / "state"))
    (variable,) = re.findall(r"^# (LOOKASIDE_SOURCE)=mysql://", unit, re.MULTILINE)
    metrics_port = free_port()
    command = command.replace("9154", str(metrics_port))
    monitor = Process("monitor", command.split(), tmp_path, env={variable: f"sqlite://{tmp_path}/app.db"})
    try:
        monitor.wait_ready(lambda: accepts(metrics_port) and (tmp_path / "state/monitor.json").exists())
        assert "secret" not in command
    finally:
        assert monitor.stop() == 0


@pytest.fixture
def router(tmp_path):
    """A router that runs the unit's command line in other folders, and its server."""
    server, port = Server("server", tmp_path), free_port()
    configuration = {"pools": {"main": {"servers": [f"127.0.0.1:{server.port}"]}}, "route": "PoolRoute|main"}
    (tmp_path / "router.json").write_text(json.dumps(configuration))
    unit = dict(UNITS)["lookaside-router.service"]
    assert setting(unit, "StateDirectory") == "lookaside-router"
    command = setting(unit, "ExecStart").replace("/usr/local/bin", str(PROGRAMS)).replace("-p 5000", f"-p {port}")
    command = command.replace("/etc/lookaside", str(tmp_path)).replace("/var/lib/lookaside-router", str(tmp_path))
    router = Process("router", command.split(), tmp_path)
    router.port = port
    yield router
    router.stop()
    server.stop()


def test_a_router_that_is_restarted_with_a_broken_configuration_serves_with_the_last_good_one(router, tmp_path):
    """It exited with status 2, and a unit like the server's left it down."""
    router.wait_ready(lambda: answers(router.port))
    assert connect(router.port).set("key", b"value")
    configuration = tmp_path / "router.json"
    good = configuration.read_text()
    for broken in (good[:-1], None):
        configuration.unlink() if broken is None else configuration.write_text(broken)
        router.stop()
        router.start()
        router.wait_ready(lambda: answers(router.port))
        assert connect(router.port).get("key") == b"value"
        assert "starting with the last good one" in router.log() and "config_last_refusal" in stats(router.port)
    configuration.write_text(good)
    eventually(lambda: "config_last_refusal" not in stats(router.port), "the corrected file is followed")


def test_a_router_without_a_usable_configuration_is_started_again_until_there_is_one(router, tmp_path):
    router.stop()
    good = (tmp_path / "router.json").read_text()
    (tmp_path / "router.json").write_text("{")
    (tmp_path / "last-good.json").unlink(missing_ok=True)
    router.start()
    assert router.running.wait(20) == 2
    unit = dict(UNITS)["lookaside-router.service"]
    assert setting(unit, "Restart") == "always" and setting(unit, "StartLimitIntervalSec") == "0"
    assert "RestartPreventExitStatus" not in unit
    (tmp_path / "router.json").write_text(good)
    router.start()
    router.wait_ready(lambda: answers(router.port))
