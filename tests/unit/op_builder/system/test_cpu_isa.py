"""The CPU's instruction sets, from feature flags."""

from __future__ import annotations

import pytest

from op_builder import env
from op_builder.errors import EnvironmentValueError
from op_builder.system import cpu_isa

AVX2 = frozenset({"sse2", "avx", "avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", frozenset({"sse2"}), ("baseline",)),
        ("AMD64", AVX2, ("baseline", "avx2")),
        ("x86_64", AVX2 - {"fma"}, ("baseline",)),
        ("x86_64", AVX512, ("baseline", "avx2", "avx512")),
        ("x86_64", AVX512 - {"avx512bw"}, ("baseline", "avx2")),
        ("x86_64", AVX512 - {"avx2"}, ("baseline",)),
        ("aarch64", frozenset({"asimd"}), ("baseline", "neon")),
        ("arm64", frozenset(), ("baseline", "neon")),
        ("riscv64", frozenset(), ("baseline",)),
    ],
)
def test_isas_follow_from_machine_and_flags(machine, flags, expected):
    assert cpu_isa.isas_of(machine, flags) == expected


def test_the_best_is_chosen_and_the_variable_caps_it():
    supported = cpu_isa.supported_isas()
    with env.scope(ACCEL_CPU_ISA=None):
        assert cpu_isa.chosen_isa() == supported[-1]
    for name in supported:
        with env.scope(ACCEL_CPU_ISA=name):
            assert cpu_isa.chosen_isa() == name


@pytest.mark.parametrize("name", ["avx", "native", "neon"])
def test_a_name_this_cpu_cannot_run_is_refused_with_the_allowed_ones(name):
    with pytest.raises(EnvironmentValueError, match=f"ACCEL_CPU_ISA='{name}'.*baseline, avx2"):
        cpu_isa.best_isa(("baseline", "avx2"), name)
