"""One table of versions: client, scheduler and workers; what of it refuses a cluster, in words."""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from hmrf_dask.errors import ConfigurationError, counted
from hmrf_dask.flow.clients import SilentClusterError, ask, client_of
from hmrf_dask.flow.cluster import workers_by_name
from hmrf_dask.kernels.compiled import LIBRARIES, kernel_path

log = logging.getLogger("hmrf_dask")

OURS = "hmrf-dask"
INSTRUCTIONS = "instruction set"
DASK = ("dask", "distributed")
COLUMNS = ("python", OURS, *LIBRARIES, *DASK, INSTRUCTIONS)
SECONDS = 20.0  # in which all must answer
# What a scheduler needs to read graphs: the same Python, and our functions, whose bits it never
# computes.
_OF_SCHEDULER = ("python", OURS)
_QUESTION = "scheduler and workers must say which versions they have"

Versions = Mapping[str, str]  # by column; "missing" where it is not installed
MISSING = "missing"


def instruction_set() -> str:
    """Return the kind of processor that kernels are compiled for here, with its features hashed.

    Examples
    --------
    >>> instruction_set().count("/")
    1
    """
    path = kernel_path()
    return f"{path['cpu']}/{path['features'][:4]}"


def versions_here() -> dict[str, str]:
    """Return the versions of this process.

    Examples
    --------
    >>> tuple(versions_here()) == COLUMNS
    True
    """
    named = {name: version(name) for name in COLUMNS[1:-1]}
    return {"python": platform.python_version(), **named, INSTRUCTIONS: instruction_set()}


def workers_in_words(client: Any) -> str:
    """Return how many workers a cluster has, and what they have together."""
    workers = workers_by_name(client).values()
    threads = sum(int(worker["nthreads"]) for worker in workers)
    memory = sum(int(worker["memory_limit"] or 0) for worker in workers)
    return (
        f"{counted(len(workers), 'worker')}, {counted(threads, 'thread')}, {memory / 2**30:.1f} GiB"
    )


def versions_of(client: Any) -> dict[str, Versions]:
    """Return the versions of "client", "scheduler" and every worker, by address.

    Of a cluster that gives no answer soon they are the client's alone: it is waited for, and who is
    silent is named, by `flow.cluster.check_workers`.
    """
    table: dict[str, Versions] = {"client": versions_here()}
    try:
        table |= _versions_there(client)
        if not differences(table)[0]:  # else nobody has to import a compiler to be refused
            for name, instructions in _instruction_sets(client, list(table)[2:]).items():
                table[name] = {**table[name], INSTRUCTIONS: instructions}
    except SilentClusterError as error:
        log.warning("%s; what is not known is not compared", error)
    return table


def _versions_there(client: Any) -> dict[str, Versions]:
    """Return the versions of scheduler and workers, by Dask's own question.

    Workers that lack this package answer it, too.
    """
    packages = [OURS, *LIBRARIES]
    answer = ask(client, _QUESTION, lambda: client.get_versions(packages=packages), seconds=SECONDS)
    workers = {name: _row(worker) for name, worker in answer["workers"].items()}
    return {"scheduler": _row(answer["scheduler"]), **workers}


def _instruction_sets(client: Any, workers: Sequence[str]) -> dict[str, str]:
    """Return the instruction sets of workers that are there still."""
    if not workers:
        return {}
    answers = ask(
        client,
        _QUESTION,
        lambda: client.run(instruction_set, workers=workers, on_error="return"),
        seconds=SECONDS,
    )
    return {name: answer for name, answer in answers.items() if isinstance(answer, str)}


def _row(versions: Mapping[str, Any]) -> dict[str, str]:
    """Return one row of what Dask's question brought; Python as 3.11.4, without what follows."""
    python = ".".join(str(versions["host"]["python"]).split(".")[:3])
    packages = {name: str(versions["packages"].get(name) or MISSING) for name in COLUMNS[1:-1]}
    return {"python": python, **packages}


def rows_of(table: Mapping[str, Versions]) -> list[str]:
    """Return the table as lines, workers that have the same in one.

    Examples
    --------
    >>> theirs = {"numpy": "2.0"}
    >>> rows_of({"client": {"numpy": "2.1"}, "tcp://a": theirs, "tcp://b": theirs})
    ['           numpy', 'client     2.1', '2 workers  2.0']
    """
    columns = [name for name in COLUMNS if any(name in row for row in table.values())]
    alike = Counter(tuple(row.items()) for name, row in table.items() if not _is_role(name))
    named = [(name, dict(row)) for name, row in table.items() if _is_role(name)]
    named += [(counted(number, "worker"), dict(row)) for row, number in alike.items()]
    cells = [["", *columns], *([who, *(row.get(c, "") for c in columns)] for who, row in named)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _is_role(name: str) -> bool:
    return name in ("client", "scheduler")


def check_versions(client: Any) -> dict[str, Versions]:
    """Log the table of versions and return it; refuse what cannot give the client's own bits."""
    table = versions_of(client)
    log.info("%s on %s", workers_in_words(client), client_of(client))
    for line in rows_of(table):
        log.info("%s", line)
    refused, remarks = differences(table)
    for remark in remarks:
        log.warning("%s; have the same releases everywhere", remark)
    if refused:
        raise ConfigurationError(
            f"scheduler and workers must have what the client has, got {'; '.join(refused)}; use "
            "one image, or one environment made of one lock file, and machines of one kind"
        )
    return table


def differences(table: Mapping[str, Versions]) -> tuple[list[str], list[str]]:
    """Return what of a table refuses a cluster, and what is only good to know, in words.

    Examples
    --------
    >>> ours = {"python": "3.11.2", "numpy": "2.1", "dask": "1"}
    >>> theirs = ours | {"numpy": "2.0", "dask": "2"}
    >>> differences({"client": ours, "scheduler": ours, "tcp://a": theirs})
    (['tcp://a with numpy 2.0, not 2.1'], ['tcp://a with dask 2, not 1'])
    """
    own = table["client"]
    refused: dict[str, list[str]] = {}
    remarks: dict[str, list[str]] = {}
    for name, row in table.items():
        foreign = [column for column in row if _plain(row, column) != _plain(own, column)]
        deciding = [column for column in foreign if _decides(name, column)]
        dask = [column for column in foreign if column in DASK]
        for chosen, words in ((deciding, refused), (dask, remarks)):
            if chosen:
                said = ", ".join(f"{one} {row[one]}, not {own.get(one)}" for one in chosen)
                words.setdefault(said, []).append(_called(name))
    return _grouped(refused), _grouped(remarks)


def _plain(row: Versions, column: str) -> str:
    """Return what of a version counts: of Python 3.11 of 3.11.4."""
    said = row.get(column, MISSING)
    return ".".join(said.split(".")[:2]) if column == "python" else said


def _decides(name: str, column: str) -> bool:
    return column in _OF_SCHEDULER if name == "scheduler" else column not in DASK


def _called(name: str) -> str:
    return "the scheduler" if name == "scheduler" else name


def _grouped(words: Mapping[str, Sequence[str]]) -> list[str]:
    """Return who is of which words, at most three by name."""
    grouped = []
    for said, names in words.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        grouped.append(f"{', '.join(names[:3])}{more} with {said}")
    return grouped
