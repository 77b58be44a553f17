"""The one place that holds the version of the distribution ``accel-ops``."""

__version__ = "0.1.0"
