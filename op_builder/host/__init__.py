"""Builders of host code: every device has them, each stands here once."""
