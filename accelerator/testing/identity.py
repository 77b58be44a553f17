"""What the accelerator says about itself, and the small things that fit nowhere else."""

from __future__ import annotations

from accelerator.abstract_accelerator import DeepSpeedAccelerator
from accelerator.structure import structural_faults
from accelerator.testing.model import Subject, does_not_apply, expect, expect_equal, expect_type


def has_every_member(subject: Subject) -> None:
    """All members of the contract are there, methods as methods and properties as properties."""
    faults = structural_faults(subject.accelerator)
    expect(not faults, "no structural fault", "; ".join(faults))


def sets_its_names_when_constructed(subject: Subject) -> None:
    """The constructor sets _name, _communication_backend_name and _compile_backend, which the methods answer."""
    accelerator = subject.accelerator
    if not isinstance(accelerator, DeepSpeedAccelerator):
        does_not_apply("the class does not descend from DeepSpeedAccelerator")
    for name in ("_name", "_communication_backend_name", "_compile_backend"):
        expect(name in vars(accelerator), f"the attribute {name} set in __init__", "none")
    expect_type("_name", accelerator._name, str)
    expect_equal("_compile_backend", accelerator._compile_backend, accelerator.get_compile_backend())
    expect_equal(
        "_communication_backend_name",
        accelerator._communication_backend_name,
        accelerator.communication_backend_name(),
    )


def answers_yes_or_no(subject: Subject) -> None:
    """Every question for a yes or no is answered by a bool, never by None."""
    for name in (
        "is_synchronized_device",
        "use_host_timers",
        "resolves_data_dependency",
        "handles_memory_backpressure",
        "supports_nvtx_domain",
        "is_triton_supported",
        "prefer_triton_grouped_mm",
        "is_available",
    ):
        expect_type(f"{name}()", getattr(subject.accelerator, name)(), bool)


def synchronized_device_is_consistent(subject: Subject) -> None:
    """A synchronized device is timed by the host and needs no ordering and no back-pressure from outside."""
    accelerator = subject.accelerator
    if not accelerator.is_synchronized_device():
        does_not_apply("the device works on while the host goes on")
    for name in ("use_host_timers", "resolves_data_dependency", "handles_memory_backpressure"):
        expect_equal(f"{name}()", getattr(accelerator, name)(), True)


def communication_backend_is_known(subject: Subject) -> str:
    """communication_backend_name() is None or a backend that torch.distributed knows."""
    name = subject.accelerator.communication_backend_name()
    if name is None:
        return "the device has none"
    expect_type("communication_backend_name()", name, str)
    import torch.distributed

    if not torch.distributed.is_available():
        return f"{name}; this torch has no torch.distributed to ask"
    known = torch.distributed.Backend.backend_list
    expect(name in known, f"one of {', '.join(known)}", name)
    return str(name)


def ranges_open_and_close(subject: Subject) -> None:
    """range_push() and range_pop() take a message, a domain and a category, and nest."""
    accelerator = subject.accelerator
    accelerator.range_push("outer")
    accelerator.range_push("inner", domain="conformance", category="check")
    accelerator.range_pop(domain="conformance")
    accelerator.range_pop()


def lazy_call_runs_once(subject: Subject) -> None:
    """On a device that is initialised, lazy_call() has run its callback, once, when it returns."""
    subject.accelerator.synchronize()  # initialises the device
    calls: list[int] = []
    subject.accelerator.lazy_call(lambda: calls.append(1))
    expect_equal("number of calls", len(calls), 1)


CHECKS = (
    has_every_member,
    sets_its_names_when_constructed,
    answers_yes_or_no,
    synchronized_device_is_consistent,
    communication_backend_is_known,
    ranges_open_and_close,
    lazy_call_runs_once,
)
