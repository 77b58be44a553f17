"""Public packages' extensions, built by programs that call torch's functions and are run by ``accel-ops run``.

The sources and the tests are those of the packages' releases.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from op_builder import env
from tests.support.foreign_package import python

pytestmark = pytest.mark.slow

# In place of the package's setup.py; its other tests need a package.
TORCHSORT = """
import pytest, sys, types
from torch.utils.cpp_extension import load
sys.modules["fast_soft_sort"] = types.SimpleNamespace(pytorch_ops=types.SimpleNamespace(soft_rank=0, soft_sort=0))
sys.modules["torchsort.isotonic_cpu"] = load("isotonic_cpu", ["torchsort/isotonic_cpu.cpp"])
assert pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", ".", "tests", "-k", "gradcheck"]) == 0
"""
# The package calls load() when it is imported.
DISCOUNTED_CUMSUM = """
import torch
from torch_discounted_cumsum import discounted_cumsum_right
x = torch.ones(1, 3, requires_grad=True)
y = discounted_cumsum_right(x, torch.tensor([0.5]))
assert y.tolist() == [[1.75, 1.5, 1.0]], y
y.sum().backward()
assert x.grad.tolist() == [[1.0, 1.5, 1.75]], x.grad
"""
SPLINE_CONV = """
import torch
from torch.utils.cpp_extension import load
path = load("basis", ["csrc/basis.cpp", "csrc/cpu/basis_cpu.cpp"], extra_include_paths=["csrc"], is_python_module=False)
assert path.endswith("basis.so")
pseudo = torch.tensor([[0.125], [0.8]])
size, is_open = torch.tensor([5]), torch.tensor([1], dtype=torch.uint8)
basis, index = torch.ops.torch_spline_conv.spline_basis(pseudo, size, is_open, 1)
assert torch.allclose(basis, torch.tensor([[0.5, 0.5], [0.8, 0.2]])), basis
assert index.tolist() == [[0, 1], [3, 4]], index
"""


@pytest.mark.parametrize(
    ("release", "program"),
    [
        ("torchsort==0.1.10", TORCHSORT),
        ("torch-discounted-cumsum==1.1.0", DISCOUNTED_CUMSUM),
        ("torch-spline-conv==1.2.2", SPLINE_CONV),
    ],
)
def test_an_unchanged_extension_passes_its_tests_or_gives_known_results(
    tmp_path: Path, release: str, program: str
) -> None:
    root = sources_of(release, tmp_path)
    end = "from torch.utils import cpp_extension\nprint(cpp_extension.load.__module__)\n"
    (root / "program.py").write_text(program + end)
    done = python("-m", "op_builder", "run", "program.py", cwd=root, ACCEL_CACHE_DIR=str(root / "cache"))
    assert done.stdout.endswith("op_builder.cpp_extension\n"), done.stdout + done.stderr


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
