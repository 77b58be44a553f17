"""Sizes, near matches and warnings that appear once."""

from __future__ import annotations

import logging

import pytest

from op_builder.messages import did_you_mean, size_text, warn_once


def test_a_size_has_the_largest_unit_that_fits() -> None:
    sizes = (0, 1023, 1024, 1536, (1 << 20) - 1, 96 << 20, 5 << 28, 1 << 42)
    expected = ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1024 KiB", "96 MiB", "1.25 GiB", "4096 GiB"]
    assert [size_text(size) for size in sizes] == expected


def test_near_matches_are_found_without_what_all_names_have_in_common() -> None:
    known = ["CPUAdamBuilder", "CPULionBuilder", "AsyncIOBuilder"]
    assert did_you_mean("CPUAdmBuilder", known, common="Builder") == "Did you mean CPUAdamBuilder?"
    assert did_you_mean("XyzBuilder", known, common="Builder") == ""
    assert did_you_mean("x", []) == ""
    assert did_you_mean("lst", ["last", "list", "lsti"]) == "Did you mean lsti, list or last?"
    assert did_you_mean("halves", ["halves_add_rms_norm", "cpu_adam"]) == "Did you mean halves_add_rms_norm?"


def test_a_warning_appears_once_in_a_process(caplog: pytest.LogCaptureFixture) -> None:
    for message in ("100% of one", "100% of one", "another"):
        warn_once(logging.getLogger("acme"), message)
    assert caplog.messages == ["100% of one", "another"]
