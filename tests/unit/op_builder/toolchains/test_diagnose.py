from __future__ import annotations

import pytest

from op_builder.toolchains.diagnose import diagnose


def log(output: str, command: str = "/usr/bin/g++ -c a.cpp") -> str:
    return (
        f"[1/3] compile b.cpp\nFAILED: [code=1] a.o \n{command}\n{output}\nninja: build stopped: subcommand failed.\n"
    )


def test_source_that_speaks_of_limits_is_not_taken_for_one() -> None:
    quoted = '   12 |   throw Full("No space left on device");  // Out of memory, std::bad_alloc\n'
    found = diagnose(log(f"a.cpp:12:3: warning: unused std::bad_alloc\n{quoted}a.cpp:12:9: error: no Full\n{quoted}"))
    assert found.diagnostic == "a.cpp:12:9: error: no Full"
    assert found.remedy == ""
    assert not found.disk_full


SHORTAGES = [
    "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.",
    "virtual memory exhausted: Cannot allocate memory",
    "cc1plus: out of memory allocating 65536 bytes after a total of 4096 bytes",
    "LLVM ERROR: out of memory",
    "clang++: error: unable to execute command: Killed",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "g++: fatal error: cannot execute 'cc1plus': vfork: Resource temporarily unavailable",
    "sh: 1: Cannot fork",
    "/tmp/x.s: Fatal error: can't write: No space left on device",
    "Killed",
]


@pytest.mark.parametrize("output", SHORTAGES)
def test_fewer_commands_at_a_time_may_succeed_where_the_machine_lacked_something(output: str) -> None:
    assert diagnose(log(output)).shortage
    assert diagnose(log(output)).disk_full is ("No space left" in output)
    assert not diagnose(f"{log(output)}FAILED: [code=1] b.o \ng++ -c b.cpp\nb.cpp:1:1: error: real\n").shortage


def test_a_command_that_was_killed_without_a_word_lacked_memory() -> None:
    assert diagnose("FAILED: [code=137] a.o \ng++ -c a.cpp\nninja: build stopped: x.\n").shortage
    assert diagnose("ninja: fatal: posix_spawn: Resource temporarily unavailable\n").shortage
    assert not diagnose("FAILED: [code=1] a.o \ng++ -c a.cpp\nninja: build stopped: x.\n").shortage


# The way from the author's own code ---------------------------------------------------------------

# gcc 14 shows the source of each step.
GCC_TEMPLATE = """In file included from b.h:1,
                 from c.cpp:1:
a.h: In instantiation of 'int in(T) [with T = int]':
b.h:3:11:   required from 'int mid(T) [with T = int]'
c.cpp:5:21:   required from here
    5 | int f() { return in(3); }
      |                  ~~^~~
a.h:1:42: error: request for member 'size' in 't', which is of non-class type 'int'
    1 | template<class T> int in(T t) { return t.size(); }
      |                                        ~~^~~~
b.h:9:9: note: in expansion of macro 'LATER'"""

GCC_MACRO = """In file included from m.cpp:1:
m.cpp: In function 'int f(int)':
m.h:1:18: error: request for member 'size' in 'a', which is of non-class type 'int'
    1 | #define BAD(x) x.size()
      |                  ^~~~
m.h:2:18: note: in expansion of macro 'BAD'
    2 | #define WORSE(x) BAD(x)
      |                  ^~~
m.cpp:3:9: note: in expansion of macro 'WORSE'
    3 |  return WORSE(a); }
      |         ^~~~~
m.cpp:9:9: error: another
x.cpp:4:1: note: in expansion of macro 'OTHER'"""

CLANG_TEMPLATE = """In file included from c.cpp:1:
In file included from ./b.h:1:
./a.h:1:41: error: member reference base type 'int' is not a structure or union
    1 | template<class T> int in(T t) { return t.size(); }
      |                                        ~^~~~~
./b.h:3:9: note: in instantiation of function template specialization 'in<int>' requested here
    3 |  return in(t); }
      |         ^
c.cpp:5:18: note: in instantiation of function template specialization 'own<int>' requested here
    5 | int f() { return own(3); }
      |                  ^
1 error generated."""

CLANG_INCLUDE = """In file included from e.cpp:2:
In file included from ./n1.h:1:
./e.h:3:9: error: use of undeclared identifier 'nope'"""

NVCC_TEMPLATE = """a.h(1): error: expression must have class type but it has type "int"
  template<class T> int in(T t) { return t.size(); }
                                         ^
          detected during:
            instantiation of "int in(T) [with T=int]" at line 3 of b.h
            instantiation of "int own(T) [with T=int]" at line 5 of my ops/c.cu

1 error detected in the compilation of "c.cu"."""

NVCC_OWN_TEMPLATE = """p.cu(2): error: expression must have class type but it has type "int"
  template <class T> int s(T t) { return t.size(); }
                                         ^
          detected during instantiation of "int s(T) [with T=int]" at line 3

1 error detected in the compilation of "p.cu"."""


GCC_INCLUDE = "In file included from n1.h:1,\n                 from e.cpp:2:\ne.h:3:9: error: 'nope' was not declared"
LD_FUNCTION = "/usr/bin/ld: a.o: in function `n::f()':\na.cpp:(.text+0x5): undefined reference to `g()'"
LLD_FUNCTION = "ld.lld: error: undefined symbol: g()\n>>> referenced by a.cpp:1\n>>>               a.o:(n::f())"
LLD_TWICE = "ld.lld: error: duplicate symbol: f()\n>>> defined at b.cpp\n>>>         b.o:(f())\n>>> defined at c.cpp"
WARNING = "In file included from w.cpp:1:\nw.h:1:1: warning: old\n    1 | x\n      | ^\na.cpp:7:1: error: real"


@pytest.mark.parametrize(
    ("output", "diagnostic", "way"),
    [
        (GCC_TEMPLATE, "a.h:1:42: error: request", "required from c.cpp:5:21"),
        (GCC_MACRO, "m.h:1:18: error: request", "in a macro used at m.cpp:3:9"),
        (GCC_INCLUDE, "e.h:3:9: error: 'nope'", "included from e.cpp:2"),
        (CLANG_TEMPLATE, "./a.h:1:41: error: member", "required from c.cpp:5:18"),
        (CLANG_INCLUDE, "./e.h:3:9: error: use", "included from e.cpp:2"),
        (NVCC_TEMPLATE, "a.h(1): error: expr", "required from my ops/c.cu(5)"),
        (NVCC_OWN_TEMPLATE, "p.cu(2): error: expr", "required from p.cu(3)"),
        (LD_FUNCTION, "a.cpp:(.text+0x5): undefined reference to `g()'", "in function n::f()"),
        (LLD_FUNCTION, "ld.lld: error: undefined symbol: g()", "referenced by a.cpp:1"),
        (LLD_TWICE, "ld.lld: error: duplicate symbol: f()", "defined at b.cpp and c.cpp"),
        (WARNING, "a.cpp:7:1: error: real", ""),
    ],
)
def test_the_authors_own_place_is_named_beside_the_headers(output: str, diagnostic: str, way: str) -> None:
    first, _, second = diagnose(log(output)).diagnostic.partition("\n")
    assert first.startswith(diagnostic)
    assert second.strip() == way


# Causes and remedies ------------------------------------------------------------------------------

STABLE = "/usr/bin/g++ -std=c++17 -DTORCH_TARGET_VERSION=0x020a -c a.cpp"


@pytest.mark.parametrize(
    ("output", "diagnostic", "remedy"),
    [
        # headers
        ("a.cpp:7:5: error: 'foo' was not declared", "a.cpp:7:5: error: 'foo' was not declared", ""),
        ('k.cu(5): error: identifier "x" is undefined', 'k.cu(5): error: identifier "x" is undefined', ""),
        ("x.h:3:10: fatal error: libaio.h: No such file or directory", "x.h:3:10", "package that has libaio.h"),
        ("a.cpp:1:10: fatal error: Python.h: No such file or directory", "Python.h", "python3-dev"),
        ("a.cpp:1:10: fatal error: 'acme.h' file not found", "a.cpp:1:10", "that has acme.h"),
        ("a.cpp:1:10: fatal error: cuda_runtime.h: No such file or directory", "a.cpp", "CUDA toolkit"),
        ('k.cu(1): catastrophic error: cannot open source file "nope.h"', "k.cu(1)", "that has nope.h"),
        ("cc1plus: fatal error: my/a.cpp: No such file or directory", "cc1plus", "a.cpp is missing"),
        # libraries
        ("/usr/bin/ld: cannot find -laio: No such file or directory", "-laio", "libaio's development package"),
        ("/usr/bin/ld: skipping incompatible libx.so\n/usr/bin/ld: cannot find -lx", "cannot find", "libx's"),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "-lcudart", "CUDA toolkit"),
        # symbols
        ("a.cpp:(.text+0x5): undefined reference to `g()'\ncollect2: error: ld", "a.cpp:", "library that defines g()"),
        # standards
        ("o.cpp:2:6: error: 'x' is wrong\no.cpp:2:1: note: it is only available from C++17 onwards", "", "C++17"),
        ("o.cpp:1:1: error: no concept\no.cpp:1:1: note: only available with '-std=c++20' or", "", "-std=c++20"),
        ("o.h:1:2: error: #error This needs support for the ISO C++ 2011 standard.", "", "-std=c++11"),
        ("o.h:1:2: error: #error C++17 or later compatible compiler is required to use ATen.", "", "-std=c++17"),
        # flags
        ("g++: error: unrecognized command-line option '-mavx9000'", "g++", "does not know this flag"),
        # nvcc and its host compiler
        ("c.h:1:2: error: #error -- unsupported GNU version! gcc versions later than 15 are", "", "incompatible"),
        ("c.h:1:2: error: unsupported clang version! clang version must be less than 20 and", "", "incompatible"),
        ('/usr/include/stdlib.h(140): error: identifier "_Float32" is undefined', "_Float32", "incompatible"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_99'", "compute_99", "does not know compute_99"),
        # memory and the compiler itself
        ("g++: fatal error: Killed signal terminated program cc1plus\nstop", "g++: fatal", "ACCEL_MAX_JOBS=1"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]", "collect2", "ran out of memory"),
        ("sccache: error: Compiler killed by signal 9", "sccache", "ran out of memory"),
        ("g++: fatal error: cannot execute 'cc1plus': execvp: No such file", "g++", "belongs to the compiler"),
        ("collect2: fatal error: cannot find 'ld'", "collect2", "belongs to the compiler"),
        ("collect2: fatal error: ld terminated with signal 11 [Segmentation fault]", "collect2", "another version"),
        ("nvcc error   : 'cudafe++' died due to signal 11 (Invalid memory reference)", "cudafe", "another version"),
        ("a.cpp:3:1: internal compiler error: Segmentation fault", "a.cpp:3:1", "another version"),
        # assemblers
        ("ptxas p.ptx, line 40; error   : Unknown modifier '.x'", "ptxas p.ptx, line 40", ""),
    ],
)
def test_well_known_causes_have_their_remedy(output: str, diagnostic: str, remedy: str) -> None:
    found = diagnose(log(output))
    assert diagnostic in found.diagnostic
    assert remedy in found.remedy
    assert bool(found.remedy) is bool(remedy)
    assert found.command == "/usr/bin/g++ -c a.cpp"


@pytest.mark.parametrize(
    "output",
    [
        "a.cpp:3:4: error: ISO C++17 does not allow dynamic exception specifications",
        "a.cpp:3:4: error: 'nope' is not a member of 'std'",
        "/usr/include/c++/12/bits/stl_algo.h:1938:50: error: no match for 'operator-'",
        'a.cpp:3:4: error: static assertion failed: "internal error"',
    ],
)
def test_a_cause_of_the_authors_own_has_no_remedy(output: str) -> None:
    assert diagnose(log(output)).remedy == ""


def test_headers_that_the_binding_style_withholds_are_not_called_missing() -> None:
    found = diagnose(log("a.cpp:1:10: fatal error: Python.h: No such file or directory", STABLE))
    assert "BINDING = Binding.TORCH" in found.remedy
    assert "apt-get" not in found.remedy


# Logs of several steps ----------------------------------------------------------------------------


def test_the_output_of_other_steps_is_not_the_failed_ones() -> None:
    found = diagnose(
        "[1/4] compile one.cpp\none.cpp:1:1: warning: odd\n"
        "FAILED: [code=1] two.o \ng++ -c two.cpp\ntwo.cpp:1:1: warning: odd\n"
        "[2/4] compile three.cpp\nthree.cpp:1:1: note: no error: at all\n"
        "FAILED: [code=1] four.o \ng++ -c four.cpp\nfour.cpp:2:2: error: real\n"
        "ninja: build stopped: subcommand failed.\n"
    )
    assert found.diagnostic == "four.cpp:2:2: error: real"
    assert found.command == "g++ -c four.cpp"


@pytest.mark.parametrize(
    ("code", "words"),
    [("[code=137] ", "was ended by signal 9"), ("[code=3] ", "ended with status 3"), ("", "a.cpp:1:1: warning: odd")],
)
def test_a_step_without_any_error_is_described_by_its_end(code: str, words: str) -> None:
    found = diagnose(f"FAILED: {code}a.o \ng++ -c a.cpp\na.cpp:1:1: warning: odd\nninja: build stopped: x.\n")
    assert words in found.diagnostic
    assert found.command == "g++ -c a.cpp"
    assert "ninja" not in found.diagnostic


def test_ninjas_own_error_names_ninja() -> None:
    found = diagnose("ninja: error: '/op/a.cpp', needed by '0_a.o', missing and no known rule to make it\n")
    assert found.diagnostic.startswith("ninja: error: '/op/a.cpp'")
    assert found.command == "ninja"
    assert "/op/a.cpp is missing" in found.remedy
