"""Names that people gave to clusters: names.csv of an output, names of groups in its journal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Final

from hmrf_dask.answers.records import NAME
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.jobs.journal import take
from hmrf_dask.report.content import excerpt
from hmrf_dask.storage.stores import Storage

FILE: Final = "names.csv"  # in an output: cluster,name
LONGEST: Final = 80
MOST_BYTES: Final = 2**20


def names_in_file(storage: Storage) -> dict[int, str]:
    """Return the names by cluster of names.csv, none where there is no such file."""
    if FILE not in storage.names(""):
        return {}
    data = storage.read(FILE)
    if len(data) > MOST_BYTES:
        raise InvalidInputError(f"{FILE} must have at most {MOST_BYTES:,} bytes, got {len(data):,}")
    return parsed(data)


def parsed(data: bytes) -> dict[int, str]:
    """Return names by cluster, of lines of a cluster's id and its name.

    Examples
    --------
    >>> parsed(b"3,Billing")
    {3: 'Billing'}
    """
    names = {}
    for number, row in enumerate(csv.reader(io.StringIO(data.decode("utf-8-sig"))), 1):
        if not row or (number == 1 and row[0].strip() == "cluster"):
            continue
        if len(row) != 2 or not row[0].strip().isdecimal():
            raise InvalidInputError(
                f"{FILE}, line {number} must have the id of a cluster and its name, got "
                f"{','.join(row)[:80]!r}; correct it"
            )
        names[int(row[0])] = excerpt(row[1], LONGEST)
    return names


def named_documents(output: str) -> dict[str, str]:
    """Return what people called the groups of documents, by document, the last name."""
    return {
        entry.documents[0]: excerpt(entry.answer, LONGEST)
        for entry in standing(take(output).read.entries)
        if entry.kind == NAME and entry.answer.strip()
    }


def names_of(
    in_file: Mapping[int, str], named: Mapping[str, str], clusters: Mapping[str, int]
) -> dict[int, str]:
    """Return the names by cluster: what the file has wins over names of documents there.

    Examples
    --------
    >>> names_of({3: "Billing"}, {"a": "Bills", "b": "Cars"}, {"a": 3, "b": 4})
    {3: 'Billing', 4: 'Cars'}
    """
    from_journal = {clusters[one]: name for one, name in named.items() if one in clusters}
    return dict(sorted({**from_journal, **in_file}.items()))
