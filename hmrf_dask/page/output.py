"""The output of a job as the page shows it: groups, words, clusters, releases, and a refit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from hmrf_dask.answers.records import EDITS, MERGE, UNDO, Question
from hmrf_dask.errors import HmrfError, InvalidInputError
from hmrf_dask.jobs import assignments
from hmrf_dask.jobs.again import run_again
from hmrf_dask.jobs.edit import Editing
from hmrf_dask.jobs.parent import VOCABULARY
from hmrf_dask.jobs.places import LINEAGE, NAME, Report, last_release
from hmrf_dask.jobs.released import ReleasedModel, load_release
from hmrf_dask.jobs.reshape import frozen_by, in_words
from hmrf_dask.jobs.texts import Document, Texts
from hmrf_dask.page.marks import Weights
from hmrf_dask.page.material import Group, Material
from hmrf_dask.page.refit import JSON, Outcome
from hmrf_dask.progress import Tell
from hmrf_dask.releases.lineage import Lineage
from hmrf_dask.releases.ownership import read_owner
from hmrf_dask.releases.release import Release, read_file, read_if_whole, release_log
from hmrf_dask.storage.stores import Storage, open_storage
from hmrf_dask.storage.whole_files import decode_parquet
from hmrf_dask.text.files import Place, load_vocabulary
from hmrf_dask.text.tfidf import Vocabulary

RENAME = "rename"
_VERBS = (RENAME, *EDITS, UNDO)
_WORDS = 6  # of a cluster that are shown
MOST_FLOWS = 20  # ways of documents from one cluster to another that are listed


def material_of(texts: Texts, batch: Sequence[Question]) -> Material:
    """Return what there is to ask about the last release of an output.

    Parameters
    ----------
    texts : Texts
        Of the output.
    batch : sequence of Question
    """
    storage = open_storage(texts.output, {}, durable=False)
    clusters = _clusters(storage, texts.release)
    shown = list(dict.fromkeys(one for question in batch for one in question.shown))
    anchors = texts.read(shown)
    groups = sorted((_group(one, anchors, clusters) for one in shown), key=_place)
    owner = read_owner(storage)
    name = owner.job if owner and owner.job else texts.output.rstrip("/").rpartition("/")[2]
    weigh = _weights(storage, texts.release)
    return Material(name, tuple(batch), tuple(groups), texts, weigh)


def _clusters(storage: Storage, release: Release) -> dict[int, dict[str, Any]]:
    """Return what the release says of each cluster, by its id."""
    table = decode_parquet(_of_release(storage, release, assignments.NAME))
    return {row["cluster"]: row for row in table.to_pylist()}


def _of_release(storage: Storage, release: Release, name: str) -> bytes:
    path = next(one for one in release.files if one.rpartition("/")[2] == name)
    return read_file(storage, path, release.files[path])


def _group(
    document: str, anchors: Mapping[str, Document], clusters: dict[int, dict[str, Any]]
) -> Group:
    row = clusters.get(cluster) if (cluster := anchors[document].cluster) is not None else None
    if row is None:
        return Group(document)
    near = tuple(str(one) for one in row["representatives"] or ())
    return Group(document, tuple(row["top_words"] or ()), row["size"], near, row["cluster"])


def _place(group: Group) -> tuple[float, str]:
    """Return where a group is shown: by its cluster, which keeps its id from run to run."""
    return (float("inf") if group.cluster is None else group.cluster, group.document)


def _weights(storage: Storage, release: Release) -> Weights | None:
    """Return what the vocabulary says words are worth; None where rows are not made of words."""
    named = release.ledger.get(VOCABULARY)
    if named is None:
        return None
    try:
        vocabulary = load_vocabulary(named, Place(storage.url, {}))
    except HmrfError:  # of no use for a page; the next run says so
        return None
    return lambda words: _idf(vocabulary, words)


def _idf(vocabulary: Vocabulary, words: Sequence[str]) -> list[float]:
    places = vocabulary.places(pa.array(list(words), pa.large_string()))
    return [float(vocabulary.idf[at]) if at >= 0 else 0.0 for at in places.tolist()]


# ---- clusters, and what people do to them


class OutputClusters:
    """The clusters of the last release of an output.

    Parameters
    ----------
    output : str
    refused : str
        Why nothing may be done to them, "" where it may.
    """

    def __init__(self, output: str, refused: str = "") -> None:
        self._model, self._refused = load_release(output), refused

    def _last(self) -> ReleasedModel:
        last = last_release(self._model.output)
        if last is not None and last.number != self._model.release:
            self._model = load_release(self._model.output)
        self._model.forget_names()  # others may have given some
        return self._model

    def view(self) -> JSON:
        """Return all clusters, the largest first, and what waits for the next run."""
        model = self._last()
        editing = Editing(model)
        done = {cluster: editing.of_cluster(cluster) for cluster in model.sizes}
        frozen = frozen_by(editing.edits)
        return {
            "refused": self._refused,
            "waiting": [in_words(entry) for entry in editing.pending],
            "clusters": [
                {
                    "cluster": cluster,
                    "name": model.names[cluster],
                    "size": size,
                    "words": model.top_words(cluster)[:_WORDS],
                    "frozen": cluster in frozen,
                    "last": done[cluster],
                }
                for cluster, size in sorted(model.sizes.items(), key=_largest_first)
            ],
        }

    def edit(self, verb: str, clusters: list[int], name: str, annotator: str) -> str:
        """Do something to clusters; return in words what comes of it."""
        if self._refused:
            raise InvalidInputError(self._refused)
        if not clusters or (verb != MERGE and len(clusters) > 1) or verb not in _VERBS:
            raise InvalidInputError(
                f"an edit must be one of {', '.join(_VERBS)} of a cluster, or of several to merge, "
                f"got {verb!r:.20} of {len(clusters)}"
            )
        editing = Editing(self._last(), annotator or None)
        if verb == RENAME:
            return editing.rename(clusters[0], name).said
        if verb == UNDO:
            return editing.undo(clusters[0]).said
        return editing.save(verb, clusters).said


def _largest_first(sized: tuple[int, int]) -> tuple[int, int]:
    return (-sized[1], sized[0])


# ---- releases, and a refit


def rounds_of(output: str) -> list[JSON]:
    """Return the releases of an output that are there, the last one first."""
    storage = open_storage(output, {}, durable=False)
    numbers = sorted(release_log(storage).numbers(), reverse=True)
    found = [one for number in numbers if (one := read_if_whole(storage, number)) is not None]
    return [_round(storage, release) for release in found]


def _round(storage: Storage, release: Release) -> JSON:
    report = Report.from_json(_of_release(storage, release, NAME), storage.url)
    return {
        "release": release.number,
        "when": release.when[:16].replace("T", " "),
        "answers": report.answers.get("journal", {}).get("answers", 0),
        "clusters": report.clusters.get("number"),
        "J": report.fit.get("J"),
        "nmi": report.nmi,
        "documents": report.documents.get("all"),
        "moved": report.documents.get("moved"),
    }


def refit(output: str, job: str, tell: Tell) -> Outcome:
    """Run the job of an output again; return what it brought."""
    storage = open_storage(output, {}, durable=False)
    before = rounds_of(output)
    run_again(output, job, tell=tell)
    release = last_release(output)
    assert release is not None
    after = _round(storage, release)
    if before and before[0]["release"] == after["release"]:
        return Outcome(before[0], {**after, "moved": 0})
    return Outcome(before[0] if before else None, after, _flows(storage, release))


def _flows(storage: Storage, release: Release) -> list[JSON]:
    """Return how many documents went from which cluster to which, most first."""
    lineage = Lineage.from_json(_of_release(storage, release, LINEAGE))
    clusters = _clusters(storage, release)
    names = {one: ", ".join((row["top_words"] or [])[:4]) for one, row in clusters.items()}
    flows = [
        (flow.documents, change.cluster, flow.cluster)
        for change in lineage.changes
        for flow in change.went_to
        if flow.cluster != change.cluster
    ]
    flows.sort(key=lambda flow: (-flow[0], *flow[1:]))
    return [
        {"documents": number, "from": _called(old, names), "to": _called(new, names)}
        for number, old, new in flows[:MOST_FLOWS]
    ]


def _called(cluster: int, names: Mapping[int, str]) -> str:
    words = names.get(cluster)
    return f"{cluster} ({words})" if words else f"cluster {cluster}"
