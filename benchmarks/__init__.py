"""Benchmarks against the machine's limits and against peers: ``python -m benchmarks.NAME``."""
