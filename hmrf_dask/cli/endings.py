"""How a command ends early: by a signal, or because nobody reads what it prints."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

INTERRUPTED = 130  # what shells give a command that Ctrl-C ended
UNREAD = 141  # and one whose reader went away, such as `head`
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SAME_SIGNAL = 1.0  # seconds: `timeout` sends its signal to a process, then to its group


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: what is open is closed on the way out, as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number


class _Handler:
    """Raises on the first signal, unless that has to wait, and ends the process on a later one."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.waiting = 0
        self.pending: EndedBySignal | None = None

    def __call__(self, number: int, _: Any) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            logging.disable()  # what is closed under the feet of others makes them complain
            self.pending = EndedBySignal(number)
            self.raise_if_pending()
        elif now - self.first > _SAME_SIGNAL:
            os._exit(128 + number)

    def raise_if_pending(self) -> None:
        """Raise what came, once nothing has to be finished first."""
        if self.pending is not None and not self.waiting:
            error, self.pending = self.pending, None
            raise error


_handlers: list[_Handler] = []


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise EndedBySignal inside when SIGTERM or SIGHUP comes; a second one ends at once.

    What ignores a signal, such as a command under `nohup`, still does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handler = _Handler()
    _handlers.append(handler)
    heard = [number for number in _SIGNALS if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, handler)
    try:
        yield
    finally:
        _handlers.remove(handler)
        for number in heard:
            signal.signal(number, before[number])
        if handler.first is not None:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def finished_first() -> Iterator[None]:
    """Let a signal that comes inside end the command only after it: half of it would be left."""
    for handler in _handlers:
        handler.waiting += 1
    try:
        yield
    finally:
        for handler in _handlers:
            handler.waiting -= 1
            handler.raise_if_pending()  # in place of what fails because children got it too


def forget_stdout() -> None:
    """Write nothing more to a pipe that nobody reads, not even when Python ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def leave(code: int) -> NoReturn:
    """End the process at once: threads that still compute would be waited for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
