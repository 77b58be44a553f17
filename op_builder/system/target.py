"""The platforms that wheels can be built for on any machine."""

from typing import NamedTuple

from op_builder import env
from op_builder.errors import EnvironmentValueError, IncompatibleOpError


class Target(NamedTuple):
    """A platform to build for, with the oldest system on which the binaries run.

    Attributes:
        name: a wheel's platform tag without versions: ``linux_aarch64``.
        platform: how manifests name it: ``linux aarch64``.
        triple: its name for ziglang's clang, with the oldest system on which the binaries run.
    """

    name: str
    platform: str
    triple: str

    @property
    def system(self) -> str:
        """As ``sys.platform`` there."""
        return self.platform.partition(" ")[0]

    @property
    def machine(self) -> str:
        """As ``platform.machine()`` there."""
        return self.platform.partition(" ")[2]


_TARGETS = (
    Target("linux_x86_64", "linux x86_64", "x86_64-linux-gnu.2.17"),
    Target("linux_aarch64", "linux aarch64", "aarch64-linux-gnu.2.17"),
    Target("macosx_arm64", "darwin arm64", "aarch64-macos.11.0"),
)
_UNSUPPORTED = {
    "macosx_x86_64": "torch >= 2.10 does not run there",
    "win_amd64": "the ops call functions of POSIX",
}


def require_supported(system: str) -> None:
    """Check that native ops and accel-launch can work on ``system``, as ``sys.platform``.

    Raises:
        IncompatibleOpError: it is Windows.
    """
    if system == "win32":
        raise IncompatibleOpError(
            "Native ops and accel-launch need Linux or macOS; this is Windows.",
            "Use WSL 2. Without it get_accelerator() works, except for its ops.",
        )


def library_file(name: str, system: str) -> str:
    """The file name of a shared library on ``system``: ``libtorch.so`` of ``torch``."""
    return f"{name}.dll" if system == "win32" else f"lib{name}.{'dylib' if system == 'darwin' else 'so'}"


def requested_target(option: str | None = None) -> Target | None:
    """The platform that ``option``, of ``--target``, or else ``ACCEL_BUILD_TARGET`` names; None if both are unset.

    Raises:
        EnvironmentValueError: nothing can be built for it.
    """
    name = option if option is not None else env.ACCEL_BUILD_TARGET.get()
    if name is None:
        return None
    found = next((target for target in _TARGETS if target.name == name), None)
    if found is None:
        reason = f"; {name} is not supported: {_UNSUPPORTED[name]}" if name in _UNSUPPORTED else ""
        expected = f"one of {', '.join(target.name for target in _TARGETS)}{reason}"
        raise EnvironmentValueError("--target" if option is not None else env.ACCEL_BUILD_TARGET.name, name, expected)
    return found
