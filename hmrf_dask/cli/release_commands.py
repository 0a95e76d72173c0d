"""Commands about what a job found: a text put to its model, groups as a table."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import click

from hmrf_dask.cli.group import (
    HmrfCommand,
    Place,
    PlaceOfOutput,
    Whole,
    examples,
    how_to_print,
    print_result,
)
from hmrf_dask.parameters import LARGEST_INT32, RANGES, Range

CLUSTERS = Range(0, LARGEST_INT32)  # their ids


def release_option(help_text: str = "An earlier release that is kept.") -> Callable[[Any], Any]:
    """Return the option that names a release other than the last one."""
    return click.option(
        "--release",
        type=Whole(RANGES["release"]),
        metavar="N",
        help=f"{help_text}  [default: the last one]",
    )


@click.command(
    cls=HmrfCommand,
    short_help="Say which cluster a text belongs to.",
    epilog=examples(
        'hmrf-dask classify tickets-clusters/out "the card was charged twice"',
        "hmrf-dask classify tickets-clusters/out --json < lines.txt",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.argument("text", required=False)
@release_option()
@how_to_print
def classify(
    output: str, text: str | None, release: int | None, as_json: bool, quiet: bool
) -> None:
    """Say which cluster of an OUTPUT a TEXT (in quotes) belongs to; without one, each stdin line.

    A text becomes a row by the words of the release, and its cluster is the nearest one, as for
    documents that `run --predict` adds.
    """
    from hmrf_dask.jobs.released import classify_texts

    result = classify_texts(output, _given(text), release=release)
    print_result(result, as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Write the cluster of every document to a file.",
    epilog=examples(
        "hmrf-dask export tickets-clusters/out groups.csv",
        "hmrf-dask export tickets-clusters/out groups.parquet --release 3",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.argument("file", type=Place())
@release_option()
@how_to_print
def export(output: str, file: str, release: int | None, as_json: bool, quiet: bool) -> None:
    """Write the cluster of every document of an OUTPUT to a FILE (.csv, .jsonl, .parquet).

    Columns are doc_id, cluster, name and those that the manifest names in documents.keep. Clusters
    keep their numbers from release to release.
    """
    from hmrf_dask.jobs.export import export_groups

    print_result(export_groups(output, file, release=release), as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Say what changed between two releases.",
    epilog=examples(
        "hmrf-dask diff tickets-clusters/out",
        "hmrf-dask diff tickets-clusters/out 3 7 -n 100 --json",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.argument("before", metavar="[A]", required=False, type=Whole(RANGES["release"]))
@click.argument("after", metavar="[B]", required=False, type=Whole(RANGES["release"]))
@click.option("-n", "most", type=Whole(RANGES["batch"]), default=20, show_default=True,
              help="Documents that moved, and ways they went, to list.")  # fmt: skip
@how_to_print
def diff(
    output: str, before: int | None, after: int | None, most: int, as_json: bool, quiet: bool
) -> None:
    """Say what changed in an OUTPUT from release A to B: what moved where, what came and went.

    Without numbers it is the last release and the one before; `inspect` lists which are kept. All
    documents that moved with the last release are in its moved.parquet.
    """
    from hmrf_dask.jobs.changes import difference

    result = difference(output, before, after, most=most)
    print_result(result, as_json=as_json, quiet=quiet)


@click.command(
    cls=HmrfCommand,
    short_help="Name, merge, split or freeze clusters.",
    epilog=examples(
        'hmrf-dask edit tickets-clusters/out --rename 3 "Billing"',
        "hmrf-dask edit tickets-clusters/out --merge 3,7",
        "hmrf-dask edit tickets-clusters/out --undo 3",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.option(
    "--rename",
    type=(Whole(CLUSTERS), str),
    metavar="CLUSTER NAME",
    help="What to call a cluster.",
)
@click.option("--merge", metavar="3,7", help="Clusters to merge; the first one keeps its number.")
@click.option("--split", type=Whole(CLUSTERS), metavar="CLUSTER", help="A cluster to split in two.")
@click.option("--freeze", type=Whole(CLUSTERS), metavar="CLUSTER",
              help="A cluster that all runs begin with as it is now.")  # fmt: skip
@click.option("--namer", metavar="MODULE:CALLABLE",
              help="Name what nobody named by a function of words and texts.")  # fmt: skip
@click.option("--undo", type=Whole(CLUSTERS), metavar="CLUSTER",
              help="Take back what was done to a cluster last.")  # fmt: skip
@how_to_print
def edit(output: str, as_json: bool, quiet: bool, **wanted: Any) -> None:
    """Name, merge, split or freeze clusters of an OUTPUT, or take that back.

    What is said is saved in the journal of the output, as answers are, and holds from run to run. A
    name is there at once; clusters are merged, split or frozen by the next run of the job.
    """
    from hmrf_dask.jobs.namers import find_namer
    from hmrf_dask.jobs.released import load_release

    verbs = {name: value for name, value in wanted.items() if value is not None}
    if len(verbs) != 1:
        raise click.UsageError(
            "give one of --rename, --merge, --split, --freeze, --namer and --undo"
        )
    ((verb, value),) = verbs.items()
    if verb == "rename" and not value[1].strip():
        raise click.UsageError("the name of --rename must not be empty; --undo takes a name back")
    if verb == "merge":
        value = _clusters(value)
    model = load_release(output)
    if verb == "namer":
        result = model.name_clusters(find_namer(value, by_file=False))
    else:
        act = getattr(model, verb)
        result = act(*value) if verb == "rename" else act(value)
    print_result(result, as_json=as_json, quiet=quiet)


def _clusters(text: str) -> list[int]:
    """Return the clusters of --merge."""
    numbers = [one.strip() for one in text.split(",")]
    if len(numbers) < 2 or not all(re.fullmatch("[0-9]{1,10}", one) for one in numbers):
        raise click.UsageError(
            f"--merge must be at least two clusters with a comma between, 3,7, got {text[:80]!r}"
        )
    return [int(one) for one in numbers]


def _given(text: str | None) -> list[str]:
    """Return the text of the command line, or the lines of stdin."""
    if text is not None:
        return [text]
    if sys.stdin.isatty():
        raise click.UsageError("give a TEXT in quotes, or lines on stdin: ... < lines.txt")
    return sys.stdin.buffer.read().decode("utf-8-sig", "replace").splitlines()
