"""Ports of tests that run side by side."""

import random

from processes import free_port, reserved_ports, run_in_children


def test_two_processes_are_not_given_the_same_port():
    """Once a setup could fail: another test had been given the port before its server had bound it."""
    random.seed(1)
    ports = [free_port() for _ in range(20)]

    def child() -> None:
        # As in a process of its own.
        reserved_ports.clear()
        random.seed(1)
        assert not set(ports) & {free_port() for _ in range(20)}

    run_in_children([child])


def test_a_process_is_not_given_a_port_twice():
    """Before its server has bound it, that is."""
    random.seed(2)
    first = free_port()
    random.seed(2)
    assert free_port() != first
