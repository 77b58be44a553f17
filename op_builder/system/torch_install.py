"""Facts about the installed torch that builds and keys depend on.

Importing torch takes a second or two, so this module does it only inside functions.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from op_builder.errors import IncompatibleOpError
from op_builder.system.records import SHA256_FACT, Memo

MINIMUM_TORCH = (2, 10)


class TorchInstall(NamedTuple):
    """The torch of this interpreter.

    Attributes:
        version: as torch reports it, ``2.13.0+cpu``.
        release: (major, minor).
        root: the package's directory.
        cxx11_abi: whether it was built with libstdc++'s C++11 ABI.
        cuda: CUDA version it was built with, None for a build without CUDA.
        hip: ROCm's HIP version; None without ROCm.
        xpu: version of the SYCL toolkit of an XPU build, else None.
    """

    version: str
    release: tuple[int, int]
    root: Path
    cxx11_abi: bool
    cuda: str | None
    hip: str | None
    xpu: str | None

    @property
    def library_dir(self) -> Path:
        return self.root / "lib"

    @property
    def include_dir(self) -> Path:
        return self.root / "include"


def parse_release(version: str) -> tuple[int, int]:
    """(major, minor) of a version text: ``2.13.0+cpu`` is (2, 13)."""
    # Not by a regular expression: to compile one takes a tenth of a warm load.
    major, _, rest = version.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    if not (major.isdecimal() and minor):
        raise ValueError(f"{version!r} does not begin with a version number like 2.10")
    return int(major), int(minor)


@cache
def torch_install() -> TorchInstall:
    """The torch of this interpreter.

    Raises:
        IncompatibleOpError: torch is not installed, or cannot be imported.
    """
    try:
        import torch
    except Exception as error:
        raise IncompatibleOpError(
            f"torch cannot be imported: {type(error).__name__}: {error}",
            "Run `pip install 'torch>=2.10'`. If torch is installed, fix the error of `python -c 'import torch'`.",
        ) from error
    return TorchInstall(
        version=torch.__version__,
        release=parse_release(torch.__version__),
        root=Path(torch.__file__).resolve().parent,
        cxx11_abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        xpu=getattr(torch.version, "xpu", None),
    )


def header_stamp(memo: Memo) -> str:
    """A short text that differs whenever torch or one of its headers may differ.

    It consists of torch's version, its revision, and a digest of the headers' hashes in its install record. Hashing the
    5,400 headers would take longer than a warm load. The rest of the record contains the environment's path.
    """
    import torch

    install = torch_install()
    record = _install_record(install)

    def compute() -> tuple[dict[str, Any], list[str]]:
        if record is None:  # a source build, or a distribution's package: version.py is rewritten by each build
            text = (install.root / "version.py").read_text(encoding="utf-8")
            return {"sha256": hashlib.sha256(text.encode()).hexdigest()}, [str(install.root / "version.py")]
        lines = record.read_text(encoding="utf-8").splitlines()
        headers = sorted(line for line in lines if line.startswith("torch/include/"))
        return {"sha256": hashlib.sha256("\n".join(headers).encode()).hexdigest()}, [str(record)]

    digest = memo.get(f"torch headers of {record or install.root}", SHA256_FACT, compute)["sha256"][:16]
    return f"{install.version} {getattr(torch.version, 'git_version', '')} {digest}"


def _install_record(install: TorchInstall) -> Path | None:
    site = install.root.parent
    exact = site / f"torch-{install.version}.dist-info" / "RECORD"
    if exact.is_file():
        return exact
    found = (directory / "RECORD" for directory in site.glob(f"torch-{install.version}*.dist-info"))
    return next((record for record in found if record.is_file()), None)
