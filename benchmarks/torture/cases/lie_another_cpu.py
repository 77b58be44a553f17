"""a cache built with -march=native is used on another CPU

The other CPU is QEMU's emulation of one without AVX. Python runs in it, /proc/cpuinfo describes it, and the compiler
runs in it, too, so that -march=native means that CPU.
"""

import shutil
from pathlib import Path

from benchmarks.torture.bench import EMULATOR, UNCLEAR, Bench, NotApplicable, Outcome, Run

CPU = "Nehalem"
CPUINFO = Path("/proc/cpuinfo")
HEADER = "#undef VALUE\n#ifdef __AVX2__\n#define VALUE 256\n#else\n#define VALUE 128\n#endif\n"


def run(bench: Bench) -> Outcome:
    if bench.contender.name == "Triton":
        raise NotApplicable("it compiles for a GPU here")
    if shutil.which(EMULATOR) is None:
        raise NotApplicable(f"{EMULATOR} is not installed")
    if " avx2" not in CPUINFO.read_text():
        raise NotApplicable("this machine's CPU has no AVX2")
    here = there = 1
    flags: list[str] = []
    if bench.contender.is_native:
        here, there = 256, 128
        flags = ["-march=native"]
        bench.write(1, HEADER)
    bench.prepare(*flags, expected=here)
    move_to_another_cpu(bench)
    outcome = bench.judge(load_there(bench, flags), there)
    if outcome.word == UNCLEAR:
        bench.clear_cache()
        if load_there(bench, flags).status != 0:
            raise NotApplicable(f"it fails in the emulator with an empty cache, too: {outcome.detail}")
    return outcome


def load_there(bench: Bench, flags: list[str]) -> Run:
    """Load in the emulator, which takes longer."""
    return bench.start(*flags, TORTURE_COMPILER_CPU=CPU).wait(timeout_s=300)


def move_to_another_cpu(bench: Bench) -> None:
    """Let the next programs run in the emulator."""
    described = []
    for line in CPUINFO.read_text().splitlines():
        name, colon, value = line.partition(":")
        if name.strip() == "model name":
            value = f" {CPU}"
        if name.strip() == "flags":
            value = " ".join(word for word in value.split(" ") if not word.startswith(("avx", "fma", "f16c", "bmi")))
        described.append(name + colon + value)
    file = bench.root / "cpuinfo"
    file.write_text("\n".join(described) + "\n")
    script = f'mount --bind {file} {CPUINFO} && exec "$@"'
    bench.prefix = ("unshare", "--mount", "sh", "-c", script, "sh", EMULATOR, "-cpu", CPU)
