"""The steps of a run up to its labels: rows of documents, answers, the fit or the last model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from hmrf_dask.constraints.pairs import Constraints
from hmrf_dask.corpus.partitioned import Corpus, corpus_of_files
from hmrf_dask.documents.batches import Reject
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError, counted
from hmrf_dask.estimators.base import HMRFEstimator
from hmrf_dask.estimators.classes import ESTIMATORS, load
from hmrf_dask.fit.choice_of_k import Choice
from hmrf_dask.fit.preparation import check_memory, table_task
from hmrf_dask.fit.suggestion import Span, warn_of_doubt
from hmrf_dask.jobs.answers import (
    NOTHING_GIVEN,
    Answers,
    Given,
    judge_contradictions,
    n_new,
    on_conflict_of,
    read_answers,
    refused,
    split_answers,
    unnamed_annotators,
)
from hmrf_dask.jobs.assignments import Part
from hmrf_dask.jobs.beginning import Beginning, begin
from hmrf_dask.jobs.former import find_in, look_up
from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.job_file import Method, Recipe, Text
from hmrf_dask.jobs.journal import Taken, anchored
from hmrf_dask.jobs.parent import (
    CAME,
    Changes,
    ChosenK,
    FileEntry,
    Parent,
    check_release,
    compare,
    files_of,
)
from hmrf_dask.jobs.places import ANSWERS, model_of
from hmrf_dask.jobs.progress import Watch
from hmrf_dask.jobs.quarantine import check_answers, is_too_much
from hmrf_dask.jobs.rows import (
    EMBEDDINGS,
    JobRows,
    read_vocabulary,
    settings_of,
)
from hmrf_dask.parameters import AUTO, PARAMETERS, SEEDED
from hmrf_dask.progress import SoFar, Tell
from hmrf_dask.releases import own_files
from hmrf_dask.releases.lock import OutputLock
from hmrf_dask.releases.release import Release, read_file
from hmrf_dask.storage.sealed import digest
from hmrf_dask.storage.stores import make_folders
from hmrf_dask.text.files import COUNTED, COUNTS, Place
from hmrf_dask.text.tfidf import Dense, Vocabulary
from hmrf_dask.text.vectorise import WRITTEN, counts_key
from hmrf_dask.types import FloatArray

log = logging.getLogger("hmrf_dask")


def fit_job(
    method: Method,
    corpus: Corpus,
    answers: Constraints | None,
    run_dir: str,
    *,
    first: FloatArray | None,
    alone: bool,
    tell: Tell,
) -> HMRFEstimator:
    """Fit the method of a job; `first` are the centroids of a warm start, (n_clusters, n_features).

    Not `alone`, they are a start next to those that answers make. A fit that was killed resumes in
    `run_dir`.
    """
    parameters = dict(method.parameters)
    if method.name in PARAMETERS["on_conflict"].methods and on_conflict_of(method) == "warn":
        parameters["on_conflict"] = "keep"  # it was said, with the lines
    if first is not None and alone:
        parameters["init"] = first
    model = ESTIMATORS[method.name](**parameters)
    model._progress, model._last = tell, None if alone else first
    model._embedded = True
    if method.name in SEEDED and (answers is None or not len(answers.must_nodes)):
        raise InvalidInputError(
            f"{method.name} must have answers that say which documents belong together, its seeds, "
            "got none; give some, or use KMeans"
        )
    given: dict[str, Any] = {"must_link": answers}
    if method.name == "KMeans":
        given = {}
        if answers is not None:
            warnings.warn(
                f"KMeans takes no pairs: the {len(answers)} answers change nothing; give "
                "method.name HMRFKMeans",
                HmrfWarning,
                stacklevel=2,
            )
    if "://" not in run_dir:
        make_folders(run_dir)  # private where the output is, which a fit by itself asks nobody
    model._reports = False  # that of the release says more
    return model.fit(corpus, run_dir=run_dir, **given)


def choose_k(
    method: Method, corpus: Corpus, answers: Constraints | None, span: Span, so_far: SoFar
) -> Choice:
    """Return what speaks for each K under the method of a job."""
    model = ESTIMATORS[method.name](**{**method.parameters, "n_clusters": AUTO})
    return model._suggest(corpus, answers, span, so_far)


@dataclass(frozen=True)
class JobRun:
    """A run at work, and what follows from what it is made of and from the release before it."""

    inputs: Inputs
    parent: Parent
    hold: OutputLock
    watch: Watch

    @property
    def run_id(self) -> str:
        """What the run is called."""
        return self.parent.run_id

    @property
    def previous(self) -> Release | None:
        """The release that it continues."""
        return self.parent.release

    def record_made(self, names: Iterable[str]) -> None:
        """Record folders of the output that the run is about to make; see `releases.own_files`."""
        own_files.record(self.place.storage, self.run_id, names)

    @property
    def name(self) -> str:
        """The folder of the run, below the output."""
        return f"runs/{self.run_id}"

    @property
    def folder(self) -> str:
        """The folder of the run: a path or URL."""
        return f"{self.inputs.output}/{self.name}"

    @property
    def place(self) -> Place:
        """The output, as tasks know it."""
        return Place(self.inputs.output)

    def write(self, name: str, data: bytes) -> dict[str, str]:
        """Write a file into the folder of the run; return its sha256 by its name in the output."""
        name = f"{self.name}/{name}"
        self.place.storage.write(name, data)
        return {name: digest(data)}

    def read_last(self, name: str) -> bytes:
        """Return a file of the last release, by its name in the folder of a run; else nothing."""
        files = {} if self.previous is None else self.previous.files
        path = next((path for path in files if path.endswith(f"/{name}")), None)
        return b"" if path is None else read_file(self.place.storage, path, files[path])

    def record_of(self, pack: str) -> str:
        """Return the file below the output that says that the documents of a pack were read."""
        if not self.counts_words:
            return f"{EMBEDDINGS}/{pack}/{WRITTEN}"
        return f"{COUNTS}/{self.counts_of(pack)}/{COUNTED}"

    def counts_of(self, pack: str) -> str:
        """Return the key of the counts of all documents of a pack."""
        return counts_key(pack, settings_of(self.text))

    @cached_property
    def changes(self) -> Changes:
        """What happened to the files since the last release."""
        return compare(self.last_files, self.inputs.segments)

    @cached_property
    def last_files(self) -> dict[str, FileEntry]:
        """The files of the last release."""
        return {} if self.previous is None else files_of(self.previous.ledger)

    @cached_property
    def came(self) -> dict[str, int]:
        """The releases that files came with since the last fit, by path; none for a fit.

        Of two documents with one id never the newer one stays, until a fit goes by path alone.
        """
        if self.previous is None or self.inputs.job.mode == "fit":
            return {}
        last = self.previous.ledger.get(CAME, {})  # former versions kept none
        kept = {path: last[path] for path in self.changes.same if path in last}
        return kept | dict.fromkeys((*self.changes.new, *self.changes.changed), self.parent.number)

    @cached_property
    def same(self) -> set[str]:
        """The files that are as they were then, by path."""
        return set(self.changes.same)

    @cached_property
    def last_model(self) -> HMRFEstimator:
        """The model of the last release."""
        assert self.previous is not None
        return load(f"{self.inputs.output}/{model_of(self.previous.files)}")

    @cached_property
    def last_vocabulary(self) -> Vocabulary | None:
        """The vocabulary of the last release; None without one, or where it is of no use."""
        if self.previous is None:
            return None
        job, text = self.inputs.job, self.text
        needed = job.mode == "predict" or job.start == "warm" or text.refit != "always"
        return read_vocabulary(self.previous, self.place, settings_of(text), needed=needed)

    @cached_property
    def kept_choice(self) -> ChosenK | None:
        """The K that was chosen for a former release, where it is that of this run too."""
        chooses = self.inputs.job.method.n_clusters == AUTO and not self.inputs.choose_k
        return ChosenK.of(self.previous.ledger) if self.previous and chooses else None

    @property
    def n_clusters(self) -> int:
        """K as far as it is known before there are rows; 0: it is to be chosen."""
        asked = self.inputs.job.method.n_clusters
        if isinstance(asked, int):
            return asked
        return 0 if self.kept_choice is None else self.kept_choice.n_clusters

    @cached_property
    def recipe(self) -> Recipe:
        """What rows are made of: without a word in the job, embeddings where there are no texts."""
        columns = self.inputs.manifest.documents
        kinds = self.inputs.job.kinds
        if not kinds and columns.text is None:
            kinds = (Text(kind="embeddings"),)
        recipe = Recipe.of(kinds)
        ready = recipe.vectors is not None and recipe.vectors.model is None
        if ready and columns.embedding is None:
            raise ConfigurationError(
                "text.kind embeddings must go with a column or a model, got no "
                "documents.embedding in the manifest; name the column or a model, or choose "
                "another kind"
            )
        if columns.text is None and not (ready and recipe.share == 1.0):
            kind = recipe.words.kind if recipe.share < 1.0 else "embeddings with a model"
            raise ConfigurationError(
                f"text.kind {kind} must go with a column, got no documents.text in the manifest; "
                "name the column, or choose another kind"
            )
        return recipe

    @property
    def text(self) -> Text:
        """How words are counted, for rows or for people alone."""
        return self.recipe.words

    @property
    def counts_words(self) -> bool:
        """Whether there are texts, whose words are counted whatever rows are made of."""
        return self.inputs.manifest.documents.text is not None

    @property
    def dense(self) -> Dense | None:
        """The vectors that rows are made of next to words; the width of ready ones is not known."""
        recipe, embedder = self.recipe, self.inputs.embedder
        if recipe.vectors is None:
            return None
        if embedder is None:
            return Dense("", "", 0, recipe.share)
        model = str(getattr(embedder, "folder", recipe.vectors.model))
        column = recipe.vectors.column
        return Dense(embedder.identity, model, embedder.width, recipe.share, column)


@dataclass(frozen=True)
class Material:
    """What a run works on."""

    rows: JobRows
    corpus: Corpus  # each id once
    names: list[str]  # a file name for each partition
    files: list[int]  # which pack each partition comes from
    repeated: list[Reject]  # documents left out, whose id another file has

    @property
    def parts(self) -> list[Part]:
        """What the partitions are called, and where the columns are that are kept."""
        return list(map(Part, self.names, self.rows.kept()))

    def of_files(self, wanted: list[bool]) -> tuple[Corpus | None, list[Part]]:
        """Return the partitions of some packs, and their parts; None where there are none."""
        chosen = [part for part, file in enumerate(self.files) if wanted[file]]
        parts, sources = self.parts, [self.corpus.sources[part] for part in chosen]
        named = [parts[part] for part in chosen]
        if not sources:
            return None, named
        return corpus_of_files(sources, self.corpus.n_features), named


def planned_steps(run: JobRun) -> list[str]:
    """Return the steps that a run will go through, as far as is known before it begins."""
    fits, embeds = run.inputs.job.mode == "fit", run.inputs.embedder is not None
    chooses = fits and run.inputs.job.method.n_clusters == AUTO and run.kept_choice is None
    steps = {
        "check the last release": run.previous is not None,
        "read answers": True,
        "count words": run.counts_words,
        "read embeddings": (run.dense is not None and not embeds) or not run.counts_words,
        "embed texts": run.dense is not None and embeds,
        "weigh words": run.counts_words,
        "look for ids that come twice": True,
        "look up answers": True,
        "choose K": chooses,
        "fit": fits,
        "match clusters": fits,
        "write assignments": True,
        "choose questions": fits and bool(run.inputs.job.questions),
        "write the report": True,
        "publish": True,
        "publish in the database": run.inputs.job.publish is not None,
        "write the report page": True,
    }
    return [name for name, comes in steps.items() if comes]


def check_parent(run: JobRun) -> None:
    """Check what the run continues before hours of work are put into it."""
    if run.previous is not None:
        with run.watch.step("check the last release"):
            predicting = run.inputs.job.mode == "predict"
            check_release(run.place.storage, run.previous, predicting=predicting)


def given_answers(run: JobRun) -> Given:
    """Return the answers; what is wrong with them alone is said before any document is read."""
    given = NOTHING_GIVEN
    with run.watch.step("read answers"), _stopping_fits(run):
        journal, annotators = run.inputs.journal, run.inputs.job.annotators
        given = read_answers(run.inputs.answers, annotators, journal)
        if doubt := unnamed_annotators(given, annotators, journal.annotators):
            warnings.warn(doubt, HmrfWarning, stacklevel=2)
        _refuse_rejects(run, given, given.rejects, given.rejects)
        _judge_contradictions(run, given, certain=_all_are_used(run))
    return _with_cut_lines(given, journal)


def _with_cut_lines(given: Given, journal: Taken) -> Given:
    """List lines of the journal that are no entries: a kill may cut one, which stops no run."""
    cut = journal.rejects()
    if cut:
        warnings.warn(
            f"{counted(len(cut), 'line')} of the journal left out: {cut[0].source}, line "
            f"{cut[0].line}: {cut[0].reason}",
            HmrfWarning,
            stacklevel=2,
        )
    return replace(given, rejects=[*given.rejects, *cut], n_answers=given.n_answers + len(cut))


def _judge_contradictions(run: JobRun, given: Given, *, certain: bool) -> None:
    """Refuse contradictions, or warn of them as soon as it is known which answers are used."""
    said = judge_contradictions(given, run.inputs.job.method, certain=certain)
    if said and certain:
        warnings.warn(said, HmrfWarning, stacklevel=2)


@contextmanager
def _stopping_fits(run: JobRun) -> Iterator[None]:
    """Warn of what would stop a fit where a run only predicts, which uses no answers."""
    try:
        yield
    except InvalidInputError as error:
        if run.inputs.job.mode != "predict":
            raise
        warnings.warn(f"the next fit will stop: {error}", HmrfWarning, stacklevel=2)


def _all_are_used(run: JobRun) -> bool:
    """Return whether no answer may be left out for want of a document."""
    return not (run.inputs.job.quarantines or run.previous is not None or run.parent.skipped)


def find_answers(run: JobRun, material: Material, given: Given) -> Answers:
    """Return the answers; those about documents that are not there wait, or are rejected.

    A prediction uses none, and warns of those that wait for the next fit.
    """
    with run.watch.step("look up answers"):
        find = partial(find_in, material.corpus)
        documents = look_up(run.place, run.previous, given.named(), find)
        given = anchored(given, run.inputs.journal.address, documents)
        answers = split_answers(given, documents)
        with _stopping_fits(run):
            _refuse_rejects(run, given, answers.rejects, answers.unknown)
            if not _all_are_used(run):
                _judge_contradictions(run, answers.known, certain=True)
    if run.inputs.job.mode == "fit":
        return replace(answers, used=answers.known.with_classes().constraints())
    answers = replace(answers, n_unused=n_new(answers.known, run.read_last(ANSWERS)))
    if answers.n_unused:
        warnings.warn(
            f"mode predict uses no answers: {counted(answers.n_unused, 'answer')} that the last "
            "fit had not change nothing before the next one; run with mode fit to use them",
            HmrfWarning,
            stacklevel=2,
        )
    return answers


def _refuse_rejects(
    run: JobRun, given: Given, rejects: Sequence[Reject], new: Sequence[Reject]
) -> None:
    """Stop at answers that the job does not quarantine, or at too many; `new` are those unsaid."""
    if run.inputs.job.quarantines:
        check_answers(run, given, rejects)
    elif new:
        too_much = is_too_much(run.inputs.job, len(new), given.n_answers)
        raise refused(new, too_much=too_much)


class JobFit(NamedTuple):
    """What a job fitted."""

    model: HMRFEstimator
    begun: Beginning
    chosen: ChosenK | None  # None where K was given


def fit_all(run: JobRun, material: Material, answers: Answers) -> JobFit:
    """Fit all documents; K is chosen first where the job leaves it open."""
    method, chosen = _with_k(run, material, answers)
    begun = begin(run, material, method)
    method = method.model_copy(update={"n_clusters": begun.n_clusters})
    check_memory([table_task(begun.n_clusters, material.corpus.n_features)])
    same_answers = not n_new(answers.known, run.read_last(ANSWERS))  # they made starts before
    with run.watch.step("fit"):
        model = fit_job(
            method, material.corpus, answers.used, f"{run.folder}/fit",
            first=begun.first, alone=same_answers or begun.alone, tell=run.watch.tell,
        )  # fmt: skip
    return JobFit(model, begun, chosen)


def _with_k(run: JobRun, material: Material, answers: Answers) -> tuple[Method, ChosenK | None]:
    """Return the method of a job with a number of clusters, and how that was chosen if it was."""
    method, chosen = run.inputs.job.method, run.kept_choice
    if method.n_clusters != AUTO:
        return method, None
    if chosen is None:
        with run.watch.step("choose K", "numbers") as so_far:
            choice = choose_k(method, material.corpus, answers.used, Span(), so_far)
        warn_of_doubt(choice)
        chosen = ChosenK(
            choice.n_clusters, choice.least, choice.largest, round(choice.share, 3),
            release=run.parent.number, asked=run.inputs.choose_k,
        )  # fmt: skip
    return method.model_copy(update={"n_clusters": chosen.n_clusters}), chosen
