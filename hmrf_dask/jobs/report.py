"""The report of a release, or of a fit: gathered from what it has, and written next to it.

A run has published its release before, so a report that cannot be made is a warning. It is made of
what the release recorded: whoever makes it again gets the same bytes.
"""

from __future__ import annotations

import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from hmrf_dask.constraints.answer_files import encode_pairs
from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.errors import ConfigurationError, HmrfError, HmrfWarning, in_words
from hmrf_dask.jobs.names import names_given
from hmrf_dask.jobs.report_clusters import clusters_of, survey
from hmrf_dask.jobs.report_fit import agreement_of, answers_of, fit_of
from hmrf_dask.jobs.report_history import comparison_of, flows_of, nights_of
from hmrf_dask.jobs.report_subject import (
    Subject,
    counts_of,
    former_of_run,
    numbered,
    of_fit,
    of_release,
    subject_of,
)
from hmrf_dask.jobs.report_texts import NIGHT_BYTES, Archive, archive_of, texts_of
from hmrf_dask.jobs.steps import JobRun
from hmrf_dask.releases.release import Release, latest, read_if_whole
from hmrf_dask.report.alerts import Facts, alerts_of
from hmrf_dask.report.broken import BrokenPair, broken_pairs
from hmrf_dask.report.clusters import documents_of, with_documents
from hmrf_dask.report.content import HTML, JSON, Comparison, Report, Text, excerpt, rounded
from hmrf_dask.report.page import page
from hmrf_dask.storage.addresses import absolute_url
from hmrf_dask.storage.stores import open_storage

_LONGEST_NAME: Final = 80  # characters


@dataclass(frozen=True)
class Written:
    """Where a report was written, and what it says first."""

    html: str
    json: str
    release: int | None
    n_bytes: int
    alerts: list[str]
    limits: list[str]
    seconds: float


def write_report(
    place: str, *, number: int | None = None, compare: int | None = None, folder: str | None = None
) -> Written:
    """Make the report of an output or a run directory, and write report.html and report.json.

    Parameters
    ----------
    place : str
    number : int, optional
        The release that it is about; the last one without it.
    compare : int, optional
        A release before it to compare it with; without it the one before.
    folder : str, optional
        Where they go; without it next to the release, or into the run directory.
    """
    started = time.perf_counter()
    subject = subject_of(place, number)
    before = None if compare is None else _before(subject, compare)
    archive = subject.attempt("Texts of documents", lambda: _archive(subject))
    report = make_report(subject, archive, before)
    target = absolute_url(folder) if folder else f"{subject.url}/{subject.folder}".rstrip("/")
    names = _names("" if compare is None else f"-{compare}")
    html, data = (f"{target}/{name}" for name in names)
    return Written(
        html=html,
        json=data,
        release=None if subject.release is None else subject.release.number,
        n_bytes=_write(report, target, names),
        alerts=[alert.said for alert in report.alerts],
        limits=list(report.limits),
        seconds=time.perf_counter() - started,
    )


def _before(subject: Subject, compare: int) -> Release:
    if subject.release is None or not 0 < compare < subject.release.number:
        raise ConfigurationError(
            f"--compare must name a release before that of the report, got {compare}"
        )
    return numbered(subject.url, compare)


def _archive(subject: Subject) -> Archive | None:
    return None if subject.release is None else archive_of(subject.release)


def report_after_run(run: JobRun) -> None:
    """Write the report of the release that a run published; what goes wrong is a warning."""
    inputs = run.inputs

    def made() -> tuple[Subject, Archive]:
        release = latest(inputs.output)
        assert release is not None
        new = {*run.changes.new, *run.changes.changed}
        size = sum(int(one.size or 0) for one in inputs.segments if one.name in new)
        archive = Archive([one.as_it_is() for one in inputs.segments], max(NIGHT_BYTES, size))
        return of_release(inputs.output, release), archive

    _written_if_possible(made, "the release is")


def report_after_fit(
    run_dir: str, constraints: Constraints | None, violations: Mapping[str, int], **known: Any
) -> None:
    """Write the report of a fit into its run directory; what goes wrong is a warning.

    Parameters
    ----------
    run_dir : str
    constraints : Constraints or None
        The pairs that it was given.
    violations : mapping of str to int
        Those of them that are broken, by kind.
    **known
        Other fields of `Subject`.
    """

    def made() -> tuple[Subject, None]:
        subject = replace(of_fit(absolute_url(run_dir)), former=None, **known)
        if constraints is not None:
            subject.pairs = lambda: encode_pairs(constraints)
            of_kind = {kind: f"{kind}_link" for kind in ("must", "cannot")}
            subject.counts["answers"] = {
                "pairs": {kind: len(getattr(constraints, name)) for kind, name in of_kind.items()},
                "violated": {kind: violations[name] for kind, name in of_kind.items()},
            }
        return subject, None

    _written_if_possible(made, "the fit is")


def _written_if_possible(made: Callable[[], tuple[Subject, Archive | None]], what: str) -> None:
    try:
        subject, archive = made()
        report = make_report(subject, archive)
        _write(report, f"{subject.url}/{subject.folder}".rstrip("/"), _names())
    except Exception as error:  # noqa: BLE001 - what it is about is there, and stays whatever happens here
        words = str(error) if isinstance(error, HmrfError) else in_words(error)
        warnings.warn(
            f"the report could not be written ({words}); {what} whole, and hmrf-dask report tries "
            "again",
            HmrfWarning,
            stacklevel=3,
        )


def _names(compared: str = "") -> tuple[str, str]:
    """Return the names of the page and of the data."""
    html, data = (name.replace(".", f"{compared}.") for name in (HTML, JSON))
    return html, data


def _write(report: Report, target: str, names: tuple[str, str]) -> int:
    storage = open_storage(target, {}, durable=True)
    storage.make_root()
    shown = page(report)
    for name, data in zip(names, (shown, report.to_json()), strict=True):
        storage.write(name, data)
    return len(shown)


# ---- what it says


class _Shown(NamedTuple):
    """The documents that a report shows, by where."""

    sampled: list[Text]
    typical: list[Text]
    borderline: list[Text]
    breaking: list[Text]

    def every(self) -> Iterable[Text]:
        """Yield all of them."""
        return (document for part in self for document in part)


def make_report(
    subject: Subject, archive: Archive | None = None, before: Release | None = None
) -> Report:
    """Return the report of a release or a fit.

    Parameters
    ----------
    subject : Subject
    archive : Archive, optional
        Where texts of documents are; without it those of reports before are shown.
    before : Release, optional
        That it is compared with; without it its parent.
    """
    if subject.release is None and subject.former is not None and not subject.files:
        return subject.former  # of a fit in Python, which alone had the rows
    whole = survey(subject)
    clusters, drawn = clusters_of(subject, whole, _names_by_cluster(subject))
    tables = (whole.sampled, whole.typical, whole.borderline, whole.breaking)
    shown = _Shown(*(documents_of(table, drawn) for table in tables))
    pairs = subject.attempt("Broken answers", lambda: broken_pairs(subject.pairs(), whole)) or []
    shown = _with_texts(subject, archive, shown, pairs)
    clusters = with_documents(clusters, shown.typical, shown.borderline)
    record, release = subject.record, subject.release
    facts = Facts(
        dict(record.fit) if record else {},
        counts_of(subject, "documents"),
        counts_of(subject, "vocabulary"),
        counts_of(subject, "answers"),
    )
    fit = fit_of(subject, drawn.learned)
    if record is None:
        facts = replace(facts, fit=fit.facts)
    report = Report(
        title=subject.title,
        release=_release(subject),
        documents=facts.documents or {"all": sum(cluster.size for cluster in clusters)},
        vocabulary=facts.vocabulary,
        clusters_now=counts_of(subject, "clusters")
        or {"number": sum(cluster.id >= 0 for cluster in clusters)},
        alerts=alerts_of(facts, clusters),
        clusters=clusters,
        documents_shown=tuple(shown.sampled),
        answers=answers_of(subject, pairs, shown.breaking),
        nights=nights_of(subject),
        flows=flows_of(subject),
        comparison=None if release is None else _comparison(subject, shown.sampled, before),
        fit=fit,
        agreement=subject.attempt("Known classes", lambda: agreement_of(subject)),
        limits=tuple(dict.fromkeys(subject.limits)),
    )
    return _remembered(report, subject.former) if release is None else report


def _remembered(report: Report, former: Report | None) -> Report:
    """Return the report of a fit with what only its caller knew then: answers, words, classes.

    A run directory keeps none of them; what it held then is the same if the fit ended the same.
    """
    if former is None or former.fit.facts != _read_back(report.fit.facts) or report.answers.counts:
        return report
    known = {cluster.id: cluster for cluster in former.clusters}
    return replace(
        report,
        title=former.title,
        alerts=former.alerts,
        answers=former.answers,
        agreement=former.agreement,
        clusters=tuple(
            replace(one, words=known[one.id].words, bars=known[one.id].bars)
            if one.id in known
            else one
            for one in report.clusters
        ),
        limits=former.limits,
    )


def _read_back(facts: dict[str, Any]) -> Any:
    return json.loads(json.dumps(rounded(facts)))


def _release(subject: Subject) -> dict[str, object]:
    release, record = subject.release, subject.record
    if release is None:
        return {}
    facts = {
        "number": release.number,
        "when": release.when[:16].replace("T", " "),
        "run": release.run,
    }
    known = ("", None) if record is None else (record.mode, record.start)
    return facts | dict(zip(("mode", "start"), known, strict=True))


def _names_by_cluster(subject: Subject) -> dict[int, str]:
    """Return the names that people gave."""
    release = subject.release
    if release is None:
        return {}
    given = subject.attempt("Names", lambda: names_given(subject.url, release)) or {}
    return {cluster: excerpt(name, _LONGEST_NAME) for cluster, name in sorted(given.items())}


def _with_texts(
    subject: Subject, archive: Archive | None, shown: _Shown, pairs: Sequence[BrokenPair]
) -> _Shown:
    """Return documents with the beginnings of their texts; of broken answers those shown."""
    wanted: dict[str, set[str]] = defaultdict(set)
    of_pairs = [shown.breaking[end] for pair in pairs for end in (pair.first, pair.second)]
    for document in (*shown.sampled, *shown.typical, *shown.borderline, *of_pairs):
        wanted[document.pack].add(document.id)
    texts = _texts(subject, archive, wanted)
    shown = _Shown(*([replace(d, text=texts.get(d.id, "")) for d in part] for part in shown))
    n_wanted = sum(map(len, wanted.values()))
    if n_wanted > len(texts):
        subject.limits.append(_no_texts(archive, n_wanted - len(texts), n_wanted))
    return shown


def _texts(
    subject: Subject, archive: Archive | None, wanted: Mapping[str, set[str]]
) -> dict[str, str]:
    if subject.texts is not None:
        return subject.texts(wanted)
    parent = None if subject.release is None else subject.release.parent
    reports = (subject.former, former_of_run(subject.url, parent))
    if archive is not None and not archive.has_texts:
        archive = None
    return texts_of(subject, reports, archive, wanted)


def _no_texts(archive: Archive | None, missing: int, wanted: int) -> str:
    """Say why documents have no texts here."""
    if archive is not None and not archive.has_texts:
        return "Texts: the documents are embeddings alone: clusters have no words and no texts."
    why = "they are gone or changed since, or cannot be found from here"
    if archive is not None and archive.most_bytes is not None:
        why = "they are gone or changed since, or in more files than a run reads for its report"
    return f"Texts: {missing:,} of {wanted:,} documents are shown by their ids alone: {why}."


def _comparison(
    subject: Subject, sampled: Sequence[Text], before: Release | None
) -> Comparison | None:
    assert subject.release is not None
    former = None if before else subject.former
    if before is None and subject.release.parent is not None:
        before = _parent(subject, subject.release)
    return subject.attempt(
        "What moved since the release before",
        lambda: comparison_of(subject, before, sampled, now=former),
    )


def _parent(subject: Subject, release: Release) -> Release | None:
    """Return the release that one continued, None where it cannot be read any more."""
    for number in range(release.number - 1, 0, -1):
        before = read_if_whole(subject.storage, number)
        if before is not None and before.run == release.parent:
            return before
    return None
