"""Compilers: finding them, telling one from another, proving they work, and their command lines."""
