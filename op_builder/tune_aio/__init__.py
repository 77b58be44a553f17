"""Finds the settings with which ``async_io`` is fastest on a disk: ``python -m op_builder.tune_aio DIR``."""
