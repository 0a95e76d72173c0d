"""How a command ends early: by a signal, or because nobody reads what it prints.

What all commands share: errors and warnings as lines, where the work runs, how results look.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from hmrf_dask.errors import (
    HmrfError,
    HmrfWarning,
    MemoryPlanError,
    in_words,
    is_of_a_store,
    may_pass,
)
from hmrf_dask.parameters import RANGES, Range
from hmrf_dask.redaction import logs_without_secrets, shortened, without_secrets
from hmrf_dask.storage.addresses import plain_url

if TYPE_CHECKING:
    from hmrf_dask.jobs.clusters import Cluster

INTERRUPTED = 130  # what shells give a command that Ctrl-C ended
UNREAD = 141  # and one whose reader went away, such as `head`
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_SAME_SIGNAL = 1.0  # seconds: `timeout` sends its signal to a process, then to its group


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: what is open is closed on the way out, as after Ctrl-C.

    Examples
    --------
    >>> EndedBySignal(signal.SIGTERM).exit_code
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number


class _Handler:
    """Raises on the first signal, unless that has to wait, and ends the process on a later one."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.waiting = 0
        self.pending: EndedBySignal | None = None

    def __call__(self, number: int, _: Any) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            logging.disable()  # what is closed under the feet of others makes them complain
            self.pending = EndedBySignal(number)
            self.raise_if_pending()
        elif now - self.first > _SAME_SIGNAL:
            os._exit(128 + number)

    def raise_if_pending(self) -> None:
        """Raise what came, once nothing has to be finished first."""
        if self.pending is not None and not self.waiting:
            error, self.pending = self.pending, None
            raise error


_handlers: list[_Handler] = []


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise EndedBySignal inside when SIGTERM or SIGHUP comes; a second one ends at once.

    What ignores a signal, such as a command under `nohup`, still does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler()
    _handlers.append(handler)
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        _handlers.remove(handler)
        for number, former in before.items():
            signal.signal(number, former)
        if handler.first is not None:
            logging.disable(logging.NOTSET)


@contextmanager
def finished_first() -> Iterator[None]:
    """Let a signal that comes inside end the command only after it: half of it would be left."""
    for handler in _handlers:
        handler.waiting += 1
    try:
        yield
    finally:
        for handler in _handlers:
            handler.waiting -= 1
            handler.raise_if_pending()  # in place of what fails because children got it too


def start_silent_tracker() -> None:
    """Start the process that removes semaphores which this one leaves, and let it say nothing.

    Whoever ends a command early knows that it was not finished.
    """
    from multiprocessing import resource_tracker

    silent = "ignore:resource_tracker:UserWarning"
    sys.warnoptions.append(silent)  # it is started with these
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(silent)


def forget_stdout() -> None:
    """Write nothing more to a pipe that nobody reads, not even when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def leave(code: int) -> NoReturn:
    """End the process at once: threads that still compute would be waited for."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


F = TypeVar("F", bound=Callable[..., Any])

WARNED = "hmrf_dask.warned"  # in the context of a command: its warnings, each text once
# What to do after Ctrl-C or a signal; the other commands leave nothing half done that a second one
# would use.
AGAIN = {
    "run": "run it again: it resumes where it stopped",
    "fit": "run it again, without --fresh: it resumes where it stopped",
    "label": "every answer is saved: run it again to go on",
    "demo": "run it again with --resume: it resumes where it stopped",
}
EXIT_CODES = (
    "Exit codes: 0 done, 2 usage, 65 bad data, 75 try again, 78 bad configuration; 129, 130, 143 "
    "ended by SIGHUP, Ctrl-C, SIGTERM."
)


HELP = ["-h", "--help"]


class HmrfGroup(click.Group):
    """A group whose errors and warnings are one clear line on stderr, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end with the exit code of the error's class."""
        try:
            with ended_by_signals(), logs_without_secrets():
                return self._invoked(ctx)
        except BrokenPipeError:  # of our own output: all others are explained where they come from
            forget_stdout()
            ctx.exit(UNREAD)

    def _invoked(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except click.ClickException as error:  # repeats what was given
            error.message = without_secrets(error.message)  # type: ignore[misc]
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last that has words
            words, exit_code = _ending(error, ctx.invoked_subcommand or "")
            click.echo(words, err=True)
            ctx.exit(exit_code)


def seen_from_here(words: str) -> str:
    """Return words in which absolute paths below this folder are relative.

    Examples
    --------
    >>> seen_from_here(f"{os.getcwd()}/out/rejects, file://{os.getcwd()}/out")[:12]
    'out/rejects,'
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        return words
    return (
        words
        if here == "/"
        else re.sub(rf"(?<![\w/.~-]){re.escape(here)}/(?=[^\s,;:)])", "", words)
    )


def _ending(error: BaseException, command: str) -> tuple[str, int]:
    """Return what a command says that ends by an error, and its exit code."""
    if isinstance(error, HmrfError):
        return f"error: {seen_from_here(one_line(error))}", error.exit_code
    if isinstance(error, MemoryError):
        return (
            f"error: there must be more memory for this, got {one_line(error) or 'no more'}; "
            "ask for less (clusters, features, threads), or run it where there is more"
        ), MemoryPlanError.exit_code
    if isinstance(error, KeyboardInterrupt):
        next_step = AGAIN.get(command, "run it again to have it all")
        if isinstance(error, EndedBySignal):
            return f"ended by {error.name}; {next_step}", error.exit_code
        return f"interrupted; {next_step}", INTERRUPTED
    if is_of_a_store(error):
        passing = may_pass(error)
        advice = "run again later" if passing else "check the path, the rights and the settings"
        words = without_secrets(one_line(in_words(error)))
        return f"error: a store or the network failed, got {words}; {advice}", 75 if passing else 78
    # A fault of ours: shown as Python would.
    return without_secrets("".join(traceback.format_exception(error)).rstrip()), 1


class HmrfCommand(click.Command):
    """A command whose warnings are lines on stderr, and which takes no empty values.

    An empty value is a variable that a script did not set.
    """

    def __init__(self, name: str | None, **settings: Any) -> None:
        settings["context_settings"] = {"help_option_names": HELP} | (
            settings.get("context_settings") or {}
        )
        super().__init__(name, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what the package warns of is shown under --quiet too."""
        with _warnings_as_lines(ctx.meta.setdefault(WARNED, {}), quiet=ctx.params.get("quiet")):
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and refuse arguments and options without anything in them."""
        rest = super().parse_args(ctx, args)
        for param in () if ctx.resilient_parsing else self.get_params(ctx):
            value = ctx.params.get(param.name or "")
            if isinstance(value, str) and not value.strip():
                way_out = "; give it a value, or leave it out"
                is_option = isinstance(param, click.Option)
                raise click.BadParameter(
                    f"must not be empty{way_out if is_option else ''}", ctx, param
                )
        return rest


def one_line(message: object) -> str:
    r"""Return a message without line breaks, and without what would command a terminal.

    Examples
    --------
    >>> print(one_line("documents/\x1b[31m.jsonl:\n  fix it"))
    documents/\x1b[31m.jsonl: fix it
    """
    line = " ".join(str(message).split())
    return "".join(sign if sign.isprintable() else f"{sign!a}"[1:-1] for sign in line)


@contextmanager
def _warnings_as_lines(warned: dict[str, None], *, quiet: bool | None) -> Iterator[None]:
    """Print each HmrfWarning as one line, and note it; `quiet` leaves out those of libraries."""
    with warnings.catch_warnings():
        show_as_python_does = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            """Write a warning of this package as one line, each once; others as Python does."""
            if issubclass(category, HmrfWarning):
                text = seen_from_here(one_line(message))
                if text not in warned:
                    warned[text] = None
                    sys.stderr.write(f"warning: {text}\n")  # above a bar, if there is one
            else:
                show_as_python_does(without_secrets(str(message)), category, *rest, **more)

        warnings.showwarning = show
        if quiet:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", HmrfWarning)
        yield


def examples(*commands: str) -> str:
    """Return what a command's help ends with: command lines to begin with.

    Examples
    --------
    >>> examples("hmrf-dask check job.yaml").splitlines()[1:]
    ['Examples:', '  hmrf-dask check job.yaml']
    """
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options in the order in which `--help` is to show them."""

    def add(command: F) -> F:
        """Add the options, the last one first: click shows them the other way round."""
        for option in reversed(options):
            command = option(command)
        return command

    return add


class Place(click.ParamType[str]):
    """A path or a URL, which carries no secret.

    Examples
    --------
    >>> Place().convert("s3://bucket/rows.npz", None, None)
    's3://bucket/rows.npz'
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        """Return it, refused in words that do not show the secret."""
        if isinstance(param, click.Option):
            return plain_url(value, param.opts[0])
        return plain_url(value, param.human_readable_name if param else "a path or URL")


class PlaceOfOutput(Place):
    """The output of a job; the job itself is refused with the path that is meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it, where it is not a job."""
        from hmrf_dask.documents.yaml_files import refuse_job

        place = super().convert(value, param, ctx)
        refuse_job(place)
        return place


class Whole(click.IntRange):
    """A whole number, written in digits, in a range, or one of some names.

    Examples
    --------
    >>> Whole(RANGES["threads"]).convert("12", None, None)
    12
    """

    def __init__(self, numbers: Range, names: tuple[str, ...] = ()) -> None:
        super().__init__(int(numbers.least), int(numbers.most))
        self.names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; Python itself takes 1_0, too, and no thousand digits."""
        if value in self.names:
            return value
        if isinstance(value, str) and not value.strip():
            self.fail("must not be empty", param, ctx)
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,40}", value.strip()):
            words = " or ".join(["a whole number", *self.names])
            self.fail(f"must be {words}, got {shortened(value)}", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.ParamType[float]):
    """A number with which nothing is wrong, as `problem_of` it says, or one of some names.

    Examples
    --------
    >>> Number(RANGES["share"].problem).convert("0.5", None, None)
    0.5
    """

    name = "number"

    def __init__(self, problem_of: Callable[[float], str], names: tuple[str, ...] = ()) -> None:
        self.problem_of, self.names = problem_of, names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or a name as it is."""
        if value in self.names:
            return value
        try:
            number = float(value)
        except ValueError:
            words = " or ".join(["a number", *self.names])
            self.fail(f"must be {words}, got {shortened(value)}", param, ctx)
        if problem := self.problem_of(number):
            self.fail(f"{problem}, got {shortened(value)}", param, ctx)
        return number


class PlaceOfFile(click.Path):
    """A path of a file that is there, which carries no secret."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return it; click alone would repeat a secret."""
        return super().convert(Place().convert(value, param, ctx), param, ctx)


where_to_run = with_options(
    click.option(
        "--threads", type=Whole(RANGES["threads"]), help="Threads here (the default: all)."
    ),
    click.option("--processes", type=Whole(RANGES["processes"]), help="Worker processes here."),
    click.option("--scheduler", metavar="ADDRESS", type=Place(), help="A running dask scheduler."),
    click.option("--scheduler-file", type=PlaceOfFile(exists=True), help="File with it."),
    click.option(
        "--insecure",
        is_flag=True,
        default=None,
        help="Allow a scheduler without TLS that other machines reach.",
    ),
)
how_to_print = with_options(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."),
    click.option(
        "--quiet", "-q", is_flag=True, help="Print errors and warnings (and --json) only."
    ),
)


def scheduler_option(where: dict[str, Any]) -> dict[str, Any]:
    """Return the option that says where to run, if any; two are a mistake of usage.

    Examples
    --------
    >>> scheduler_option({"threads": None, "processes": 2})
    {'processes': 2}
    """
    chosen = {name: value for name, value in where.items() if value is not None}
    ways = chosen.keys() - {"insecure"}
    if len(ways) > 1:
        names = [f"--{name.replace('_', '-')}" for name in chosen if name in ways]
        raise click.UsageError(f"{' and '.join(names)} exclude each other; give one of them")
    return chosen


def connected_to(
    where: dict[str, Any], cluster: Cluster | None = None
) -> AbstractContextManager[None]:
    """Return a context in which Dask runs where the options say, or else the job file."""
    chosen = scheduler_option(where)  # before anything is imported
    from hmrf_dask.cli.connect import connected

    if not chosen.keys() - {"insecure"}:
        chosen["cluster"] = cluster
    return connected(**chosen)


def print_result(result: Any, *, as_json: bool, quiet: bool) -> None:
    """Print a dataclass or a dictionary: as one JSON object with the warnings, or as a page."""
    if as_json:
        plain = result if isinstance(result, dict) else asdict(result)
        warned = click.get_current_context().meta.get(WARNED, {})
        click.echo(json.dumps({**plain, "warnings": list(warned)}))
    elif not quiet:
        from hmrf_dask.cli.show import show

        show(result)
