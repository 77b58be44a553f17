"""Builds a release into ``dist/``: sdist, wheels, checksums, bill of materials and notes. Uploads nothing.

``make release`` runs it. Sdist and wheels are made from the commit, twice, in different directories and with empty
caches, and must be equal byte for byte, except for the targets in VARYING, whose compilers give other
bytes each time. A check that fails ends the program with the reason.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
# nvcc names kernels after its directory. Zig's linker does not initialize some entries of Mach-O's table of indirect
# symbols, which dyld does not read in these libraries; the UUID and the signature differ with them.
VARYING = ("cuda", "macosx_arm64")
# What each wheel is built with; any other name is a value of ACCEL_BUILD_TARGET.
TARGETS = {
    "native": {"ACCEL_ACCELERATOR": "cpu"},
    "cuda": {
        "ACCEL_ACCELERATOR": "cuda",
        "TORCH_CUDA_ARCH_LIST": "8.0;9.0;10.0;12.0+PTX",
        "NVCC_APPEND_FLAGS": "--compress-mode=size",  # nvcc's own mode makes binaries of four times the size
    },
}
# What an op may need in addition to the system's: libraries of torch and oneCCL, which are opened before it.
_LIBRARIES = re.compile(r"lib(torch|c10)\w*\.so$|libccl\.so\.1$")


def main() -> None:
    """Build the release of the checkout's commit."""
    parser = argparse.ArgumentParser(description="Build and check a release in dist/, which is emptied first.")
    parser.add_argument(
        "targets",
        nargs="*",
        default=["native", "linux_x86_64", "linux_aarch64", "macosx_arm64"],
        help="a wheel for each: native, cuda, or values of ACCEL_BUILD_TARGET (default: all but cuda)",
    )
    parser.add_argument("--allow-dirty", action="store_true", help="build the commit without uncommitted changes")
    options = parser.parse_args()
    if (changes := git("status", "--porcelain").rstrip()) and not options.allow_dirty:
        fail(f"A release contains only what is committed. Commit these changes, or add --allow-dirty:\n{changes}")
    version = re.findall(r'__version__ = "(.+)"', git("show", "HEAD:op_builder/_version.py"))[0]
    notes = release_notes(git("show", "HEAD:CHANGELOG.md"), version, git("tag", "--points-at"))
    commit, epoch = git("log", "-1", "--format=%H %ct").split()
    os.umask(0o022)  # archives contain the modes of files
    with tempfile.TemporaryDirectory(prefix="accel-ops-release-") as scratch:
        again = [target for target in options.targets if target not in VARYING]
        first = build(Path(scratch, "a"), commit, sorted(options.targets, key=VARYING.__contains__), epoch)
        second = build(Path(scratch, "elsewhere/b"), commit, again, epoch)
        for one, other in zip(first, second, strict=False):
            require_equal(one, other)
        run(sys.executable, "-m", "twine", "check", "--strict", *first)
        for wheel in first[1:]:
            check_wheel(wheel, Path(scratch))
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        sums = {path.name: hashlib.sha256(Path(shutil.copy(path, DIST)).read_bytes()).hexdigest() for path in first}
        bill = DIST / f"accel_ops-{version}.cdx.json"
        bill.write_text(bill_of_materials(first[1], sums, int(epoch)), encoding="utf-8")
    sums[bill.name] = hashlib.sha256(bill.read_bytes()).hexdigest()
    (DIST / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    (DIST / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    print(f"{len(second)} files are equal in two builds, and all tags fit the binaries. In {DIST}:")
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,} bytes  {path.name}")


def release_notes(changelog: str, version: str, tags: str) -> str:
    """The section of ``version``. If the commit has a tag, it must be of this version, and the section have a date."""
    section = re.search(rf"^## \[{re.escape(version)}\] - (\S+)\n+(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if section is None:
        fail(f"CHANGELOG.md has no section '## [{version}] - DATE' for the version in op_builder/_version.py.")
    tagged = [tag for tag in tags.split() if tag.startswith("v")]
    if tagged and f"v{version}" not in tagged:
        fail(f"The commit's tag is {tagged[0]}, but op_builder/_version.py has {version}.")
    if tagged and not re.fullmatch(r"\d{4}-\d\d-\d\d", section[1]):
        fail(f"The commit is tagged v{version}, but CHANGELOG.md has '{section[1]}' instead of its date.")
    return f"{section[2].strip()}\n"


def build(directory: Path, commit: str, targets: Sequence[str], epoch: str) -> list[Path]:
    """Make the sdist from ``commit``, and from it a wheel for each target, with a cache in ``directory``."""
    tree = directory / "source"
    tree.mkdir(parents=True)
    files = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
        archive.extractall(tree, filter="data")
    variables = {"SOURCE_DATE_EPOCH": epoch, "ACCEL_CACHE_DIR": str(directory / "cache")}
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", directory / "sdist", tree, **variables)
    made = list((directory / "sdist").iterdir())
    for target in targets:
        started = time.monotonic()
        request = TARGETS.get(target, {**TARGETS["native"], "ACCEL_BUILD_TARGET": target})
        options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", str(directory / target), str(made[0])]
        if target == "cuda":  # a local version, because the name of the wheel is otherwise that of the native one
            options.append("-C--global-option=egg_info --tag-build=+cuda")
        run(sys.executable, "-m", "pip", "wheel", *options, ACCEL_BUILD_OPS="1", **variables, **request)
        made += (directory / target).iterdir()
        print(f"{target}: {made[-1].name}, {time.monotonic() - started:.0f} s", flush=True)
    return made


def require_equal(one: Path, other: Path) -> None:
    """Fail, and keep both files, if two builds differ."""
    if one.read_bytes() != other.read_bytes():
        kept = Path(tempfile.mkdtemp(prefix="accel-ops-differ-"))
        copies = [shutil.copytree(file.parent, kept / name) / file.name for name, file in (("a", one), ("b", other))]
        fail(f"Two builds of {one.name} differ; diffoscope shows how: {copies[0]} {copies[1]}")


def check_wheel(wheel: Path, scratch: Path) -> None:
    """Check a wheel's contents, its libraries' use of Python's stable ABI, and what those for Linux need."""
    # Modules of devices are equal files, and the project has two packages.
    run("check-wheel-contents", "--ignore", "W002,W009", wheel)
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".so", ".dylib"))]
        libraries = [Path(archive.extract(name, scratch / wheel.stem)) for name in names]
    if not libraries:
        fail(f"{wheel.name} contains no binary.")
    for library in libraries if "-py3-" in wheel.name else []:
        run("abi3audit", "--strict", "--assume-minimum-abi3", "3.10", library.rename(library.with_suffix(".so")))
    if "-manylinux_" in wheel.name:
        audit = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", wheel))
        if reason := platform_rejection(wheel.stem.rpartition("-")[2], audit):
            fail(f"{wheel.name}: {reason}.")


def platform_rejection(promised: str, audit: Mapping[str, Any]) -> str:
    """How the platform tag of a wheel differs from what auditwheel found in it; empty if it fits.

    auditwheel itself would refuse torch's libraries, which a wheel of ops finds in the installed torch.
    """
    tags = (re.fullmatch(r"manylinux_(\d+)_(\d+)_(.*)", tag) for tag in (promised, audit["sym_tag"]))
    (major, minor, machine), found = (tag.groups() if tag is not None else ("0", "0", "") for tag in tags)
    if machine != found[2] or (int(major), int(minor)) < (int(found[0]), int(found[1])):
        return f"its binaries need {audit['sym_tag']}"
    if audit["unsupported_isa"]:
        return "its binaries need a newer CPU"
    foreign = [name for name in audit["external_libs"] if not _LIBRARIES.match(name)]
    return f"its binaries need {foreign[0]}, which neither the system nor torch has" if foreign else ""


def bill_of_materials(wheel: Path, sums: Mapping[str, str], epoch: int) -> str:
    """The CycloneDX document of a release: its files, and the requirements in the metadata of ``wheel``.

    The command cyclonedx-py describes an environment, and knows no hashes of files.
    """
    from cyclonedx import model
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.license import LicenseExpression
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL
    from packaging.metadata import Metadata

    def component(name: str, **more: Any) -> Component:
        return Component(name=name, bom_ref=name, **more)

    with zipfile.ZipFile(wheel) as archive:
        (place,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        facts = Metadata.from_email(archive.read(place))
    hashes = {name: [model.HashType(alg=model.HashAlgorithm.SHA_256, content=digest)] for name, digest in sums.items()}
    project = component(
        facts.name,
        version=str(facts.version),
        purl=PackageURL("pypi", None, facts.name, str(facts.version)),
        licenses=[LicenseExpression(str(facts.license_expression))],
        components=[component(name, type=ComponentType.FILE, hashes=hashes[name]) for name in sums],
    )
    needs = {each.name: str(each.specifier) for each in facts.requires_dist or [] if each.marker is None}  # no extras
    required = [
        component(
            name, purl=PackageURL("pypi", None, name), properties=[model.Property(name="version", value=versions)]
        )
        for name, versions in needs.items()
    ]
    metadata = BomMetaData(component=project, timestamp=datetime.fromtimestamp(epoch, timezone.utc))
    number = uuid.uuid5(uuid.NAMESPACE_URL, repr(sums))  # reproducible, as all of it
    bom = Bom(components=required, metadata=metadata, serial_number=number)
    bom.register_dependency(project, required)
    return f"{JsonV1Dot6(bom).output_as_string(indent=2)}\n"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def run(*command: str | Path, **variables: str) -> str:
    """The output of a command; it and the error output are shown only if the command fails."""
    # Programs of this environment, which need not be activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, env={**os.environ, "PATH": path, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        fail(f"{words} exited with status {done.returncode}.\n{done.stdout}{done.stderr}")
    return done.stdout


def fail(message: str) -> NoReturn:
    sys.exit(f"error: {message}")


if __name__ == "__main__":
    main()
