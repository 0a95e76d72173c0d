"""The pages that a person reads in the terminal after `run` and `inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from hmrf_dask.jobs.report import Report


def show_report(report: Report) -> None:
    """Print what a run found, in words; of a run that had nothing to do only where it all is."""
    console = Console(highlight=False)
    console.print(f"[bold]{report.status}[/]: release {report.release}, run {report.run}")
    for line in () if report.status == "up to date" else _lines(report):
        console.print(line, soft_wrap=True)
    console.print("[bold]Files[/]")
    for name, path in report.places.items():
        console.print(f"  {name:12} {report.output}/{path}", soft_wrap=True, markup=False)


def _lines(report: Report) -> list[str]:
    lines = [
        _documents(report),
        _words(report),
        _answers(report),
        _fit(report),
        _clusters(report),
        None if report.nmi is None else f"NMI with the known classes: {report.nmi:.3f}",
    ]
    return [line for line in lines if line]


def _documents(report: Report) -> str:
    files, documents = report.files, report.documents
    told = (
        f"{documents['all']} documents in {files['all']} files: {files['new']} files new, "
        f"{files['changed']} changed, {files['deleted']} deleted, {documents['vectorised']} "
        "documents vectorised"
    )
    rejected = documents["rejected"]
    return f"{told}, {rejected} records rejected" if rejected else told


def _words(report: Report) -> str | None:
    words = report.vocabulary
    if not words:
        return None
    made = "made anew" if words["refit"] else "as it was"
    return (
        f"{words['terms']} terms, {made}; {words['unknown_share']:.1%} of the words in new files "
        f"are not among them ({words['unknown_share_then']:.1%} where it was made)"
    )


def _answers(report: Report) -> str | None:
    answers = report.answers
    if not answers["pairs"] and not answers["unknown"]:
        return None
    violated = answers["must_link"] + answers["cannot_link"]
    told = (
        f"violated pairs: {violated} of {answers['pairs']} ({answers['must_link']} must-links, "
        f"{answers['cannot_link']} cannot-links)"
    )
    unknown = answers["unknown"]
    return f"{told}; {unknown} name documents that are not there" if unknown else told


def _fit(report: Report) -> str | None:
    fit = report.fit
    if not fit:
        return None
    return (
        f"J = {fit['J']:.6g} after {fit['iterations']} iterations from a {report.start} start "
        f"({fit['stop_reason']})"
    )


def _clusters(report: Report) -> str:
    clusters = report.clusters
    kinds = ("kept", "split", "merged", "new", "vanished")
    told = ", ".join(f"{clusters[kind]} {kind}" for kind in kinds if clusters.get(kind))
    return f"{clusters['number']} clusters: {told}; churn {clusters['churn']:.1f} %"


def show_inspection(found: dict[str, Any]) -> None:
    """Print what lies in an output or a run directory, and how far its run is."""
    console = Console(highlight=False)
    console.print(f"[bold]{found['kind']}[/] {found['place']}", soft_wrap=True)
    release, holder = found.get("release"), found.get("holder")
    if found["kind"] == "output":
        console.print(_release(release), soft_wrap=True)
        console.print(_holder(holder), soft_wrap=True)
    elif not found["running"]:
        console.print("the fit is done")
    progress = found["progress"]
    if progress is not None:
        for line in _progress(progress):
            console.print(line, soft_wrap=True, markup=False)


def _release(release: dict[str, Any] | None) -> str:
    if release is None:
        return "no release yet"
    counts = ", ".join(f"{value} {name}" for name, value in release["counts"].items())
    return (
        f"release {release['number']} of run {release['run']}, {release['when']}, "
        f"{release['files']} files: {counts}"
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
            f"fit: {fit['phase']} {fit['iteration']}, J {fit['J']:.6g}, {fit['moved']} moved{ended}"
        )
    return lines
