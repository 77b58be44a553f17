"""Public packages' extensions, built by programs that call torch's functions and are run by ``accel-ops run``.

The sources and the tests are those of the packages' releases.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from op_builder import env
from tests.support.foreign_package import ROOT

pytestmark = pytest.mark.slow

# By release: what a conftest.py does in place of the package's setup.py, and which of its tests need nothing else that
# is not installed here.
PACKAGES = {
    "torchsort==0.1.10": (
        """
import types
sys.modules["fast_soft_sort"] = types.SimpleNamespace(pytorch_ops=types.SimpleNamespace(soft_rank=0, soft_sort=0))
sys.modules["torchsort.isotonic_cpu"] = load("isotonic_cpu", ["torchsort/isotonic_cpu.cpp"])
""",
        ["tests", "-k", "gradcheck"],
    ),
    "torchlpc==0.7.2": (
        """
from unittest import mock
sys.modules["numba"] = mock.MagicMock()
sys.modules["torchlpc._C"] = load("_C", "torchlpc/csrc/scan_cpu.cpp", ["-fopenmp"], extra_ldflags=["-fopenmp"])
""",
        ["tests/test_grad.py", "tests/test_vmap.py"],
    ),
    "pytorch-fast-transformers==0.4.0": (
        """
sys.modules["fast_transformers.causal_product.causal_product_cpu"] = load(
    "causal_product_cpu", "fast_transformers/causal_product/causal_product_cpu.cpp",
    extra_cflags=["-fopenmp -ffast-math"], extra_ldflags=["-fopenmp"])
""",
        ["tests/causal_product"],
    ),
    # Without CUDA its build compiles the .cu files as C++, too.
    "fast-rnnt==1.3": (
        """
import shutil
names = ["csrc/mutual_information_cpu", "python/csrc/mutual_information", "python/csrc/fast_rnnt"]
sources = [shutil.copy(f"fast_rnnt/{name}.cu", f"fast_rnnt/{name}.cpp") for name in names]
sys.modules["_fast_rnnt"] = load("_fast_rnnt", sources, extra_include_paths=["."])
sys.path.insert(0, "fast_rnnt/python")
""",
        ["fast_rnnt/python/tests/mutual_information_test.py"],
    ),
    # It calls load() when it is imported.
    "torch-discounted-cumsum==1.1.0": ("", ["tests/test.py"]),
}

# The release has no tests.
SPLINE_CONV = """
from torch.utils.cpp_extension import load
path = load("basis", [f"{root}/csrc/basis.cpp", f"{root}/csrc/cpu/basis_cpu.cpp"],
            extra_include_paths=[f"{root}/csrc"], is_python_module=False)
assert path.endswith("basis.so")
pseudo = torch.tensor([[0.125], [0.8]])
size, is_open = torch.tensor([5]), torch.tensor([1], dtype=torch.uint8)
basis, index = torch.ops.torch_spline_conv.spline_basis(pseudo, size, is_open, 1)
assert torch.allclose(basis, torch.tensor([[0.5, 0.5], [0.8, 0.2]])), basis
assert index.tolist() == [[0, 1], [3, 4]], index
"""


@pytest.mark.parametrize("release", PACKAGES)
def test_an_unchanged_extension_passes_its_own_tests(tmp_path: Path, release: str) -> None:
    root = sources_of(release, tmp_path)
    glue, chosen = PACKAGES[release]
    (root / "conftest.py").write_text(f"import sys\nfrom torch.utils.cpp_extension import load\n{glue}")
    done = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(root), *chosen, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE), done.stdout
    assert list((tmp_path / "cache").rglob("*.so"))


def test_an_unchanged_extension_gives_known_results(tmp_path: Path) -> None:
    root = sources_of("torch-spline-conv==1.2.2", tmp_path)
    script = tmp_path / "program.py"
    end = "from torch.utils import cpp_extension\nprint(cpp_extension.load.__module__)\n"
    script.write_text(f"import torch\nroot = {str(root)!r}\n{SPLINE_CONV}{end}")
    done = run(tmp_path, str(script), cwd=root)
    assert done.stdout == "op_builder.cpp_extension\n", done.stderr


def run(directory: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``accel-ops run`` with an empty cache in ``directory``."""
    variables = env.child_environment(PYTHONPATH=str(ROOT), ACCEL_CACHE_DIR=str(directory / "cache"))
    command = [sys.executable, "-m", "op_builder", "run", *arguments]
    return subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True, check=False, timeout=900)


def sources_of(release: str, directory: Path) -> Path:
    """The unpacked sources of a release; the test is skipped where the package index does not have them."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    # Its setup.py imports torch. Some of them compile for CUDA if they find nvcc.
    command += ["--no-build-isolation", "--dest", str(directory), release]
    variables = env.child_environment(PATH="/usr/bin:/bin", CUDA_HOME=None)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    archives = list(directory.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"pip cannot download {release}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(directory, filter="data")
    (root,) = (path for path in directory.iterdir() if path.is_dir())
    return root
