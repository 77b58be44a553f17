"""CUDA architectures: what ``TORCH_CUDA_ARCH_LIST`` means, and its ``-gencode`` flags.

The meaning is torch's: entries separated by semicolons or spaces, numbers like ``8.0`` or
``9.0a``, names like ``Ampere``, and ``+PTX`` for code that later devices can compile. ``native``
or nothing means the visible devices; where there are none (a container, a build machine), a
list of what the toolkit supports, as ``nvcc --list-gpu-arch`` reports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from op_builder import env
from op_builder.errors import AccelError, EnvironmentValueError

_NAMED = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}
_ENTRY = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")
_NAMED_IN_FLAG = re.compile(r"\b(?:compute|sm)_(\d+)")
_BF16_SINCE = 80

# What a build without a device compiles for: the data-centre and desktop parts in use.
_DEFAULT = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def parse_arch_list(text: str) -> list[str]:
    """The entries of a ``TORCH_CUDA_ARCH_LIST`` text, names expanded, in order, each once.

    >>> parse_arch_list("8.0;9.0a+PTX Turing")
    ['8.0', '9.0a+PTX', '7.5+PTX']

    Raises:
        EnvironmentValueError: an entry is neither a number nor a name that torch accepts.
    """
    entries: list[str] = []
    for word in re.split(r"[;\s]+", text.strip()):
        if not word:
            continue
        for entry in _NAMED.get(word, word).split(";"):
            if _ENTRY.fullmatch(entry) is None:
                raise EnvironmentValueError(
                    "TORCH_CUDA_ARCH_LIST", text, f"entries like 8.0, 9.0a+PTX or a name of {', '.join(_NAMED)}"
                )
            if entry not in entries:
                entries.append(entry)
    return entries


def is_arch(text: str) -> bool:
    """Whether a text is one architecture by its number, such as ``9.0a+PTX``."""
    return len(text) < 20 and text.isascii() and _ENTRY.fullmatch(text) is not None


def default_archs(supported: Sequence[tuple[int, int]]) -> list[str]:
    """The default without a device: those of the usual list that the toolkit supports, the last with PTX.

    Args:
        supported: by the toolkit, as ``(9, 0)``; empty where nvcc does not list them.
    """
    archs = [arch for arch in _DEFAULT if not supported or _number(arch) in supported]
    return [*archs[:-1], archs[-1] + "+PTX"] if archs else []


def target_archs(supported: Sequence[tuple[int, int]], capabilities: Iterable[tuple[int, int]]) -> list[str]:
    """The architectures to compile for.

    A device newer than the toolkit gets PTX of the newest that the toolkit supports, as with torch.

    Args:
        supported: by the toolkit, as ``(9, 0)``; empty where nvcc does not list them.
        capabilities: compute capabilities of the visible devices.
    """
    listed = env.TORCH_CUDA_ARCH_LIST.get()
    if listed is not None and listed.strip().lower() != "native":
        archs = parse_arch_list(listed)
        if archs:
            return archs
    visible = sorted({min(capability, max(supported, default=capability)) for capability in capabilities})
    if not visible:
        return default_archs(supported)
    archs = [f"{major}.{minor}" for major, minor in visible]
    return [*archs[:-1], archs[-1] + "+PTX"]


def serves(archs: Iterable[str], capability: tuple[int, int]) -> bool:
    """Whether code for ``archs`` runs on a device.

    Device code runs on its own compute capability and later ones of the same major version (``a``: on its
    own alone), PTX on every later one.

    >>> serves(["8.0"], (8, 6)), serves(["8.0"], (9, 0)), serves(["8.0+PTX"], (9, 0)), serves(["9.0a"], (9, 1))
    (True, False, True, False)
    """
    for arch in archs:
        number = _number(arch)
        if "a" in arch:
            if number == capability:
                return True
        elif number <= capability and (number[0] == capability[0] or arch.endswith("+PTX")):
            return True
    return False


def gencode_flags(archs: Iterable[str]) -> list[str]:
    """nvcc's ``-gencode`` flags of parsed entries: device code each, and PTX if requested."""
    flags = []
    for arch in archs:
        match = _ENTRY.fullmatch(arch)
        if match is None:
            raise AccelError(f"{arch!r} is not a valid CUDA architecture.", "Use the form 9.0, 9.0a or 9.0+PTX.")
        number = f"{match[1]}{match[2]}{match[3]}"
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[4]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def all_have_bf16(archs: Iterable[str], nvcc_flags: Iterable[str]) -> bool:
    """Whether all target architectures have bfloat16: those of ``archs``, or that ``nvcc_flags`` name instead."""
    named = [int(number) for flag in nvcc_flags for number in _NAMED_IN_FLAG.findall(flag)]
    numbers = [major * 10 + minor for major, minor in map(_number, archs)] or named
    return bool(numbers) and min(numbers) >= _BF16_SINCE


def _number(arch: str) -> tuple[int, int]:
    major, minor = re.sub(r"[a-z].*|\+.*", "", arch).split(".")
    return int(major), int(minor)
