"""Answers: the lines of a journal as what they say together, for a fit or for review."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from hmrf_dask.answers.beliefs import Beliefs, Dispute, Group, believe
from hmrf_dask.answers.error_rates import Annotator
from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import HmrfWarning, InvalidInputError
from hmrf_dask.parameters import RANGES


class Answers:
    """What people answered, some of it maybe wrong, and what it comes to.

    Parameters
    ----------
    entries : iterable of Entry
        Lines of a journal, in any order.
    trust : float or mapping of str to float, optional
        The probability that an answer is right, of all annotators or of each, where it is known.
        Otherwise it is learned from answers that test each other.
    n_clusters : int, optional
        How many groups there are, where it is known.

    Attributes
    ----------
    entries : tuple of Entry

    Examples
    --------
    >>> answers = Answers([Entry("1", "pair", ("x", "r"), answer="same")], trust=1.0)
    >>> answers.constraints().must_link.tolist()
    [['r', 'x']]
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        *,
        trust: float | Mapping[str, float] | None = None,
        n_clusters: int | None = None,
    ) -> None:
        self.entries = _checked(entries)
        known = trust if trust is None or isinstance(trust, Mapping) else {"": trust}
        for name, value in (known or {}).items():
            if RANGES["share"].problem(value):
                raise InvalidInputError(
                    f"trust must be a probability from 0 to 1, got {value!r:.60} for {name!r:.60}"
                )
        if n_clusters is not None and RANGES["neighbourhoods"].problem(n_clusters):
            raise InvalidInputError(
                f"n_clusters must be an integer from 2, or None, got {n_clusters!r:.60}"
            )
        if trust is not None and not isinstance(trust, Mapping):
            known = {entry.annotator: trust for entry in self.entries}
        self._trust, self._n_clusters = known, n_clusters

    @classmethod
    def read(
        cls,
        address: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, Any] | None = None,
        trust: float | Mapping[str, float] | None = None,
        n_clusters: int | None = None,
    ) -> Answers:
        """Return the answers of a journal: a file of lines, or a folder in an object store.

        Lines that are no answers are left out with a warning.

        Parameters
        ----------
        address : str or path
        storage_options : mapping, optional
            What fsspec needs to reach a store.
        trust : float or mapping of str to float, optional
        n_clusters : int, optional

        Examples
        --------
        >>> from hmrf_dask.answers.journal import open_journal
        >>> open_journal("memory://answers/journal").append(
        ...     Entry("1", "pair", ("x", "r"), answer="different")
        ... )
        >>> Answers.read("memory://answers/journal", trust=1.0).constraints().cannot_link.tolist()
        [['r', 'x']]
        """
        lines = open_journal(address, storage_options).entries()
        if lines.bad:
            bad = lines.bad[0]
            more = f" ({len(lines.bad):,} lines in all)" if len(lines.bad) > 1 else ""
            text = f"{address}, line {bad.line} is left out: {bad.reason}{more}; correct it"
            warnings.warn(text, HmrfWarning, stacklevel=2)
        return cls(lines.entries, trust=trust, n_clusters=n_clusters)

    def __len__(self) -> int:
        """Return how many lines there are."""
        return len(self.entries)

    def __repr__(self) -> str:
        """Say how many documents are settled, and how many are not."""
        return (
            f"Answers({len(self.beliefs.anchor_of)} documents in {len(self.groups)} groups, "
            f"{len(self.beliefs.open)} open, {len(self.disputes)} disputed)"
        )

    @cached_property
    def beliefs(self) -> Beliefs:
        """All that the answers say together."""
        return believe(self.entries, trust=self._trust, n_groups=self._n_clusters)

    @property
    def groups(self) -> tuple[Group, ...]:
        """Documents that belong together."""
        return self.beliefs.groups

    @property
    def disputes(self) -> tuple[Dispute, ...]:
        """Settled documents about which somebody said something else."""
        return self.beliefs.disputes

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Documents that many answers did not settle, for review."""
        return self.beliefs.set_aside

    @property
    def annotators(self) -> dict[str, Annotator]:
        """What is known of everybody who answered."""
        return self.beliefs.annotators

    def constraints(self) -> Constraints:
        """Return the pairs that a fit takes: of settled documents, with the trust they have."""
        return self.beliefs.constraints()


def _checked(entries: Any) -> tuple[Entry, ...]:
    """Return entries, or raise InvalidInputError that says which is none."""
    checked = tuple(entries) if isinstance(entries, Iterable) else (entries,)
    for entry in checked:
        if not isinstance(entry, Entry):
            raise InvalidInputError(
                f"entries must be lines of a journal (Entry), got {entry!r:.60}; make one of it"
            )
        if problem := entry.problem:
            raise InvalidInputError(f"entry {entry.id!r:.60}: {problem}; correct it")
    return checked
