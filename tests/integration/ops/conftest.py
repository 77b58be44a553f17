from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.support.compilers import require_program


@pytest.fixture(scope="session")
def faulty_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of faulty_calls.cpp, to preload."""
    if not sys.platform.startswith("linux"):
        pytest.skip("preloads a library")
    built = tmp_path_factory.mktemp("faulty") / "faulty_calls.so"
    source = Path(support.__file__).parent / "native" / "faulty_calls.cpp"
    subprocess.run(
        [require_program("g++"), "-shared", "-fPIC", "-O1", str(source), "-o", str(built), "-ldl"], check=True
    )
    return built
