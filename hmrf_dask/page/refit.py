"""A fit with the answers so far, in a process of its own while the page goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from hmrf_dask.errors import HmrfError, InvalidInputError, in_words
from hmrf_dask.progress import Tell

JSON = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a refit brought: the release before, that after, and where documents went.

    Examples
    --------
    >>> Outcome({"J": 2.0}, {"J": 1.0}).flows
    []
    """

    before: JSON | None
    after: JSON
    flows: list[JSON] = field(default_factory=list)


class Refit:
    """One refit at a time, in the background.

    Parameters
    ----------
    work : callable
        Does it, calling what it is given with each step, and returns what it brought; None where
        there is no job to run again.
    refused : str
        Why there is none, where `work` is None.
    """

    def __init__(
        self,
        work: Callable[[Tell], Outcome] | None = None,
        refused: str = "There is no job to run again here.",
    ) -> None:
        self._work, self._step = work, dict[str, Any]()
        self.refused = "" if work else refused
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="refit")
        self._future: Future[Outcome] | None = None

    def start(self) -> None:
        """Begin, or raise InvalidInputError where one is at work."""
        if self._work is None:
            raise InvalidInputError(self.refused)
        if self._future is not None and not self._future.done():
            raise InvalidInputError("a refit must have ended before the next, got one at work")
        self._step = {"step": "starting", "done": 0, "of": 0}
        self._future = self._pool.submit(self._work, self._tell)

    def _tell(self, step: JSON) -> None:
        self._step = step

    def view(self) -> JSON:
        """Return how far it is, or what it brought."""
        if self._future is None:
            return {"state": "none", "refused": self.refused}
        if not self._future.done():
            return {"state": "running", **self._step}
        error = self._future.exception()
        if error is not None:
            words = str(error) if isinstance(error, HmrfError) else in_words(error)
            return {"state": "failed", "words": words, "refused": ""}
        outcome = self._future.result()
        return {
            "state": "done",
            "refused": "",
            "before": outcome.before,
            "after": outcome.after,
            "flows": outcome.flows,
        }

    def close(self) -> None:
        """Wait for nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
