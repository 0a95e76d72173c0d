"""Questions, and answers that go in or out, as a person reads them in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hmrf_dask.cli.group import one_line
from hmrf_dask.cli.terminal import bold, relative
from hmrf_dask.errors import counted

if TYPE_CHECKING:
    from hmrf_dask.jobs.ask import Asked
    from hmrf_dask.jobs.exchange import Exchange

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
