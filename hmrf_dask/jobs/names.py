"""What clusters of a release are called: names that people gave, else their first words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import NAME
from hmrf_dask.answers.standing import standing
from hmrf_dask.jobs.texts import homes_of
from hmrf_dask.releases.release import Release

_WORDS: Final = 3  # that make a name


def names_given(output: str, release: Release) -> dict[int, str]:
    """Return the names that the journal of an output has for clusters of a release.

    A name is that of a document's group, so it stays with the cluster that has the document; of
    several names the last one counts, and an empty one takes the name away.
    """
    entries = standing(open_journal(journal_address(output)).entries().entries)
    named = [(one.documents[0], one.answer) for one in entries if one.kind == NAME]
    if not named:
        return {}
    homes = homes_of(output, release, list(dict.fromkeys(document for document, _ in named)))
    names: dict[int, str] = {}
    for document, name in named:
        if document in homes:
            names[homes[document].cluster] = name
    return {cluster: name for cluster, name in names.items() if name}


def called(
    clusters: Sequence[int], words: Sequence[Sequence[str] | None], given: Mapping[int, str]
) -> list[str]:
    """Return what clusters are called: the name that was given, else the first words, else the id.

    Examples
    --------
    >>> called([3, 7, 8], [["pay", "bill", "card", "due"], ["login"], None], {7: "Access"})
    ['pay, bill, card', 'Access', 'cluster 8']
    """
    return [
        given.get(cluster) or ", ".join((own or ())[:_WORDS]) or f"cluster {cluster}"
        for cluster, own in zip(clusters, words, strict=True)
    ]
