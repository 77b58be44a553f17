"""What JIT builders survive: the same trouble for each, and what was seen afterwards."""
