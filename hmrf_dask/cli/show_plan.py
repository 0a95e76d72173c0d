"""The plan of a job as a person reads it in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hmrf_dask.cli.group import one_line
from hmrf_dask.cli.terminal import bold
from hmrf_dask.errors import counted
from hmrf_dask.parameters import AUTO
from hmrf_dask.progress import bytes_in_words, span

if TYPE_CHECKING:
    from hmrf_dask.jobs.plan import Plan, Workers


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield what there is, what it takes, and what it would take under other numbers of workers."""
    title = f"{plan.workers} {_unit(plan)}"
    yield (
        f"{bold(title)}: about {_span(plan.total)}, {_peaks(plan)}; rehearsed with "
        f"{plan.rehearsed_workers} on this machine for {plan.rehearsal_seconds:.0f} s"
    )
    yield from _sizes(plan)
    yield from _times(plan)
    yield from _memory(plan)
    yield from _table(plan)
    yield bold("Not measured")
    yield from (f"  {one_line(line)}" for line in plan.assumed)
    if plan.problems:
        yield bold("A run would be refused here")
        yield from (f"  {one_line(line)}" for line in plan.problems)


def _unit(plan: Plan) -> str:
    one = {"threads": "thread", "processes": "worker"}[plan.way]
    return one if plan.workers == 1 else f"{one}s"


def _span(seconds: float) -> str:
    if seconds >= 100:
        return span(seconds)
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _peaks(plan: Plan) -> str:
    driver = bytes_in_words(plan.memory["driver"])
    if plan.way == "threads":
        return f"{driver} of memory"
    return f"{driver} in the driver and {bytes_in_words(plan.memory['worker'])} in each worker"


def _sizes(plan: Plan) -> Iterator[str]:
    documents, clusters = plan.documents, plan.clusters
    doubt = f" ± {documents['plus_or_minus']:,}" if documents["plus_or_minus"] else ""
    yield bold("Sizes")
    yield (
        f"  documents  {documents['estimated']:,}{doubt} in {counted(documents['files'], 'file')} "
        f"({bytes_in_words(documents['bytes'])}); read {documents['read']:,} "
        f"({bytes_in_words(documents['bytes_read'])})"
    )
    yield (
        f"  rows       {plan.features:,} features, {documents['entries']:,.0f} of them in a "
        f"document of {documents['characters']:,} characters"
    )
    chosen = f", chosen on {clusters['chosen_on']:,} documents"
    yield f"  clusters   {clusters['n_clusters']:,}{chosen if clusters['asked'] == AUTO else ''}"
    pairs = counted(plan.answers["pairs"], "pair")
    yield f"  answers    {pairs} about {counted(plan.answers['documents'], 'document')}"


def _times(plan: Plan) -> Iterator[str]:
    yield bold("Time")
    for name, seconds in plan.seconds.items():
        bound = "  the most" if name == plan.bound_by else ""
        yield f"  {name:24} {_span(seconds):>9}{bound}"
    least, most = plan.range
    number = counted(plan.fit["iterations"], "iteration")
    yield (
        f"  {'in all':24} {_span(plan.total):>9}  {_span(least)} to {_span(most)} with half or "
        f"twice the {number}"
    )


def _memory(plan: Plan) -> Iterator[str]:
    memory, store = plan.memory, plan.store
    stay = "stay in memory" if memory["rows_stay"] else "are read in every pass: they do not fit"
    yield bold("Memory and store")
    yield (
        f"  rows {bytes_in_words(memory['rows'])}, which {stay}; K × d centroids "
        f"{bytes_in_words(memory['centroids'])}"
    )
    yield f"  at most: {one_line(memory['largest_task_is'])}"
    read, written = (bytes_in_words(store[name]) for name in ("read", "written"))
    yield f"  reads {read}, writes about {written}"
    if plan.way == "processes":
        owners, most = plan.traffic["owners"], bytes_in_words(plan.traffic["to_a_worker"])
        if owners and not plan.traffic["to_a_worker"]:
            yield "  no centroids travel to workers, which share the memory of their owners"
            return
        sender = f"from {counted(owners, 'owner')} on workers" if owners else "from the driver"
        yield f"  each worker gets up to {most} of centroids an iteration, {sender}"


def _table(plan: Plan) -> Iterator[str]:
    priced = plan.by_workers[0].price is not None
    alone = plan.way == "threads"
    each = "memory" if alone else "driver     each worker"
    hours = "machine hours" if alone else "worker hours"
    yield bold(
        f"{'threads' if alone else 'workers':>8}  {'time':>9}  {each:<22} {hours}"
        + ("     price" if priced else "")
    )
    for one in plan.by_workers:
        yield _row(one, alone=alone)


def _row(one: Workers, *, alone: bool) -> str:
    driver = bytes_in_words(one.driver_bytes)
    memory = driver if alone else f"{driver:<10} {bytes_in_words(one.worker_bytes)}"
    price = "" if one.price is None else f"{one.price:10.4g}"
    return f"{one.workers:8,}  {_span(one.seconds):>9}  {memory:<22} {one.hours:13.4f}{price}"
