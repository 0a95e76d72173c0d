"""What a report says, as data: report.json, of which report.html is the page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from html import escape
from typing import Any, Final, Literal

from hmrf_dask.storage.sealed import seal_for_people, unseal_as

FORMAT: Final = "hmrf-dask/report/v1"
HTML, JSON = "report.html", "report.json"
LENGTH: Final = 240  # characters of a text
_SPACES = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+")
_DIGITS: Final = 6  # of measured numbers


@dataclass(frozen=True)
class Alert:
    """Something a person should look into.

    Attributes
    ----------
    kind : str
        Such as "not converged": what programs go by.
    weight : {"serious", "notice"}
    said, to_do : str
        What is so, and what to do about it.
    clusters : tuple of int
        Those it is about.
    """

    kind: str
    weight: Literal["serious", "notice"]
    said: str
    to_do: str
    clusters: tuple[int, ...] = ()


@dataclass(frozen=True)
class Text:
    """A document with the beginning of its text.

    Attributes
    ----------
    cluster : int
    runner_up : int or None
        The nearest other cluster.
    pack : str
        What its file of assignments is called: a text is read again where this has changed.
    text : str
        "" where it could not be read.
    x, y : int
        Its place on the map, 0 to 1000.
    held : bool
        Whether an answer names it.
    """

    id: str
    cluster: int
    runner_up: int | None
    pack: str
    text: str = ""
    x: int = 0
    y: int = 0
    held: bool = False


@dataclass(frozen=True)
class Word:
    """A word of a cluster.

    Attributes
    ----------
    weight : float
        In the cluster's centroid.
    lift : float
        How many times that of all documents together.
    learned : float or None
        The learned weight of the word; None where none were learned.
    """

    word: str
    weight: float
    lift: float
    learned: float | None = None


@dataclass(frozen=True)
class Near:
    """Another cluster, and how alike the two are: the cosine of their centroids."""

    cluster: int
    likeness: float


@dataclass(frozen=True)
class Cluster:
    """One cluster.

    Attributes
    ----------
    id : int
        It stays from release to release.
    name : str
        A person's name for it; "" where it has none.
    size_before : int or None
        In the last release; None where it was not there.
    change : str
        "kept", "new" or "split".
    spread : float or None
        The mean distance of its documents to its centroid: smaller is tighter.
    gain : float or None
        How much nearer its documents are to its centroid than to that of all documents; 0 of a
        cluster that is like all documents together. Only where distances are cosines.
    linked, broken : int
        Documents that answers name; those of them with a broken answer.
    undecided : int
        Documents just as near to another cluster.
    x, y : int
        Its place on the map, 0 to 1000.
    typical, borderline : tuple of Text
        Documents nearest to its centroid; those as good as in another cluster.
    """

    id: int
    name: str
    size: int
    size_before: int | None
    change: str
    words: tuple[str, ...]
    bars: tuple[Word, ...]
    spread: float | None
    linked: int
    broken: int
    undecided: int
    x: int
    y: int
    typical: tuple[Text, ...] = ()
    borderline: tuple[Text, ...] = ()
    similar: tuple[Near, ...] = ()
    gain: float | None = None


@dataclass(frozen=True)
class Broken:
    """An answer that the clusters break: "must" across two clusters, "cannot" within one."""

    kind: str
    first: Text
    second: Text
    firmness: float  # how far both are from changing their cluster


@dataclass(frozen=True)
class Doubtful:
    """An answer that is more likely wrong than right, or that was left out, with the reason."""

    said: str
    reason: str


@dataclass(frozen=True)
class AnswerPart:
    """What answers there are and what became of them.

    Attributes
    ----------
    chains : tuple of tuple of str
        Of answers that contradict each other: each document is said to be the same as the next,
        the first and the last to be different. The shortest of `n_contradictions`.
    """

    counts: dict[str, Any]
    broken: tuple[Broken, ...] = ()
    doubtful: tuple[Doubtful, ...] = ()
    left_out: tuple[Doubtful, ...] = ()
    n_contradictions: int = 0
    chains: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Night:
    """A release of the output, as the strip of releases has it."""

    release: int
    when: str
    documents: int
    clusters: int
    moved_share: float | None = None
    spread: float | None = None  # J of a document
    nmi: float | None = None


@dataclass(frozen=True)
class Flow:
    """Documents that were in one cluster and are in another; None: in no cluster."""

    before: int | None
    after: int | None
    documents: int


@dataclass(frozen=True)
class Moved:
    """A document of the sample that is in another cluster than before."""

    document: Text
    before: int
    why: str


@dataclass(frozen=True)
class Comparison:
    """Two releases: `n_moved` of the `n_compared` documents that both have are elsewhere now.

    Listed are those of the sample.
    """

    before: int
    after: int
    n_compared: int
    n_moved: int
    moved: tuple[Moved, ...]
    names_before: dict[str, str]  # of clusters that are there no more


@dataclass(frozen=True)
class Step:
    """An iteration of the fit, as it was recorded."""

    phase: str
    iteration: int
    moved: int
    terms: dict[str, float]  # J and what it is made of


def step_of(iteration: Mapping[str, Any]) -> Step:
    """Return an iteration as `iterations_in` gives it.

    Examples
    --------
    >>> step_of({"phase": "fit", "iteration": 0, "moved": 9, "J": 3}).terms
    {'J': 3.0}
    """
    about = ("phase", "iteration", "moved")
    phase, number, moved = (iteration[name] for name in about)
    terms = {name: float(value) for name, value in iteration.items() if name not in about}
    return Step(str(phase), int(number), int(moved), terms)


@dataclass(frozen=True)
class Fit:
    """How the fit went, with which settings."""

    facts: dict[str, Any]
    steps: tuple[Step, ...]
    seconds: dict[str, float]  # by step of the run
    settings: dict[str, Any]  # every parameter, defaults too
    versions: dict[str, str]
    again: tuple[str, ...]  # commands
    learned: tuple[Word, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)  # the most bytes at a time, by process


@dataclass(frozen=True)
class Agreement:
    """How well clusters fit known classes."""

    scores: dict[str, float]
    classes: tuple[str, ...]
    clusters: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]  # documents by class and cluster
    n_documents: int


@dataclass(frozen=True)
class Report:
    """All that a report says.

    Attributes
    ----------
    title : str
        Of the job, or of the folder.
    release : dict
        Number, when it was made, mode, run; empty for a fit by itself.
    documents, clusters_now, vocabulary : dict
        Counts as run.json has them.
    documents_shown : tuple of Text
        The sample on the map.
    limits : tuple of str
        What the report could not say, and why.
    """

    title: str
    release: dict[str, Any]
    documents: dict[str, Any]
    vocabulary: dict[str, Any]
    clusters_now: dict[str, Any]
    alerts: tuple[Alert, ...]
    clusters: tuple[Cluster, ...]
    documents_shown: tuple[Text, ...]
    answers: AnswerPart
    nights: tuple[Night, ...]
    flows: tuple[Flow, ...]
    comparison: Comparison | None
    fit: Fit
    agreement: Agreement | None
    limits: tuple[str, ...]

    def to_json(self) -> bytes:
        """Return report.json, sealed; numbers have six digits."""
        return seal_for_people({"format": FORMAT, **rounded(asdict(self))})

    def to_html(self) -> bytes:
        """Return report.html, a page that loads nothing."""
        from hmrf_dask.report.page import page

        return page(self)

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks."""
        shown = escape(self.to_html().decode())
        style = "width: 100%; height: 45rem; border: 1px solid #888"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{shown}"></iframe>'

    @staticmethod
    def from_json(data: bytes, name: str = JSON) -> Report:
        """Return what `to_json` wrote, or raise DamagedFileError naming the file."""
        return unseal_as(Report, data, name, FORMAT)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of report.json."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Report).json_schema()
    schema["properties"] |= {"format": {"const": FORMAT}, "sha256": {"type": "string"}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def rounded(value: Any) -> Any:
    """Return JSON values with rounded numbers; what is not finite is null.

    Examples
    --------
    >>> rounded({"J": 1 / 3, "none": float("inf")})
    {'J': 0.333333, 'none': None}
    """
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


def excerpt(text: str, length: int) -> str:
    """Return the beginning of a text in one line, without control characters.

    Examples
    --------
    >>> excerpt("a   b", 10), excerpt("abcdef", 4)
    ('a b', 'abc…')
    """
    line = _SPACES.sub(" ", text[: 8 * length]).strip()
    return line if len(line) <= length and len(text) <= 8 * length else f"{line[: length - 1]}…"


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries without the fields that are empty: a page is smaller."""
    if is_dataclass(value):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: plain(item) for name, item in items if item not in ("", None, (), {})}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
