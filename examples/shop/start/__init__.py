"""Starts the shop and all that it needs, by Python's standard library alone: it runs before anything is installed."""
