"""Of a failed build's output: the first real error, the command, and the remedy where it is known."""

from __future__ import annotations

import pytest

from op_builder.engine.diagnose import diagnose


def log(output: str, command: str = "/usr/bin/g++ -c a.cpp") -> str:
    return (
        f"[1/3] compile b.cpp\nFAILED: [code=1] a.o \n{command}\n{output}\nninja: build stopped: subcommand failed.\n"
    )


@pytest.mark.parametrize(
    ("output", "diagnostic", "remedy"),
    [
        (
            "In file included from a.cpp:1:\nx.h:3:10: fatal error: libaio.h: No such file or directory\n"
            "    3 | #include <libaio.h>\ncompilation terminated.",
            "x.h:3:10: fatal error: libaio.h: No such file or directory",
            "include_paths()",
        ),
        ("a.cpp:7:5: error: 'foo' was not declared", "a.cpp:7:5: error: 'foo' was not declared", ""),
        (
            "/usr/bin/ld: cannot find -lfoo: No such file or directory\ncollect2: error: ld returned 1 exit status",
            "/usr/bin/ld: cannot find -lfoo: No such file or directory",
            "development package",
        ),
        (
            "/usr/bin/ld: a.o: in function `f':\na.cpp:(.text+0x5): undefined reference to `g()'",
            "a.cpp:(.text+0x5): undefined reference to `g()'",
            "extra_ldflags()",
        ),
        (
            "/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version!",
            "/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version!",
            "set CXX",
        ),
        ('k.cu(5): error: identifier "x" is undefined', 'k.cu(5): error: identifier "x" is undefined', ""),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_10'", "", "TORCH_CUDA_ARCH_LIST"),
        (
            "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.",
            "g++: fatal error: Killed signal terminated program cc1plus",
            "ACCEL_MAX_JOBS=1",
        ),
        (
            "a.cpp:1:10: fatal error: Python.h: No such file or directory",
            "a.cpp:1:10: fatal error: Python.h: No such file or directory",
            "python3-dev",
        ),
        (
            "c.h:2:2: error: #error C++20 or later is needed",
            "c.h:2:2: error: #error C++20 or later is needed",
            "standard",
        ),
    ],
)
def test_cause_and_remedy(output: str, diagnostic: str, remedy: str) -> None:
    found = diagnose(log(output))
    assert diagnostic in found.diagnostic
    assert remedy in found.remedy
    assert found.command == "/usr/bin/g++ -c a.cpp"


def test_warnings_before_the_error_are_passed_over() -> None:
    found = diagnose(log("a.cpp:1:1: warning: unused error: x\na.cpp:2:2: note: here\na.cpp:9:9: error: real"))
    assert found.diagnostic == "a.cpp:9:9: error: real"


def test_a_full_disk_is_recognised() -> None:
    assert diagnose(log("/tmp/x.s: Fatal error: can't write: No space left on device")).disk_full


def test_an_output_without_any_error_still_says_something() -> None:
    assert diagnose("something odd\n").diagnostic == "something odd"
    assert diagnose("").diagnostic
