"""Programs that use the library as its users do; run them as ``python -m examples.<name>``."""
