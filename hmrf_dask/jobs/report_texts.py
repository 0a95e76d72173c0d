"""The beginnings of texts that a report shows: read in tasks, or taken from a report before.

A night reads no more for its report than it read as new, or `NIGHT_BYTES`: files with most of what
is wanted first. What the report before showed, of a file that is as it was, is not read again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final, NamedTuple

from hmrf_dask.documents.manifest import base_of, load_manifest
from hmrf_dask.documents.segments import DocumentSegment, KnownListing, documents_of
from hmrf_dask.errors import ConfigurationError, InvalidInputError, SourceError
from hmrf_dask.flow.dataflow import DaskFlow, tree
from hmrf_dask.jobs.inputs import load_job, resolved
from hmrf_dask.jobs.parent import JOB, files_of
from hmrf_dask.jobs.report_subject import Subject, Wanted
from hmrf_dask.releases.release import Release
from hmrf_dask.report.content import LENGTH, Report, Text, excerpt

NIGHT_BYTES: Final = 256 * 2**20


class Archive(NamedTuple):
    """Where documents are now, and how many bytes of them may be read; None: all."""

    segments: Sequence[DocumentSegment]
    most_bytes: int | None = None

    @property
    def has_texts(self) -> bool:
        """Whether documents are more than embeddings."""
        return any(one.columns.text is not None for one in self.segments)


def archive_of(release: Release) -> Archive:
    """Return where the documents of a release are, as its job says."""
    job = str(release.ledger.get(JOB) or "")
    if not job:
        raise ConfigurationError("the release does not say where its job file was")
    address = resolved(base_of(job), load_job(job).manifest)
    manifest = load_manifest(address)
    listings = KnownListing.of(release.ledger)
    return Archive(documents_of(manifest, base_of(address), listings))


def texts_of(
    subject: Subject, reports: Iterable[Report | None], archive: Archive | None, wanted: Wanted
) -> dict[str, str]:
    """Return the beginnings of texts by id; those that cannot be had are missing.

    Parameters
    ----------
    subject : Subject
    reports : iterable of Report or None
        From which texts may be taken: of this release, and of the one before.
    archive : Archive, optional
        None where the documents cannot be found.
    wanted : mapping of str to set of str
    """
    texts: dict[str, str] = {}
    for report in filter(None, reports):
        for text in shown_texts(report):
            if text.text and text.id in wanted.get(text.pack, ()):
                texts.setdefault(text.id, text.text)
    if archive is None or subject.release is None:
        return texts
    left = {pack: {one for one in ids if one not in texts} for pack, ids in wanted.items()}
    segments = _segments(subject.release, archive, {p: ids for p, ids in left.items() if ids})
    flow = DaskFlow()
    tasks = [flow.lazy(_read, segment, ids) for segment, ids in segments]
    if tasks:
        texts |= flow.compute([tree(flow, _joined, tasks)])[0]
    return texts


def shown_texts(report: Report) -> Iterable[Text]:
    """Yield all documents that a report shows."""
    yield from report.documents_shown
    for cluster in report.clusters:
        yield from (*cluster.typical, *cluster.borderline)
    for broken in report.answers.broken:
        yield from (broken.first, broken.second)


def _segments(
    release: Release, archive: Archive, wanted: Mapping[str, set[str]]
) -> list[tuple[DocumentSegment, set[str]]]:
    """Return the segments that are as they were, and what to look for in each."""
    entries, now = files_of(release.ledger), {one.name: one for one in archive.segments}
    packs: dict[str, list[tuple[DocumentSegment, float]]] = defaultdict(list)
    for path, entry in sorted(entries.items()):
        segment = now.get(path)
        if segment is None or entry[:2] != (segment.size, segment.stamp):
            continue
        parts = segment.parts()
        size = float(segment.size or 0) / max(len(parts), 1)
        for part, keys in zip(parts, entry.keys, strict=False):
            if keys.counts in wanted:
                packs[keys.counts].append((part, size))
    costs = {pack: sum(size for _, size in parts) for pack, parts in packs.items()}
    order = sorted(packs, key=lambda pack: (costs[pack] / len(wanted[pack]), pack))
    left = float("inf") if archive.most_bytes is None else float(archive.most_bytes)
    chosen = []
    for pack in order:
        if costs[pack] <= left:
            left -= costs[pack]
            chosen += [(segment, wanted[pack]) for segment, _ in packs[pack]]
    return chosen


def _read(segment: DocumentSegment, wanted: set[str]) -> dict[str, str]:
    """Return the beginnings of texts in a segment, as far as it can be read."""
    texts: dict[str, str] = {}
    # gone, replaced, or damaged meanwhile: what was read until then
    with suppress(SourceError, InvalidInputError), closing(segment.read(sorted(wanted))) as read:
        for batch in read:
            named = zip(batch.ids, batch.texts, strict=True)
            texts |= {name: excerpt(text, LENGTH) for name, text in named if name in wanted}
            if len(texts) == len(wanted):
                break
    return texts


def _joined(parts: Sequence[dict[str, str]]) -> dict[str, str]:
    return {name: text for part in parts for name, text in part.items()}
