"""Templates and values are parsed and written as the invalidator's row rules do, by its own output."""

import datetime
import json
import subprocess
import uuid
from decimal import Decimal

import pytest
from lookaside.key_templates import (
    InexpressibleValueError,
    InvalidKeyError,
    Template,
    check_key,
    write_decimal,
    write_value,
)
from processes import PROGRAMS


def try_row(folder, template: str, row: dict):
    """`lookaside invalidator try` for a row of a table with one template."""
    rules = folder / "rules.toml"
    rules.write_text(f"[[rule]]\ntable = 'app.rows'\nkeys = [{json.dumps(template)}]\n")
    command = [PROGRAMS / "lookaside", "invalidator", "try", "--rules", rules, "--row", "app.rows", json.dumps(row)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "template",
    ["user:{id}", "{id}{name}:c", "list:users", "{{{id}}}", "{{id}}", "{name}", "a{{b}}{id}", "é:{name}", "}}{id}{{"],
)
def test_the_invalidator_makes_the_same_key(tmp_path, template):
    rows = [{"id": 42, "name": "Zoë🦀"}, {"id": -7, "name": ""}, {"id": None, "name": "n"}, {"id": True, "name": "é"}]
    for row in rows:
        parsed = Template.parse(template)
        key = parsed.key({name: write_value(value) for name, value in row.items()})
        expected = {key} if key else set()
        output = try_row(tmp_path, template, row)
        assert output.returncode == 0, output.stderr
        shown = {line for line in output.stdout.splitlines() if line and not line.startswith("#")}
        assert {line for line in shown if line == key} == expected, output.stdout


@pytest.mark.parametrize(
    "template", ["", "user:{id", "user:id}", "user:{}", "user:{a{b}", "two words", "tab\t", "k" * 251]
)
def test_the_invalidator_refuses_the_same_templates(tmp_path, template):
    assert try_row(tmp_path, template, {"id": 1}).returncode != 0
    with pytest.raises(ValueError):
        Template.parse(template)


def test_each_value_has_the_form_of_the_row_rules():
    zone = datetime.timezone(datetime.timedelta(hours=1))
    cases = [
        (0, "0"),
        (-(2**63), "-9223372036854775808"),
        (True, "1"),
        (False, "0"),
        ("Zoë", "Zoë"),
        ("", ""),
        (b"\x00\xff\x0a", "00ff0a"),
        (memoryview(b"\x01"), "01"),
        (Decimal("-12.50"), "-12.50"),
        (Decimal("-0.00"), "0.00"),
        (Decimal("1E+3"), "1000"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.date(33, 1, 2), "0033-01-02"),
        (datetime.time(9, 5, 0, 250_000), "09:05:00.25"),
        (datetime.timedelta(hours=-12, seconds=-1.5), "-12:00:01.5"),
        (datetime.timedelta(hours=838, minutes=59, seconds=59), "838:59:59"),
        (datetime.datetime(2026, 11, 22, 9, 5, 0, 1), "2026-11-22T09:05:00.000001"),
        (datetime.datetime(2026, 11, 22, 9, 5, tzinfo=zone), "2026-11-22T08:05:00Z"),
        (uuid.UUID("8D4B9A3E-0A51-4C0E-9D2F-0C7A52B1F0AA"), "8d4b9a3e-0a51-4c0e-9d2f-0c7a52b1f0aa"),
        (None, None),
    ]
    for value, expected in cases:
        assert write_value(value) == expected, value
    assert [write_decimal(value, 2) for value in (Decimal("12.5"), 3, 0.1, Decimal("-0.001"))] == [
        "12.50",
        "3.00",
        "0.10",
        "0.00",
    ]
    for value in (1.5, Decimal("NaN"), [1], datetime.time(1, tzinfo=zone)):
        with pytest.raises(InexpressibleValueError):
            write_value(value)


def test_keys_that_no_server_accepts_are_refused():
    for key in ("k" * 250, "café", "~"):
        check_key(key)
    for key in ("", "k" * 251, "é" * 126, "two words", "bell\x07", "del\x7f", "line\n"):
        with pytest.raises(InvalidKeyError):
            check_key(key)
