"""What clusters of a release are called: names that people gave, else their first words.

People name groups on the page, which its journal keeps, or clusters in names.csv of the output. A
cluster keeps its id from release to release, and so its name.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Final

from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import NAME
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.estimators.prediction import OUTLIER
from hmrf_dask.jobs.texts import homes_of
from hmrf_dask.releases.lock import open_output
from hmrf_dask.releases.release import Release

FILE: Final = "names.csv"  # in an output: cluster,name
OUTLIERS: Final = "outliers"  # what documents are called that are of no cluster
_WORDS: Final = 3  # that make a name
_MOST_BYTES: Final = 2**20
_CLUSTER: Final = re.compile(r"\d{1,10}")


def names_given(output: str, release: Release, *, made: bool = True) -> dict[int, str]:
    """Return the names that people gave to clusters of a release; names.csv has the last word.

    A name in the journal is that of a document's group, so it stays with the cluster that has the
    document; of several names the last one counts, and an empty one takes the name away. Names
    `made` by a namer are of clusters without another one.
    """
    entries = standing(open_journal(journal_address(output)).entries().entries)
    entries = [one for one in entries if one.kind == NAME]
    names = {one.clusters[0]: one.answer for one in entries if one.made_of} if made else {}
    named = [(one.documents[0], one.answer) for one in entries if not one.made_of]
    documents = list(dict.fromkeys(document for document, _ in named))
    homes = homes_of(output, release, documents) if named else {}
    for document, name in named:
        if document in homes and homes[document].cluster != OUTLIER:
            names[homes[document].cluster] = name
    return {cluster: name for cluster, name in (names | _in_file(output)).items() if name}


def _in_file(output: str) -> dict[int, str]:
    """Return the names of names.csv, none where there is no such file."""
    storage = open_output(output)
    if FILE not in storage.names(""):
        return {}
    data = storage.read(FILE)
    if len(data) > _MOST_BYTES:
        raise InvalidInputError(
            f"{FILE} must have at most {_MOST_BYTES:,} bytes, got {len(data):,}"
        )
    return parsed_names(data)


def parsed_names(data: bytes) -> dict[int, str]:
    """Return names by cluster, of lines of a cluster's id and its name.

    Examples
    --------
    >>> parsed_names(b"3,Billing")
    {3: 'Billing'}
    """
    names = {}
    text = data.decode("utf-8-sig", "replace")
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InvalidInputError(f"{FILE} must be CSV, got {error}; correct it") from None
    for number, row in enumerate(rows, 1):
        if not row or (number == 1 and row[0].strip() == "cluster"):
            continue
        if len(row) != 2 or not _CLUSTER.fullmatch(row[0].strip()):
            raise InvalidInputError(
                f"{FILE}, line {number} must have the id of a cluster and its name, got "
                f"{','.join(row)[:80]!r}; correct it"
            )
        names[int(row[0])] = " ".join(row[1].split())
    return names


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
