"""The pages that a person reads in the terminal after `run` and `inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from hmrf_dask.errors import counted, rows_moved

if TYPE_CHECKING:
    from hmrf_dask.jobs.report import Report

MOST = 20  # clusters shown
WAITING = "of answers waiting for a document that is gone"


def show_report(report: Report) -> None:
    """Print what a run found, in words; of a run that had nothing to do only where it all is."""
    console = Console(highlight=False)
    console.print(f"[bold]{report.status}[/]: release {report.release}, run {report.run}")
    if report.status != "up to date":
        for line in _lines(report):
            console.print(line, soft_wrap=True)
        _print_clusters(console, report)
    console.print("[bold]Files[/]")
    for name, path in report.places.items():
        console.print(f"  {name:12} {report.output}/{path}", soft_wrap=True, markup=False)


def _lines(report: Report) -> list[str]:
    lines = [
        _documents(report),
        _since(report.files, "file"),
        _moved(report),
        _words(report),
        _answers(report),
        _fit(report),
        _clusters(report),
        None if report.nmi is None else f"NMI with the known classes: {report.nmi:.3f}",
    ]
    return [line for line in lines if line]


def _documents(report: Report) -> str:
    documents = report.documents
    told = f"{_since(documents, 'document')}; {documents['vectorised']:,} vectorised"
    quarantined = documents["quarantined"]
    return f"{told}, {counted(quarantined, 'record')} quarantined" if quarantined else told


def _since(counts: dict[str, Any], what: str) -> str:
    """Return how many there are, and what happened to them since the last release."""
    since = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("new", "changed", "gone"))
    return f"{counted(counts['all'], what)}: {since}"


def _moved(report: Report) -> str | None:
    documents = report.documents
    if report.parent is None or (report.mode == "predict" and not documents["changed"]):
        return None
    both = counted(documents["all"] - documents["new"], "document")
    return (
        f"{documents['moved']:,} of the {both} that the last release had are in another cluster "
        f"({documents['moved_share']:.2%})"
    )


def _words(report: Report) -> str | None:
    words = report.vocabulary
    if not words:
        return None
    made = "made in this run" if words["refit"] else "unchanged"
    told = f"{counted(words['terms'], 'term')}, {made}"
    if words["refit"] or not report.files["new"] + report.files["changed"]:
        return told
    return (
        f"{told}; {words['unknown_share']:.1%} of the words in new files are not among them "
        f"({words['unknown_share_then']:.1%} where they were made)"
    )


def _answers(report: Report) -> str | None:
    answers = report.answers
    beside = [
        f"{counted(answers[name], 'line')} {words}"
        for name, words in (("quarantined", "of answers quarantined"), ("waiting", WAITING))
        if answers[name]
    ]
    if unused := answers["unused"]:
        told = f"{counted(unused, 'new answer')} not used: they wait for the next fit"
        return "; ".join([told, *beside])
    pairs, violated = answers["pairs"], answers["violated"]
    if not any(pairs.values()):
        return "; ".join(beside) or None
    told = (
        f"violated: {violated['must']:,} of {counted(pairs['must'], 'must-link')}, "
        f"{violated['cannot']:,} of {counted(pairs['cannot'], 'cannot-link')}"
    )
    return "; ".join([told, *beside])


def _fit(report: Report) -> str | None:
    fit = report.fit
    if not fit:
        return None
    return (
        f"J = {fit['J']:.6g} after {counted(fit['iterations'], 'iteration')} from a "
        f"{report.start} start ({fit['stop_reason']})"
    )


def _clusters(report: Report) -> str:
    clusters, number = report.clusters, counted(report.clusters["number"], "cluster")
    if report.parent is None:
        return number
    kinds = ("kept", "split", "merged", "new", "vanished")
    told = ", ".join(f"{clusters[kind]} {kind}" for kind in kinds if clusters.get(kind))
    return f"{number}: {told}"


def _print_clusters(console: Console, report: Report) -> None:
    """Print the largest clusters, each with its size and its top words."""
    import io

    import pyarrow.parquet as pq

    from hmrf_dask.documents.streams import read_whole
    from hmrf_dask.jobs.places import last_release
    from hmrf_dask.releases.release import read_published

    release, name = last_release(report.output), report.places["clusters"]
    if release is not None and name in release.files:
        data = read_published(report.output, release, name)
    else:  # another run released since
        data = read_whole(f"{report.output}/{name}", {})
    found = sorted(pq.read_table(io.BytesIO(data)).to_pylist(), key=lambda one: -one["size"])
    console.print("[bold]cluster      size  top words[/]")
    for one in found[:MOST]:
        line = f"{one['cluster']:7} {one['size']:9,}  {' '.join(one['top_words'] or ())}"
        shown = line[: console.width] if console.is_terminal else line
        console.print(shown, soft_wrap=True, markup=False)
    if len(found) > MOST:
        console.print(f"… {len(found) - MOST} more in the clusters file")


def show_inspection(found: dict[str, Any]) -> None:
    """Print what lies in an output or a run directory, and how far its run is."""
    console = Console(highlight=False)
    console.print(f"[bold]{found['kind']}[/] {found['place']}", soft_wrap=True)
    release, holder = found.get("release"), found.get("holder")
    if found["kind"] == "output":
        console.print(_release(release), soft_wrap=True)
        console.print(_holder(holder), soft_wrap=True)
    elif found["kind"] == "job run":
        _print_job_run(console, found)
    elif not found["running"]:
        console.print("the fit is done")
    progress = None if found.get("report") else found["progress"]
    if progress is not None:
        for line in _progress(progress):
            console.print(line, soft_wrap=True, markup=False)


def _print_job_run(console: Console, found: dict[str, Any]) -> None:
    """Print what the run of a job reported; one that did not end has no report."""
    from hmrf_dask.jobs.report import Report

    if found["report"] is None:
        console.print("it did not end, or has not yet: the output tells whether it is at work")
        return
    for line in _lines(Report(**found["report"])):
        console.print(line, soft_wrap=True)


def _release(release: dict[str, Any] | None) -> str:
    if release is None:
        return "no release yet"
    counts = ", ".join(f"{n} {name}" for name, n in release["counts"].items())
    return (
        f"release {release['number']} of run {release['run']}, {release['when']}, "
        f"{counted(release['files'], 'file')} ({release['hashed']} hashed): {counts}"
    )


def _holder(holder: dict[str, Any] | None) -> str:
    if holder is None:
        return "nobody writes it now"
    process = holder["process"]
    return (
        f"run {holder['run']} writes it: process {process['pid']} of {process['user']} on host "
        f"{process['host']}, since {holder['since']}"
    )


def _progress(progress: dict[str, Any]) -> list[str]:
    lines = []
    step, fit = progress.get("step"), progress.get("fit")
    if step:
        count = f" {step['done']} of {step['of']}" if step.get("of") else ""
        lines.append(f"step: {step['step']}{count} (since {step['since']})")
    if fit:
        ended = f", {fit['stop']}" if fit["stop"] else ""
        lines.append(
            f"fit: {fit['phase']} {fit['iteration']}, J {fit['J']:.6g}, "
            f"{rows_moved(fit['iteration'], fit['rows_moved'])}{ended}"
        )
    return lines
