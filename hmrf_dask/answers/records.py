"""Questions, and the lines of a journal: what somebody answered, took back, or wrote next to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Final

from hmrf_dask.constraints.answer_rows import problem_of_id
from hmrf_dask.documents.records import is_text
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.parameters import LARGEST_INT32

PAIR, CHOICE = "pair", "choice"
UNDO, COMMENT, NAME = "undo", "comment", "name"
MERGE, SPLIT, FREEZE = "merge", "split", "freeze"
EDITS: Final = (MERGE, SPLIT, FREEZE)  # of clusters of a release
KINDS: Final = (PAIR, CHOICE, UNDO, COMMENT, NAME, *EDITS)
SAME, DIFFERENT = "same", "different"
NONE, NEW = "none", "new"  # of a choice: none of those shown; in no group yet
UNKNOWN = "unknown"  # the person does not know
OF_PAIRS: Final = (SAME, DIFFERENT, UNKNOWN)
OF_CHOICES: Final = (SAME, NONE, NEW, UNKNOWN)
ANSWERS: Final = {PAIR: OF_PAIRS, CHOICE: OF_CHOICES}
IMPORTED: Final = "imported"  # why there is an answer that no question of ours asked for
MADE: Final = "namer"  # why there is a name that a program made, before what it made it of
LONGEST: Final = 10_000  # characters of a comment or a name
MOST_SHOWN: Final = 1_000  # groups of a choice, and clusters of an edit


@dataclass(frozen=True)
class Question:
    """One question to a person.

    A pair asks whether its two documents belong together: the first is what is asked about, the
    second stands for a group. A choice asks which of the groups `shown`, each by a document that
    stands for it, its one document belongs to.

    Examples
    --------
    >>> one = Question("pair", ("x", "r"), likely=(0.5,))
    >>> one.id == Question("pair", ("x", "r"), why="control").id
    True
    """

    kind: str
    documents: tuple[str, ...]
    shown: tuple[str, ...] = ()  # of a choice, the likeliest first
    likely: tuple[float, ...] = ()  # how likely each group is: of those shown, or of the second
    why: str = "uncertain"
    settles: float = 0.0  # pairs of documents that an answer is expected to settle

    @property
    def id(self) -> str:
        """What the question is called: the same for the same question."""
        content = json.dumps([self.kind, self.documents, sorted(self.shown)])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Entry:
    """A line of a journal.

    Attributes
    ----------
    id : str
        Of the line, unlike any other.
    kind : {"pair", "choice", "undo", "comment", "name", "merge", "split", "freeze"}
    documents : tuple of str
        Of a pair the document asked about and the one that stands for a group; of a choice the
        document, and that of the group that was chosen, if one was; of a name the document that
        stands for the group.
    shown : tuple of str
        Of a choice, what stood for the groups that were shown.
    answer : str
        Of a pair "same", "different" or "unknown"; of a choice "same" as the second document,
        "none" of those shown, "new", of no group yet, or "unknown"; of a name or comment its text;
        of an undo nothing.
    annotator : str
        Who said it; "" where nobody was named.
    time : str
        When, as ISO 8601 with its zone.
    seconds : float
        How long it took from the question to the answer.
    likely : tuple of float
        How likely the groups were when it was asked, as in `Question`.
    why : str
        Why it was asked, as in `Question`; "imported" where nobody asked.
    about : str
        The line that an undo takes back, or that a comment is about.
    review : bool
        Of a comment: somebody is to read that answer again.
    trust : float, optional
        Of an imported answer: the probability that it is right, where that is known.
    clusters : tuple of int
        Of an edit: the clusters to merge, the first keeps its id; the one to split or to freeze. Of
        a name that a program made: the cluster.
    release : int
        Of these: the release that the clusters were seen in.
    """

    id: str
    kind: str
    documents: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    answer: str = ""
    annotator: str = ""
    time: str = ""
    seconds: float = 0.0
    likely: tuple[float, ...] = ()
    why: str = ""
    about: str = ""
    review: bool = False
    trust: float | None = None
    clusters: tuple[int, ...] = ()
    release: int = 0

    @property
    def problem(self) -> str:
        """What is wrong with its values, "" where nothing is.

        Examples
        --------
        >>> Entry("1", "pair", ("x",), answer="same").problem
        "a pair must have two different documents, got ('x',)"
        """
        content = {name: getattr(self, name) for name in Entry.__dataclass_fields__}
        return next(_problems(content), "")

    @property
    def made_of(self) -> str:
        """What a program made a name of, in short; "" of one that somebody gave.

        Examples
        --------
        >>> Entry("1", "name", answer="Bills", why="namer 9f3c", clusters=(3,)).made_of
        '9f3c'
        """
        is_made = self.kind == NAME and self.clusters and self.why.startswith(f"{MADE} ")
        return self.why.removeprefix(f"{MADE} ") if is_made else ""

    def pairs(self) -> Iterator[tuple[str, str, bool]]:
        """Yield the pairs of documents that an answer judges, and whether they are the same.

        Examples
        --------
        >>> list(Entry("1", "choice", ("x",), ("r", "s"), "none").pairs())
        [('x', 'r', False), ('x', 's', False)]
        """
        if self.answer in (SAME, DIFFERENT) and self.kind in ANSWERS:
            yield self.documents[0], self.documents[1], self.answer == SAME
        for shown in self.shown if self.answer in (NONE, NEW) else ():
            yield self.documents[0], shown, False

    def to_line(self) -> bytes:
        r"""Return its line of a journal, with what it says alone.

        Examples
        --------
        >>> Entry("1", "pair", ("x", "r"), answer="same").to_line()
        b'{"id":"1","kind":"pair","documents":["x","r"],"answer":"same"}\n'
        """
        usual = {field.name: field.default for field in fields(self)}
        content = {name: value for name, value in asdict(self).items() if value != usual[name]}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    @staticmethod
    def from_line(line: bytes) -> Entry:
        """Return what `to_line` wrote, or raise InvalidInputError that says what is wrong.

        Columns that this version does not know are left out.

        Examples
        --------
        >>> entry = Entry("1", "pair", ("x", "r"), answer="same")
        >>> Entry.from_line(entry.to_line()) == entry
        True
        """
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"a line must be JSON, got {line[:80]!r} ({error})") from None
        if not isinstance(content, dict):
            raise InvalidInputError(f"a line must be a JSON object, got {line[:80]!r}")
        known = {name: content[name] for name in Entry.__dataclass_fields__ if name in content}
        for name in ("documents", "shown", "likely", "clusters"):
            if isinstance(known.get(name), list):
                known[name] = tuple(known[name])
        if problem := next(_problems(known), ""):
            raise InvalidInputError(problem)
        return Entry(**known)


def _problems(content: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the values of a line."""
    for name in ("id", "kind", "answer", "annotator", "time", "why", "about"):
        text = content.get(name, "")
        if not isinstance(text, str) or (not text and name in ("id", "kind")):
            yield f"{name} must be a text, got {content.get(name)!r:.80}"
        elif not is_text(text):
            yield f"{name} must be a text that UTF-8 can write, got {text!r:.80}"
    for name in ("documents", "shown"):
        ids = content.get(name, ())
        if not isinstance(ids, tuple) or len(ids) > MOST_SHOWN:
            yield f"{name} must be a list of at most {MOST_SHOWN:,} ids, got {ids!r:.80}"
            return
        for one in ids:
            problem = problem_of_id(one) if isinstance(one, str) and one else "an id must be text"
            if problem:
                yield f"{name}: {problem}"
    likely = content.get("likely", ())
    if not isinstance(likely, tuple) or not all(map(_is_share, likely)):
        yield f"likely must be a list of numbers from 0 to 1, got {likely!r:.80}"
    seconds = content.get("seconds", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        yield f"seconds must be a number, 0 or more, got {seconds!r:.80}"
    if not isinstance(content.get("review", False), bool):
        yield f"review must be true or false, got {content['review']!r:.80}"
    trust = content.get("trust")
    if trust is not None and not _is_share(trust):
        yield f"trust must be a number from 0 to 1, got {trust!r:.80}"
    yield from _problems_of_kind(content)


def _problems_of_kind(content: dict[str, Any]) -> Iterator[str]:
    kind, documents = content["kind"], content.get("documents", ())
    answer, shown = content.get("answer", ""), content.get("shown", ())
    if kind not in KINDS:
        yield f"kind must be one of {', '.join(KINDS)}, got {kind!r:.80}"
    if kind == PAIR and (len(documents) != 2 or documents[0] == documents[1]):
        yield f"a pair must have two different documents, got {documents!r:.80}"
    if kind in ANSWERS and answer not in ANSWERS[kind]:
        yield f"the answer must be one of {', '.join(ANSWERS[kind])}, got {answer!r:.80}"
    if kind == CHOICE and (len(documents) != 1 + (answer == SAME) or documents[0] in shown):
        yield f"a choice must be about one document, none of the groups', got {documents!r:.80}"
    if kind == CHOICE and not set(documents[1:]) <= set(shown):
        yield f"the document chosen must be one of those shown, got {documents[1]!r:.80}"
    if kind in (UNDO, COMMENT) and not content.get("about"):
        yield f"{kind} must be about a line, got none"
    if kind in EDITS:
        yield from _problems_of_edit(content)
    if kind == NAME and len(documents) != 1:
        yield f"a name must be of one document's group, got {documents!r:.80}"
    if isinstance(answer, str) and len(answer) > LONGEST:
        yield f"a text must have at most {LONGEST:,} characters, got {len(answer):,}"
    time = content.get("time", "")
    if time and not _is_time(time):
        yield f"time must be as ISO 8601 has it, got {time!r:.80}"


def _problems_of_edit(content: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the clusters of an edit, and with the release they are of."""
    clusters, release = content.get("clusters", ()), content.get("release", 0)
    if not isinstance(clusters, tuple) or not all(map(_is_cluster, (*clusters, release))):
        yield f"clusters and release must be whole numbers, 0 or more, got {clusters!r:.80}"
        return
    least, most = (2, MOST_SHOWN) if content["kind"] == MERGE else (1, 1)
    if not least <= len(set(clusters)) == len(clusters) <= most:
        wanted = f"{least} to {most:,} different clusters" if most > 1 else "one cluster"
        yield f"{content['kind']} must name {wanted}, got {clusters!r:.80}"


def _is_cluster(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_INT32


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
