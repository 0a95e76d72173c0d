"""`hmrf-dask ask`: the next questions about an output, to read, to fill in, or to answer here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from hmrf_dask.cli.answers_command import journal_option
from hmrf_dask.cli.group import (
    HmrfCommand,
    Place,
    PlaceOfOutput,
    Whole,
    connected_to,
    examples,
    how_to_print,
    one_line,
    print_result,
    where_to_run,
)
from hmrf_dask.errors import counted
from hmrf_dask.parameters import RANGES

if TYPE_CHECKING:
    from hmrf_dask.answers.records import Entry, Question
    from hmrf_dask.jobs.ask import Asking

KINDS = {"pairs": "pair", "choices": "choice"}


@click.command(
    cls=HmrfCommand,
    short_help="Print the next questions to a person.",
    epilog=examples(
        "hmrf-dask ask tickets-clusters/out -i",
        "hmrf-dask ask tickets-clusters/out -n 50 --csv > questions.csv",
    ),
)
@click.argument("output", type=PlaceOfOutput())
@click.option(
    "-n", "n", type=Whole(RANGES["batch"]), default=25, show_default=True, help="How many."
)
@click.option(
    "--as",
    "kind",
    type=click.Choice(list(KINDS)),
    help="Pairs, or which of the groups.  [default: choices where there are more than 4 groups]",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print a table whose column kind is empty.")
@click.option("-i", "--interactive", is_flag=True, help="Answer here, one key an answer.")
@click.option("--name", default=None, help="Who answers, with --interactive.")
@click.option("--job", type=Place(), help="The job file, where the release does not say it.")
@journal_option
@how_to_print
@where_to_run
def ask(
    output: str,
    n: int,
    kind: str | None,
    as_csv: bool,
    interactive: bool,
    name: str | None,
    job: str | None,
    journal: str | None,
    as_json: bool,
    quiet: bool,
    **where: Any,
) -> None:
    """Print the next questions about OUTPUT: those of its last release, or new ones.

    Fill in the column kind of --csv with same, different or unknown, and give the table to
    `answers import`; --interactive saves every answer as soon as a key is pressed. A run uses them
    next. Ask about 25 from run to run: 50 at a time bring less (NMI .04 to .05 lower on two sets of
    messages), 10 at a time .01 to .02 more.
    """
    if as_csv + as_json + interactive > 1:
        raise click.UsageError("--csv, --json and --interactive exclude each other; give one")
    if as_csv and kind == "choices":
        raise click.UsageError("--csv asks about pairs; leave out --as choices")
    from hmrf_dask.jobs.ask import Asking, as_table, asked

    wanted = "pairs" if as_csv else kind
    with connected_to(where):
        asking = Asking(
            output, n, kind=KINDS[wanted] if wanted else None, journal=journal, job=job or ""
        )
    if interactive:
        _answer(asking, name or "")
        return
    result = asked(asking)
    if result.remark and not as_json:
        click.echo(f"warning: {one_line(result.remark)}", err=True)
    if as_csv:
        click.echo(as_table(result), nl=False)
    else:
        print_result(result, as_json=as_json, quiet=quiet)


# ---- answers in a terminal


def _answer(asking: Asking, name: str) -> None:
    """Ask until nothing is left, or the person has had enough."""
    from hmrf_dask.questions.rounds import Person

    skipped = set[str]()
    said: list[Entry] = []
    while True:
        person = Person(name, asking.kind, frozenset(skipped))
        question = asking.next(person)
        if question is None:
            break
        for line in _shown(asking, question):
            click.echo(line)
        begun = time.monotonic()
        key = _key(question)
        if key == "q":
            break
        if key == "b":
            _take_back(asking, said, name)
        elif key == "k":
            skipped.add(question.documents[0])
        else:
            entry = _entry(question, key, name, time.monotonic() - begun)
            asking.save(entry)
            said.append(entry)
    click.echo(f"{counted(len(said), 'answer')} saved in {asking.journal.address}")


def _shown(asking: Asking, question: Question) -> Iterator[str]:
    """Yield the lines that show a question; whatever a text holds commands no terminal."""
    from hmrf_dask.jobs.ask import beginning

    documents, remark = asking.texts([question])

    def text(name: str) -> str:
        """Return what is known of a document."""
        document = documents.get(name)
        words = document.text or document.missing if document else remark
        return f"{one_line(name)}: {one_line(beginning(words, 600))}"

    yield ""
    yield text(question.documents[0])
    if question.kind == "pair":
        yield text(question.documents[1])
        yield "the same (s), different (d), do not know (?), skip (k), back (b), quit (q)"
        return
    for number, document in enumerate(question.shown, 1):
        yield f"{number:3} {text(document)}"
    yield "number, none of them (n), new (w), do not know (?), skip (k), back (b), quit (q)"


def _key(question: Question) -> str:
    """Return what a person answers, "q" at the end of what is typed."""
    try:
        return _typed(question)
    except (EOFError, click.Abort):
        return "q"
    except OSError as error:
        raise click.UsageError(
            "--interactive must have a terminal, got none; use --csv, or hmrf-dask label"
        ) from error


def _typed(question: Question) -> str:
    """Return what a person types: a key, or of a choice a number."""
    if question.kind == "pair":
        while (key := click.getchar().casefold()) not in ("s", "d", "?", "k", "b", "q"):
            pass
        return key
    numbers = [str(number) for number in range(1, len(question.shown) + 1)]
    allowed = click.Choice([*numbers, "n", "w", "?", "k", "b", "q"], case_sensitive=False)
    return str(click.prompt("", type=allowed, show_choices=False, prompt_suffix="> "))


def _entry(question: Question, key: str, name: str, seconds: float) -> Entry:
    from datetime import UTC, datetime
    from uuid import uuid4

    from hmrf_dask.answers.records import DIFFERENT, NEW, NONE, SAME, UNKNOWN, Entry

    answers = {"s": SAME, "d": DIFFERENT, "?": UNKNOWN, "n": NONE, "w": NEW}
    documents = question.documents
    if key.isdigit():
        documents = (*documents, question.shown[int(key) - 1])
    return Entry(
        uuid4().hex,
        question.kind,
        documents,
        question.shown,
        answers.get(key, SAME),
        annotator=name,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        seconds=round(min(seconds, 3600.0), 1),
        likely=question.likely,
        why=question.why,
    )


def _take_back(asking: Asking, said: list[Entry], name: str) -> None:
    """Take back the last answer that was given here."""
    from datetime import UTC, datetime
    from uuid import uuid4

    from hmrf_dask.answers.records import UNDO, Entry

    if said:
        time_now = datetime.now(UTC).isoformat(timespec="milliseconds")
        about = said.pop().id
        asking.save(Entry(uuid4().hex, UNDO, annotator=name, time=time_now, about=about))
