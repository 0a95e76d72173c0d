"""What a person should look into first: each with what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from hmrf_dask.errors import counted
from hmrf_dask.report.content import Alert, Cluster

ALIKE: Final = 0.8  # cosine of two centroids
_HALF_EMPTY = 0.02  # of the mean size: a tiny cluster
_LEFT_OVER = 0.5  # of the median gain, of a cluster larger than the mean: decisions.md
_FEW = 4  # clusters, too few for one to stand out
_COMMON = 0.2  # of the clusters have a word among their first: it says nothing
_FIRST_WORDS = 5
_NEWS = 0.05  # of words, more than where the vocabulary was made
_MUCH_MOVED = 0.1
_MUCH_BROKEN = 0.05
_UNDECIDED = 0.01
_MUCH_OUTSIDE = 0.1
_SHOWN = 8


@dataclass(frozen=True)
class Facts:
    """What alerts go by: as run.json has it."""

    fit: dict[str, Any]
    documents: dict[str, Any]
    vocabulary: dict[str, Any]
    answers: dict[str, Any]
    is_prediction: bool = False


def alerts_of(facts: Facts, clusters: Sequence[Cluster]) -> tuple[Alert, ...]:
    """Return what is to be examined, serious things first.

    Examples
    --------
    >>> facts = Facts({"converged": False, "iterations": 3}, {}, {}, {})
    >>> [alert.kind for alert in alerts_of(facts, [])]
    ['not converged']
    """
    clusters = [cluster for cluster in clusters if cluster.id >= 0]  # outliers are none
    alerts = [
        *_of_fit(facts),
        *_of_sizes(clusters),
        *_of_leftovers(clusters),
        *_of_likeness(clusters),
        *_of_words(clusters, facts),
        *_of_answers(facts),
        *_of_documents(facts, clusters),
    ]
    return tuple(sorted(alerts, key=lambda alert: alert.weight != "serious"))


def _of_fit(facts: Facts) -> Iterator[Alert]:
    fit = facts.fit
    if fit and not fit.get("converged", True):
        yield Alert(
            "not converged", "serious",
            f"The fit stopped after {counted(fit.get('iterations', 0), 'iteration')} before it "
            f"had settled ({fit.get('stop_reason') or 'max_iter was reached'}).",
            "Raise method.max_iter and run again; the clusters below are those of the last "
            "iteration.",
        )  # fmt: skip


def _of_sizes(clusters: Sequence[Cluster]) -> Iterator[Alert]:
    total, number = sum(cluster.size for cluster in clusters), len(clusters)
    if not total or number < 2:
        return
    for cluster in clusters:
        if number > 3 and cluster.size > total / 3:
            yield Alert(
                "a cluster holds a third", "serious",
                f"{called(cluster)} holds {cluster.size / total:.0%} of all documents.",
                "Look at its borderline documents: where it mixes subjects, answer questions about "
                "it (hmrf-dask label), or ask for more clusters (hmrf-dask suggest-k).",
                (cluster.id,),
            )  # fmt: skip
    empty = tuple(cluster.id for cluster in clusters if not cluster.size)
    if empty:
        yield Alert(
            "empty clusters", "serious", f"{counted(len(empty), 'cluster')} without a document.",
            "Ask for fewer clusters: hmrf-dask suggest-k says how many are likely.", empty,
        )  # fmt: skip
    least = _HALF_EMPTY * total / number
    tiny = tuple(c.id for c in clusters if c.size and (c.size < least or c.size == 1))
    if tiny:
        are = "is" if len(tiny) == 1 else "are"
        yield Alert(
            "tiny clusters", "notice",
            f"{counted(len(tiny), 'cluster')} {are} tiny: of one document, or under "
            f"{_HALF_EMPTY:.0%} of the mean size.",
            "They may be outliers, or duplicates of one text: read their documents; fewer "
            "clusters would join them to others.",
            tiny,
        )  # fmt: skip


def _of_leftovers(clusters: Sequence[Cluster]) -> Iterator[Alert]:
    known = [cluster for cluster in clusters if cluster.gain is not None]
    if len(known) < _FEW:
        return
    usual = _LEFT_OVER * median(cluster.gain or 0.0 for cluster in known)
    mean = sum(cluster.size for cluster in known) / len(known)
    left = [one for one in known if one.size > mean and (one.gain or 0.0) <= usual]
    if left:
        which = ", ".join(called(cluster) for cluster in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        yield Alert(
            "clusters of leftovers", "notice",
            f"{which}{more}: hardly more alike than any documents are, so what fits nowhere else "
            "is probably here.",
            "Do not read it as one subject. Answer questions about its documents (hmrf-dask "
            "label), ask for more clusters, or let the fit set outliers aside (method.outliers).",
            tuple(cluster.id for cluster in left),
        )  # fmt: skip


def _of_likeness(clusters: Sequence[Cluster]) -> Iterator[Alert]:
    likest = {
        (min(cluster.id, near.cluster), max(cluster.id, near.cluster)): near.likeness
        for cluster in clusters
        for near in cluster.similar
        if near.likeness >= ALIKE
    }
    pairs = sorted(likest, key=lambda pair: (-likest[pair], pair))
    if pairs:
        by_id = {cluster.id: cluster for cluster in clusters}
        shown = "; ".join(
            f"{called(by_id[first])} and {called(by_id[second])}"
            for first, second in pairs[:3]
            if first in by_id and second in by_id
        )
        more = f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else ""
        yield Alert(
            "clusters look alike", "notice",
            f"{counted(len(pairs), 'pair')} of clusters look alike: {shown}{more}.",
            "Where they are one subject, say so by a few answers between them (hmrf-dask label), "
            "or ask for fewer clusters.",
            tuple(dict.fromkeys(end for pair in pairs for end in pair)),
        )  # fmt: skip


def _of_words(clusters: Sequence[Cluster], facts: Facts) -> Iterator[Alert]:
    first = Counter(word for one in clusters for word in one.words[:_FIRST_WORDS])
    least = max(3, _COMMON * len(clusters))
    common = [word for word, number in first.most_common() if number >= least]
    if common:
        shown = ", ".join(sorted(common)[:_SHOWN])
        yield Alert(
            "words like boilerplate", "notice",
            f"Words that head many clusters say little about any: {shown}.",
            "Leave them out by text.stop_words, or lower text.max_df, and run again.",
        )  # fmt: skip
    words = facts.vocabulary
    news, then = words.get("unknown_share", 0.0), words.get("unknown_share_then", 0.0)
    if news > then + _NEWS:
        yield Alert(
            "drift", "notice",
            f"{news:.0%} of the words in new files are not in the vocabulary ({then:.0%} where it "
            "was made): the documents change.",
            "Let the next fit make the vocabulary again: text.refit: always.",
        )  # fmt: skip


def _of_answers(facts: Facts) -> Iterator[Alert]:
    answers = facts.answers
    violated = sum(answers.get("violated", {}).values())
    pairs = sum(answers.get("pairs", {}).values())
    if violated:
        share = violated / max(pairs, violated)
        yield Alert(
            "broken answers", "serious" if share > _MUCH_BROKEN else "notice",
            f"{violated:,} of {counted(pairs, 'pair')} that answers say are broken ({share:.1%}).",
            "The worst are shown under Answers: correct those that are wrong; where they are "
            "right, a higher trust or cost makes the fit keep them.",
        )  # fmt: skip
    if suspect := answers.get("suspect"):
        yield Alert(
            "suspect answers", "notice",
            f"{counted(suspect, 'answer')} more likely wrong than right.",
            "Read them again under Answers; hmrf-dask label takes an answer back.",
        )  # fmt: skip
    if left_out := answers.get("quarantined"):
        yield Alert(
            "answers left out", "notice", f"{counted(left_out, 'line')} of answers left out.",
            "The reasons are under Answers, and in the folder rejects of the run.",
        )  # fmt: skip
    if unused := answers.get("unused"):
        yield Alert(
            "answers wait", "notice",
            f"{counted(unused, 'new answer')} not used: this run only predicted.",
            "Run the job with mode fit to use them.",
        )  # fmt: skip


def _of_documents(facts: Facts, clusters: Sequence[Cluster]) -> Iterator[Alert]:
    documents, total = facts.documents, sum(cluster.size for cluster in clusters)
    if left_out := documents.get("quarantined"):
        yield Alert(
            "documents left out", "notice", f"{counted(left_out, 'record')} left out as bad.",
            "Files and lines are in the folder rejects of the run.",
        )  # fmt: skip
    moved = documents.get("moved_share") or 0.0
    if moved > _MUCH_MOVED:
        yield Alert(
            "many documents moved", "notice",
            f"{moved:.0%} of the documents of the last release are in another cluster now.",
            "See Over nights for where they went; a warm start (start: warm) moves fewer.",
        )  # fmt: skip
    outliers, every = documents.get("outliers", 0), documents.get("all", 0)
    if outliers > _MUCH_OUTSIDE * every:
        yield Alert(
            "many outliers", "notice",
            f"{outliers:,} documents ({outliers / every:.0%}) are of no cluster (-1).",
            "Read some: where they share a subject, ask for more clusters; a share as "
            "method.outliers, such as 0.02, takes fewer.",
        )  # fmt: skip
    undecided = sum(cluster.undecided for cluster in clusters)
    if total and undecided > _UNDECIDED * total and len(clusters) > 1:
        yield Alert(
            "documents without words", "notice",
            f"{undecided:,} documents ({undecided / total:.1%}) are just as near to another "
            "cluster: most have no word that the vocabulary knows.",
            "Read some: empty texts, other languages and codes belong left out or in columns "
            "of their own; a lower text.min_df knows more words.",
        )  # fmt: skip


def called(cluster: Cluster) -> str:
    """Return what a cluster is called in a sentence.

    Examples
    --------
    >>> called(Cluster(3, "", 0, None, "new", ("moon",), (), None, 0, 0, 0, 0, 0))
    'cluster 3 (moon)'
    """
    name = cluster.name or ", ".join(cluster.words[:3])
    return f"cluster {cluster.id} ({name})" if name else f"cluster {cluster.id}"
