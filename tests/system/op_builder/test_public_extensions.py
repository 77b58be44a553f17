"""Public packages' extensions, built by programs that call torch's functions and are run by ``accel-ops run``.

The sources are those of the packages' releases; each result is compared with what the operation is defined to give.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from op_builder import env
from tests.support.foreign_package import ROOT

pytestmark = pytest.mark.slow

TORCHSORT = """
from torch.utils.cpp_extension import load
sort = load("isotonic_cpu", [f"{root}/torchsort/isotonic_cpu.cpp"])
found = sort.isotonic_l2(torch.tensor([[1.0, 2.0, 3.0, 0.0], [5.0, 3.0, 4.0, 1.0]]))
assert torch.allclose(found, torch.tensor([[2.0, 2.0, 2.0, 0.0], [5.0, 3.5, 3.5, 1.0]])), found
"""

FAST_TRANSFORMERS = """
import torch.utils.cpp_extension as extension
product = extension.load("causal_product_cpu", f"{root}/fast_transformers/causal_product/causal_product_cpu.cpp",
                         extra_cflags=["-fopenmp -ffast-math"], extra_ldflags=["-fopenmp"])
queries, keys, values = (torch.randn(2, 3, 7, size) for size in (4, 4, 5))
found = torch.zeros(2, 3, 7, 5)
product.causal_dot_product(queries, keys, values, found)
expected = torch.tril(queries @ keys.transpose(2, 3)) @ values
assert torch.allclose(found, expected, atol=1e-4), (found - expected).abs().max()
"""

DISCOUNTED_CUMSUM = """
from torch.utils.cpp_extension import load
sums = load(name="discounted_cumsum_cpu", sources=[f"{root}/torch_discounted_cumsum/discounted_cumsum_cpu.cpp"],
            extra_cflags=["-O3"], verbose=True)
x, gamma = torch.randn(5, 9, dtype=torch.float64), torch.full((5,), 0.5, dtype=torch.float64)
powers = torch.tensor([[0.5 ** (i - j) if i >= j else 0.0 for j in range(9)] for i in range(9)], dtype=torch.float64)
assert torch.allclose(sums.discounted_cumsum_left_cpu(x, gamma), x @ powers.T)
assert torch.allclose(sums.discounted_cumsum_right_cpu(x, gamma), x @ powers)
"""

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


@pytest.mark.parametrize(
    ("release", "program"),
    [
        ("torchsort==0.1.9", TORCHSORT),
        ("pytorch-fast-transformers==0.4.0", FAST_TRANSFORMERS),
        ("torch-discounted-cumsum==1.1.0", DISCOUNTED_CUMSUM),
        ("torch-spline-conv==1.2.2", SPLINE_CONV),
    ],
)
def test_an_unchanged_extension_builds_and_gives_known_results(tmp_path: Path, release: str, program: str) -> None:
    root = sources_of(release, tmp_path)
    script = tmp_path / "program.py"
    end = "from torch.utils import cpp_extension\nprint(cpp_extension.load.__module__)\n"
    script.write_text(f"import torch\nroot = {str(root)!r}\n{program}{end}")
    variables = env.child_environment(PYTHONPATH=str(ROOT), ACCEL_CACHE_DIR=str(tmp_path / "cache"))
    command = [sys.executable, "-m", "op_builder", "run", str(script)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=900)
    assert done.stdout == "op_builder.cpp_extension\n", done.stderr


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
