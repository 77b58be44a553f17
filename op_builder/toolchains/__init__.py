"""Compilers: finding and identifying them, checking that they work, their flags, and reading their errors."""
