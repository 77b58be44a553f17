"""The version of CANN, Huawei's toolkit under ``torch_npu``."""

from __future__ import annotations

from op_builder import env as environment


def cann_version() -> str | None:
    """Version of the toolkit under ``ASCEND_HOME_PATH``, or None where it cannot be read."""
    home = environment.ASCEND_HOME_PATH.get()
    if home is None:
        return None
    record_name = "ascend_*_install.info"  # in the root, or in the directory of the host's architecture
    for record in sorted({*home.glob(record_name), *home.glob(f"*-linux/{record_name}")}):
        for line in record.read_text(errors="replace").splitlines() if record.is_file() else ():
            key, _, value = line.partition("=")
            if key.strip().lower() == "version":
                return value.strip()
    return None
