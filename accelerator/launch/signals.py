"""The signals that end a launch: which are heeded, and that a second one does not disturb the end of it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def heeded() -> tuple[signal.Signals, ...]:
    """Of the signals that end a launch those that this process was not started with ignoring, as by ``nohup``."""
    return tuple(number for number in TO_END if signal.getsignal(number) is not signal.SIG_IGN)


class Ending:
    """How this process takes the signals that end a launch, while torch's agent runs in it."""

    def __init__(self) -> None:
        self._heeded = heeded()
        self._is_over = False

    def raise_first(self, make: Callable[[signal.Signals], Exception]) -> None:
        """Have the first of them raise what ``make`` makes of it; those that were ignored stay so.

        To be called again when somebody else has set handlers of his own.
        """

        def raise_it(number: int, _frame: FrameType | None) -> None:
            self.note_only()
            raise make(signal.Signals(number))

        if not self._is_over:
            for number in TO_END:
                signal.signal(number, raise_it if number in self._heeded else signal.SIG_IGN)

    def note_only(self) -> None:
        """From now on they do nothing: the launch is ending, and nothing may be left behind.

        Not ``SIG_IGN``, which those that are started would inherit.
        """
        self._is_over = True
        for number in TO_END:
            signal.signal(number, lambda _number, _frame: None)
