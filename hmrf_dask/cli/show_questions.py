"""Questions and answers as a person reads them in the terminal: asked, exchanged, taken by runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hmrf_dask.cli.group import one_line
from hmrf_dask.cli.terminal import bold, relative
from hmrf_dask.errors import counted

if TYPE_CHECKING:
    from hmrf_dask.jobs.ask import Asked
    from hmrf_dask.jobs.exchange import Exchange

WAITING = "of answers waiting for a document that is gone"
_GROUPS = 5  # of a question: the likeliest come first


def asked_lines(asked: Asked) -> Iterator[str]:
    """Say the next questions, each with its documents, and how many answers there are."""
    for number, question in enumerate(asked.questions, 1):
        documents = [*question["documents"], *question["shown"]]
        yield f"{bold(str(number))} {_document(asked, documents[0])}"
        yield "  and" if question["kind"] == "pair" else "  which of these?"
        yield from (f"  {_document(asked, other)}" for other in documents[1:][:_GROUPS])
        if len(documents) > _GROUPS + 1:
            less = counted(len(documents) - _GROUPS - 1, "group that is", "groups that are")
            yield f"  … {less} less likely (--json has all)"
    yield f"{counted(asked.answers, 'answer')} so far in {relative(asked.journal)}"


def _document(asked: Asked, name: str) -> str:
    return one_line(f"{name}: {asked.texts[name]}" if name in asked.texts else name)


def exchange_lines(exchange: Exchange) -> Iterator[str]:
    """Say what came of answers that went in or out."""
    yield f"{bold(counted(exchange.answers, 'answer'))} in {relative(exchange.journal)}"
    if exchange.added or exchange.there or exchange.open:
        yield (
            f"{exchange.added:,} added of {exchange.file}, {exchange.there:,} were there, "
            f"{exchange.open:,} without an answer"
        )
        if exchange.unsettled:
            yield (
                f"{exchange.unsettled:,} documents are not settled yet: a run leaves out what was "
                "said of them until more is; pairs that it is to take as they are belong into an "
                "answers file of the job"
            )
    else:
        yield exchange.file


def answer_lines(answers: dict[str, Any]) -> Iterator[str]:
    """Say what a run took of answers, what its clusters break of them, and what is left out."""
    pairs, violated = answers["pairs"], answers["violated"]
    if answers["unused"]:
        yield f"{counted(answers['unused'], 'new answer')} not used: they wait for the next fit"
    elif any(pairs.values()):
        yield (
            f"violated: {violated['must']:,} of {counted(pairs['must'], 'must-link')}, "
            f"{violated['cannot']:,} of {counted(pairs['cannot'], 'cannot-link')}"
        )
    if journal := answers.get("journal"):
        yield f"{counted(journal['answers'], 'answer')} of the journal taken"
    if suspect := answers.get("suspect", 0):  # runs of former versions have none
        yield f"{counted(suspect, 'answer')} more likely wrong than right"
    if questions := answers.get("questions", 0):
        yield f"{counted(questions, 'question')} to answer next"
    for name, words in (("quarantined", "of answers quarantined"), ("waiting", WAITING)):
        if answers[name]:
            yield f"{counted(answers[name], 'line')} {words}"


def journal_line(journal: dict[str, Any]) -> str:
    """Say how many answers a journal has, and how many a run did not see yet."""
    line = f"journal: {counted(journal['answers'], 'answer')}"
    if journal["since"]:
        new = counted(journal["since"], "answer or edit", "answers and edits")
        line += f"; {new} since the last release: run the job to use all"
    if journal["bad"]:
        line += f"; {counted(journal['bad'], 'line')} cannot be read"
    return line
