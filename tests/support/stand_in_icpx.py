"""A stand-in for oneAPI's ``icpx``: it checks its arguments and lets g++ compile the host side.

It cannot compile device code: kernels in the objects it makes are host functions, which nothing calls. What is
compiled is the code around them, against the SYCL runtime's real headers, with the host flags that it was given.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile

# The options of the project and of torch's extensions, in addition to those that Python was compiled with.
KNOWN = re.compile(
    r"-fsycl|-fsycl-targets=(spir64_gen,)?spir64|-sycl-std=2020|-fsycl-host-compiler=\S+|-fsycl-host-compiler-options=.*"
    r"|-fsycl-link|--offload-compress|-fp-model=precise|-no-ftz|-ffp-contract=off|-fPIC|-fvisibility=hidden|-fno-(math-errno|trapping-math)"
    r"|-ffile-prefix-map=\S+|-[IDU].+|-O[0123]|-std=c\+\+(17|20)|-W(all|extra)|-pthread|-MD|-c"
)
OF_PYTHON = shlex.split(" ".join(filter(None, map(sysconfig.get_config_var, ("CFLAGS", "CCSHARED")))))
# icpx's own default is -fp-model=fast, with denormals flushed.
REQUIRED = ("-fp-model=precise", "-no-ftz", "-ffp-contract=off")
VALUED = ("-o", "-x", "-MF", "-include", "-isystem", "-Xs", "-I", "-D")

# The header from icpx's device pass to its host pass lists the kernels. Here any function may be one.
INTEGRATION = """
#include <sycl/ext/oneapi/experimental/free_function_traits.hpp>
template <class... Parameters, void (*Function)(Parameters...)>
struct sycl::ext::oneapi::experimental::is_kernel<Function> { static constexpr bool value = true; };
"""


def main(arguments: list[str]) -> int:
    """Log the call, refuse what icpx would not know, and do the host compiler's part."""
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        log.write(json.dumps(arguments) + "\n")
    if arguments == ["--version"]:
        print("Intel(R) oneAPI DPC++/C++ Compiler 2026.2.0 (2026.2.0.20260930)")
        return 0
    if arguments[:1] == ["-dM"]:
        print('#define __VERSION__ "Intel(R) LLVM 2026.2.0"')
        return 0
    words = iter(arguments)
    values: dict[str, list[str]] = {}
    files, flags = [], []
    for word in words:
        if word in VALUED:
            values.setdefault(word, []).append(next(words))
        elif not word.startswith("-"):
            files.append(word)
        elif KNOWN.fullmatch(word) or word in OF_PYTHON:
            flags.append(word)
        else:
            print(f"icpx: error: unknown argument: '{word}'", file=sys.stderr)
            return 1
    if "-fsycl" not in flags or not any(flag.startswith("-fsycl-targets=") for flag in flags):
        print("icpx: error: no -fsycl, or no targets", file=sys.stderr)
        return 1
    (output,) = values["-o"]
    if "-fsycl-link" in flags:
        return subprocess.call(["g++", "-x", "c++", "-c", os.devnull, "-o", output])
    (host,) = [flag.partition("=")[2] for flag in flags if flag.startswith("-fsycl-host-compiler=")]
    (for_host,) = [flag.partition("=")[2] for flag in flags if flag.startswith("-fsycl-host-compiler-options=")]
    if values["-x"] != ["c++"] or "-c" not in flags or len(files) != 1:
        print(f"icpx: error: one C++ file is expected: {files}", file=sys.stderr)
        return 1
    if missing := [flag for flag in REQUIRED if flag not in flags]:
        print(f"icpx: error: kernels would not be exact without {missing}", file=sys.stderr)
        return 1
    depfile = [word for name in values.get("-MF", []) for word in ("-MD", "-MF", name)]
    if any(shlex.split(for_host).count(text) != 1 for text in values.get("-include", [])):
        print("icpx: error: the host's pass does not read the same texts", file=sys.stderr)
        return 1
    places = [word for name in values.get("-isystem", []) for word in ("-isystem", name)]
    with tempfile.TemporaryDirectory() as directory:
        integration = os.path.join(directory, "integration.h")
        with open(integration, "w") as file:
            file.write(INTEGRATION)
        # -w: the attribute of a kernel is for the device's pass.
        first = ["-w", "-include", integration]
        command = [host, *first, *shlex.split(for_host), *places, *depfile, "-c", "-x", "c++", files[0], "-o", output]
        return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
