"""What a job tells of its progress, for whoever shows it: one call for every step and commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Called with {"step": words, "done": n, "of": n} while a step goes on, and with the record of
# every commit of a fit: {"phase", "iteration", "J", "moved", ...}.
Tell = Callable[[dict[str, Any]], None]


def nothing(event: dict[str, Any]) -> None:
    """Tell nobody."""
