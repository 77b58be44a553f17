"""Device strings, indices and records."""

from __future__ import annotations

import torch

from accelerator.errors import describe
from accelerator.testing.model import (
    Subject,
    UnmetExpectationError,
    does_not_apply,
    expect,
    expect_equal,
    expect_type,
)

_BOUND = "set_device() takes any number and changes nothing: the process is bound elsewhere"


def device_count_is_positive(subject: Subject) -> str:
    """An available accelerator has at least one device."""
    count = subject.accelerator.device_count()
    expect_type("device_count()", count, int)
    expect(count >= 1, "device_count() of at least 1", count)
    return f"{count}"


def device_strings_parse(subject: Subject) -> str:
    """torch.device parses every device_name(), and device() is the same device."""
    accelerator = subject.accelerator
    for index in (None, *subject.indices()):
        name = accelerator.device_name(index)
        expect_type(f"device_name({index})", name, str)
        parsed = torch.device(name)
        expect_type(f"device({index})", accelerator.device(index), torch.device)
        expect_equal(f"device({index})", accelerator.device(index), parsed)
        expect_equal(f"type of device({index})", parsed.type, accelerator.device_name().partition(":")[0])
        # A device without an index in its string is one device, whatever the number.
        expect(parsed.index in (None, index), f"the index {index} or none in {name!r}", parsed.index)
    return str(accelerator.device_name())


def current_device_is_named(subject: Subject) -> str:
    """current_device() is an int, and current_device_name() its device string."""
    accelerator = subject.accelerator
    current = accelerator.current_device()
    expect_type("current_device()", current, int)
    counts = current in subject.indices() or subject.ignores_indices()  # on the host it is the launcher's rank
    expect(counts, f"current_device() below {accelerator.device_count()}", current)
    expect_equal("current_device_name()", accelerator.current_device_name(), accelerator.device_name(current))
    return str(accelerator.current_device_name())


def set_device_round_trips(subject: Subject) -> None:
    """After set_device(i), current_device() is i, for every device."""
    if subject.ignores_indices():
        does_not_apply(_BOUND)
    with subject.each_device() as devices:
        for index in devices:
            expect_equal(f"current_device() after set_device({index})", subject.accelerator.current_device(), index)


def index_out_of_range_is_an_error(subject: Subject) -> str:
    """set_device() refuses the index after the last device, and -1."""
    if subject.ignores_indices():
        does_not_apply(_BOUND)
    accelerator = subject.accelerator
    former, raised = accelerator.current_device(), ""
    for outside in (accelerator.device_count(), -1):  # torch.cuda takes -1 and does nothing
        try:
            accelerator.set_device(outside)
        except (AttributeError, NameError, TypeError) as error:
            expected = f"expected an error about the index {outside}"
            raise UnmetExpectationError(f"{expected}, found {describe(error)}") from error
        except Exception as error:  # torch's own error differs from device to device
            raised = type(error).__name__
        else:
            raise UnmetExpectationError(f"expected an error from set_device({outside}), found none")
        finally:
            accelerator.set_device(former)
    return raised


def synchronize_returns(subject: Subject) -> None:
    """synchronize() waits for the current device, and for each by its index."""
    subject.accelerator.synchronize()
    for index in subject.indices():
        subject.accelerator.synchronize(index)


def properties_are_told(subject: Subject) -> str:
    """get_device_properties() answers for the current and for each device; None where there is no record."""
    found = [subject.accelerator.get_device_properties(index) for index in (None, *subject.indices())]
    expect(len({type(each) for each in found}) == 1, "records of one type", [type(each).__name__ for each in found])
    return "no record" if found[0] is None else str(getattr(found[0], "name", type(found[0]).__name__))


def capability_is_told(subject: Subject) -> str:
    """device_capability() answers for the current and for each device; None where there is no such thing."""
    found = [subject.accelerator.device_capability(index) for index in (None, *subject.indices())]
    expect(len({type(each) for each in found}) == 1, "capabilities of one type", found)
    return "none" if found[0] is None else type(found[0]).__name__ if isinstance(found[0], dict) else str(found[0])


CHECKS = (
    device_count_is_positive,
    device_strings_parse,
    current_device_is_named,
    set_device_round_trips,
    index_out_of_range_is_an_error,
    synchronize_returns,
    properties_are_told,
    capability_is_told,
)
