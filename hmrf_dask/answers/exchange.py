"""Answers to and from files of other programs: CSV, JSON Lines, and tasks of Label Studio."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final

from hmrf_dask.answers.records import (
    ANSWERS,
    CHOICE,
    COMMENT,
    DIFFERENT,
    IMPORTED,
    PAIR,
    SAME,
    UNKNOWN,
    Entry,
)
from hmrf_dask.answers.standing import standing
from hmrf_dask.constraints.answer_rows import CANNOT, MUST, kind_of
from hmrf_dask.documents.delimited import read_table
from hmrf_dask.documents.records import BadRecord, excerpt
from hmrf_dask.errors import InvalidInputError
from hmrf_dask.parameters import ANSWER_LINES

ENDINGS: Final = (".csv", ".jsonl", ".json")
COLUMNS: Final = (
    "a", "b", "kind", "annotator", "trust", "time", "seconds", "likely", "why", "id"
)  # fmt: skip
UNSURE: Final = ("unknown", "?", "don't know", "dont know", "not sure", "unsure")
_IN_WORDS: Final = {MUST: SAME, CANNOT: DIFFERENT}


@dataclass
class Read:
    """What was read of a file.

    Attributes
    ----------
    entries : list of Entry
    bad : list of BadRecord
        Rows that are no answers.
    n_open : int
        Questions without an answer.
    former : dict
        The ids that entries had in the journal that they were exported from, by their own.
    """

    entries: list[Entry] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    n_open: int = 0
    former: dict[str, str] = field(default_factory=dict)

    def new(self, known: Collection[str]) -> list[Entry]:
        """Return the entries that are not among those known, each once."""
        found = {entry.id: entry for entry in self.entries}
        return [
            entry
            for entry in found.values()
            if entry.id not in known and self.former.get(entry.id) not in known
        ]

    def take(self, entries: Iterable[Entry], former: Any) -> None:
        """Take in what a row says, nothing where it is open, and the id that it had."""
        taken = list(entries)
        self.n_open += not taken
        self.entries += taken
        self.former |= {entry.id: str(former) for entry in taken if former}


def format_of(address: str) -> str:
    """Return the ending of a file's name, which says its format.

    Examples
    --------
    >>> format_of("answers.CSV")
    '.csv'
    """
    ending = PurePosixPath(address).suffix.lower()
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"a file of answers must be named {', '.join(ENDINGS)} (.json is Label Studio's), got "
            f"{address!r}: rename it"
        )
    return ending


def encode_answers(entries: Iterable[Entry], address: str) -> bytes:
    r"""Return the answers that stand as the bytes of a file, whose name says the format.

    JSON Lines are those of a journal. CSV has the pairs that answers say, for programs that read
    pairs: not what somebody did not know.

    Examples
    --------
    >>> entries = [Entry("1", "choice", ("x", "r"), ("r", "s"), "same")]
    >>> encode_answers(entries, "a.csv")
    b'a,b,kind,annotator,trust,time,seconds,likely,why,id\r\nx,r,same,,,,,,,1\r\n'
    """
    kept = standing(entries)
    ending = format_of(address)
    if ending == ".jsonl":
        return b"".join(entry.to_line() for entry in kept)
    answers = [entry for entry in kept if entry.kind in ANSWERS]
    if ending == ".csv":
        return _csv_bytes(answers)
    tasks = [_task_of(number, entry) for number, entry in enumerate(answers, 1)]
    return json.dumps(tasks, ensure_ascii=False, indent=1).encode()


def decode_answers(data: bytes, address: str) -> Read:
    r"""Return the answers in the bytes of a file, whose name says the format.

    The same answer read again has the same id. InvalidInputError says that it is another file.

    Examples
    --------
    >>> read = decode_answers(b"a,b,kind\nx,r,same\ny,r,\n", "a.csv")
    >>> read.entries[0].answer, read.n_open
    ('same', 1)
    """
    if format_of(address) == ".json":
        return _read_tasks(data, address)
    read, table = Read(), read_table(data, address, ANSWER_LINES)
    for row in table.rows:
        if isinstance(row, BadRecord):
            read.bad.append(row)
            continue
        try:
            content = dict(zip(row.names, row.values, strict=True))
            read.take(_entries_of(content), content.get("id"))
        except InvalidInputError as error:
            read.bad.append(row.refused(str(error)))
    if table.names is not None and not (read.entries or read.bad or read.n_open):
        try:
            _entries_of(dict.fromkeys(table.names))  # maybe its first row is no header
        except InvalidInputError as error:
            read.bad.append(BadRecord(1, str(error), ",".join(table.names)))
    return read


def _csv_bytes(answers: Iterable[Entry]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for entry in answers:
        shown = entry.documents[1:] if entry.kind == PAIR else entry.shown
        likely = dict(zip(shown, entry.likely, strict=False))
        trust = "" if entry.trust is None else entry.trust
        noted = [entry.annotator, trust, entry.time, entry.seconds or ""]
        for first, second, is_same in entry.pairs():
            said = [first, second, SAME if is_same else DIFFERENT]
            writer.writerow([*said, *noted, likely.get(second, ""), entry.why, entry.id])
    return text.getvalue().encode()


def _entries_of(row: Mapping[str, Any]) -> list[Entry]:
    """Return what a row says: an answer and maybe a comment; nothing where it is open."""
    if "documents" in row or "about" in row:
        return [Entry.from_line(json.dumps(row).encode())]
    named = {name.strip().casefold(): value for name, value in row.items()}
    if missing := [name for name in ("a", "b", "kind") if name not in named]:
        raise InvalidInputError(
            f"the columns must be a, b and kind, or those of a journal, got no {missing[0]}"
        )
    answer = answer_of(named["kind"])
    if not answer:
        return []
    ends = [_plain(named[name]) for name in ("a", "b")]
    entry = _checked(
        kind=PAIR, documents=ends, answer=answer, annotator=_plain(named.get("annotator")),
        time=_plain(named.get("time")), seconds=_number("seconds", named.get("seconds")),
        why=_plain(named.get("why")) or IMPORTED, former=_plain(named.get("id")),
        **_likely(named.get("likely")), **_trust(named.get("trust")),
    )  # fmt: skip
    comment = _plain(named.get("comment"))
    if not comment:
        return [entry]
    about = {"annotator": entry.annotator, "time": entry.time, "about": entry.id}
    return [entry, _checked(kind=COMMENT, answer=comment, **about)]


def answer_of(value: Any) -> str:
    """Return what a cell says of two documents: "" where it is empty.

    Examples
    --------
    >>> [answer_of(value) for value in ("yes", "Cannot-Link", "?", None)]
    ['same', 'different', 'unknown', '']
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return ""
    if isinstance(value, str) and value.strip().casefold() in UNSURE:
        return UNKNOWN
    kind = kind_of(value)
    if kind is None:
        raise InvalidInputError(
            f"kind must be same, different or unknown, or empty, got {value!r:.80}"
        )
    return _IN_WORDS[kind]


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def _number(name: str, value: Any) -> float:
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be a number, got {value!r:.80}") from None


def _likely(value: Any) -> dict[str, list[float]]:
    """Return how likely "same" was, as entries have it; nothing where nobody said so."""
    return {} if value in (None, "") else {"likely": [_number("likely", value)]}


def _trust(value: Any) -> dict[str, float]:
    return {} if value in (None, "") else {"trust": _number("trust", value)}


def _checked(*, former: str = "", **content: Any) -> Entry:
    """Return an entry whose id follows from what it says, and from the one that it had."""
    text = json.dumps([former, sorted(content.items())])
    content["id"] = sha256(text.encode()).hexdigest()[:24]
    return Entry.from_line(json.dumps(content).encode())


# ---- Label Studio: https://labelstud.io/guide/task_format


def _task_of(number: int, entry: Entry) -> dict[str, Any]:
    """Return a task of a project with Choices, and its one annotation."""
    subject, shown = entry.documents[0], list(entry.shown)
    pair = {"a": subject, "b": entry.documents[-1]}
    data = pair if entry.kind == PAIR else {"document": subject, "shown": shown}
    chosen = entry.documents[1] if (entry.kind, entry.answer) == (CHOICE, SAME) else entry.answer
    result = {
        "from_name": "answer", "to_name": "document", "type": "choices",
        "value": {"choices": [chosen]},
    }  # fmt: skip
    annotation: dict[str, Any] = {
        "result": [result],
        "lead_time": entry.seconds,
        "was_cancelled": False,
        "entry": {  # Label Studio leaves it out
            "id": entry.id, "annotator": entry.annotator, "likely": list(entry.likely),
            "why": entry.why, "trust": entry.trust,
        },
    }  # fmt: skip
    if entry.time:
        annotation["created_at"] = entry.time
    if "@" in entry.annotator:  # its users are called by their addresses
        annotation["completed_by"] = {"email": entry.annotator}
    return {"id": number, "data": data, "annotations": [annotation]}


def _read_tasks(data: bytes, address: str) -> Read:
    try:
        tasks = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{address}: must be JSON, got none ({error})") from None
    if not isinstance(tasks, list):
        raise InvalidInputError(
            f"{address}: must be a list of tasks, as Label Studio exports them (JSON), got another "
            "value; export the project as JSON, not as JSON-MIN"
        )
    read = Read()
    for number, task in enumerate(tasks, 1):
        try:
            found = list(_of_task(task))
            read.n_open += not found
            for entry, former in found:
                read.take([entry], former)
        except (InvalidInputError, KeyError, TypeError, ValueError, AttributeError) as error:
            words = str(error) if isinstance(error, InvalidInputError) else "is no task of Choices"
            read.bad.append(BadRecord(number, words, excerpt(json.dumps(task))))
    return read


def _of_task(task: Mapping[str, Any]) -> Iterator[tuple[Entry, str]]:
    """Yield what the annotations of a task say, and the ids that they had."""
    data = task["data"]
    for annotation in task.get("annotations", ()):
        results = [one for one in annotation["result"] if one["type"] == "choices"]
        if annotation.get("was_cancelled") or not results:
            continue
        (chosen,) = results[0]["value"]["choices"]
        own = annotation.get("entry") or {}
        former = _plain(own.get("id"))
        entry = _checked(
            **_asked(data, chosen),
            annotator=own.get("annotator") or _name_of(annotation.get("completed_by")),
            time=_plain(annotation.get("created_at")),
            seconds=_number("seconds", annotation.get("lead_time")),
            **({"likely": own["likely"]} if own.get("likely") else {}),
            why=_plain(own.get("why")) or IMPORTED,
            former=former,
            **_trust(own.get("trust")),
        )
        yield entry, former


def _asked(data: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    """Return what was asked and answered, as an entry has it."""
    if "a" in data and "b" in data:
        return {
            "kind": PAIR,
            "documents": [_plain(data["a"]), _plain(data["b"])],
            "answer": answer_of(chosen),
        }
    if "document" not in data or "shown" not in data:
        raise InvalidInputError(
            "data must have a and b, ids of two documents, or document and shown, got "
            f"{', '.join(map(str, data))[:80] or 'nothing'}"
        )
    subject, shown = _plain(data["document"]), [_plain(one) for one in data["shown"]]
    is_group = chosen in shown
    documents = [subject, chosen] if is_group else [subject]
    answer = SAME if is_group else chosen
    return {"kind": CHOICE, "documents": documents, "shown": shown, "answer": answer}


def _name_of(completed_by: Any) -> str:
    """Return who annotated: an address where it is there, else a number."""
    if isinstance(completed_by, Mapping):
        return _plain(completed_by.get("email") or completed_by.get("id"))
    return _plain(completed_by)
