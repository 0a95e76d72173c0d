"""The next questions about an output, as a person is asked them in a terminal or in a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from hmrf_dask.answers.beliefs import Beliefs, believe
from hmrf_dask.answers.journal import Journal
from hmrf_dask.answers.records import CHOICE, PAIR, Entry, Question
from hmrf_dask.answers.standing import standing
from hmrf_dask.errors import ConfigurationError, HmrfError, InvalidInputError
from hmrf_dask.jobs.exchange import journal_of
from hmrf_dask.jobs.places import last_release
from hmrf_dask.jobs.questions import annotators_of, batch_of, questions_of
from hmrf_dask.jobs.texts import Document, Texts
from hmrf_dask.questions.rounds import Person, next_question

SEVERAL: Final = 4  # groups; of more, a person is asked which one, not about pairs
BEGINNING: Final = 300  # characters of a text that are shown
COLUMNS: Final = ("a", "b", "kind", "annotator", "comment", "text_a", "text_b", "likely", "why")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins one


@dataclass(frozen=True)
class Asked:
    """What a person is asked next.

    Attributes
    ----------
    output : str
    journal : str
        Where answers go.
    answers : int
        That it has so far.
    questions : list of dict
        Each with `id`, `kind`, `documents`, `shown`, `likely`, `why` and `settles`.
    texts : dict
        The beginning of each document's text, by its id; none where it cannot be read.
    remark : str
        Why there are fewer questions than were asked for, or no texts; "" where all is there.
    """

    output: str
    journal: str
    answers: int
    questions: list[dict[str, Any]]
    texts: dict[str, str] = field(default_factory=dict)
    remark: str = ""


class Asking:
    """Questions about an output, some of which may have been answered.

    Parameters
    ----------
    output : str
        With a release.
    n : int
        How many questions.
    kind : {"pair", "choice"}, optional
        Without it, choices where there are many groups.
    journal : str, optional
        Where answers are, if not with the output.
    job : str
        The job file, where the release does not say where it is.
    """

    def __init__(
        self,
        output: str,
        n: int,
        *,
        kind: str | None = None,
        journal: str | None = None,
        job: str = "",
    ) -> None:
        if last_release(output) is None:
            raise ConfigurationError(
                f"questions must be about the output of a job that has run, got {output!r} without "
                "a release; run the job first"
            )
        self.output, self.n, self.job = output, n, job
        self.journal: Journal = journal_of(output, journal)
        own = journal_of(output).entries().entries if journal else ()
        self.trust = annotators_of(output, job)
        self._entries = {one.id: one for one in (*own, *self.journal.entries().entries)}
        self.batch = self._batch()
        n_groups = max((len(one.shown) for one in self.batch), default=0)
        self.kind = kind or (CHOICE if n_groups > SEVERAL else PAIR)

    def _batch(self) -> list[Question]:
        """Return the questions of the last release, or new ones where fewer of them are open."""
        batch = questions_of(self.output)
        beliefs = self.beliefs()
        open_ones = [
            one for one in batch
            if next_question([one], self.standing, control=0, beliefs=beliefs) is not None
        ]  # fmt: skip
        if len(open_ones) >= self.n:
            return open_ones[: self.n]
        return batch_of(self.output, self.n, [*self._entries.values()] or None, self.trust)[1]

    @property
    def standing(self) -> list[Entry]:
        """The entries that stand."""
        return standing(self._entries.values())

    def beliefs(self) -> Beliefs:
        """Return what the answers say together, as the next fit will take them."""
        return believe(self._entries.values(), trust=self.trust)

    def save(self, entry: Entry) -> None:
        """Add an answer to the journal."""
        self.journal.append(entry)
        self._entries[entry.id] = entry

    def next(self, person: Person) -> Question | None:
        """Return the next question to a person, None where none is left."""
        return next_question(self.batch, self.standing, person, beliefs=self.beliefs())

    def open(self) -> list[Question]:
        """Return what is asked of each document of the batch that is not settled."""
        beliefs, person = self.beliefs(), Person(kind=self.kind)
        return [
            question
            for one in self.batch
            if (question := next_question([one], self.standing, person, control=0, beliefs=beliefs))
        ]

    def texts(self, questions: Sequence[Question]) -> tuple[dict[str, Document], str]:
        """Return the documents that questions show, and why there are none, "" where there are."""
        ids = [name for one in questions for name in (*one.documents, *one.shown)]
        try:
            return Texts(self.output, self.job).read(ids), ""
        except HmrfError as error:
            return {}, f"without texts: {error}"


def asked(asking: Asking) -> Asked:
    """Return the next questions, with the beginnings of the texts that they show."""
    questions = asking.open()
    documents, remark = asking.texts(questions) if questions else ({}, "")
    if len(questions) < asking.n:
        said = f"{len(questions)} of {asking.n}" if questions else "nothing"
        remark = "; ".join(filter(None, [f"{said} is left to ask", remark]))
    return Asked(
        output=asking.output,
        journal=asking.journal.address,
        answers=sum(one.kind in (PAIR, CHOICE) for one in asking.standing),
        questions=[{"id": one.id, **asdict(one)} for one in questions],
        texts={name: beginning(one.text) for name, one in documents.items() if one.text},
        remark=remark,
    )


def beginning(text: str, most: int = BEGINNING) -> str:
    r"""Return the beginning of a text in one line.

    Examples
    --------
    >>> beginning(" a  long\ntext", most=6)
    'a long…'
    """
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[:most]}…"


def as_table(asked: Asked) -> str:
    """Return pairs as CSV, a row each, whose column `kind` is to be filled in."""
    if any(one["kind"] != PAIR for one in asked.questions):
        raise InvalidInputError("a table asks about pairs, got choices; leave out --as choices")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in asked.questions:
        texts = [without_formula(asked.texts.get(document, "")) for document in one["documents"]]
        likely = one["likely"][0] if one["likely"] else ""
        writer.writerow([*one["documents"], "", "", "", *texts, likely, one["why"]])
    return text.getvalue()


def without_formula(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula.

    Examples
    --------
    >>> without_formula("=1+1"), without_formula("one")
    ("'=1+1", 'one')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text
