"""A job from its inputs to a release: rows, fit, assignments, lineage, one commit; and repair."""

from __future__ import annotations

import errno
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hmrf_dask.answers.journal import FILE
from hmrf_dask.documents.segments import Documents, KnownListing
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    HmrfWarning,
    InvalidInputError,
    UnreadableFileError,
    counted,
    in_words,
)
from hmrf_dask.jobs import journal
from hmrf_dask.jobs.former import count_overlap
from hmrf_dask.jobs.inputs import Inputs, listed_again
from hmrf_dask.jobs.namers import find_namer
from hmrf_dask.jobs.parent import (
    INPUTS,
    Parent,
    chose_again,
    compare,
    damage_explained,
    files_of,
    find_parent,
    is_done,
    last_release,
    parent_again,
)
from hmrf_dask.jobs.places import NAME, Report, assignments_of
from hmrf_dask.jobs.prepare import prepare
from hmrf_dask.jobs.progress import Watch, record_launch
from hmrf_dask.jobs.quarantine import TooManyRejectedError
from hmrf_dask.jobs.release import release, write_fit, write_prediction
from hmrf_dask.jobs.steps import (
    JobRun,
    Material,
    check_parent,
    find_answers,
    fit_all,
    given_answers,
    planned_steps,
)
from hmrf_dask.progress import Tell, nothing
from hmrf_dask.releases import ownership
from hmrf_dask.releases.lock import OutputLock, held, open_output
from hmrf_dask.releases.own_files import RUNS, remove_own
from hmrf_dask.releases.ownership import clean
from hmrf_dask.releases.release import (
    LATEST,
    Contents,
    DamagedReleaseError,
    Release,
    check_files,
    hashed_in,
    pointed,
    pointer_damage,
    publish,
    read_file,
    read_if_whole,
    tonight,
)
from hmrf_dask.storage.sealed import RunUnavailableError
from hmrf_dask.storage.stores import (
    OTHERS,
    PRIVATE_FOLDER,
    is_private,
    make_folders,
    open_storage,
)
from hmrf_dask.text.files import COUNTED, COUNTS
from hmrf_dask.text.vectorise import WRITTEN
from hmrf_dask.text.vectors import LOG, RECORD

_KEY = "[0-9a-f]{24}"
_COUNTS = re.compile(rf"(?:^|/)({COUNTS}/{_KEY})/[^/]+$")
_ROWS = re.compile(rf"(?:^|/)(rows/(?:{_KEY}|embeddings)/{_KEY})/[^/]+$")
_PLACES = re.compile(rf"(?:^|/)(vectors/{_KEY}/{_KEY})/[^/]+$")
_VECTORS = re.compile(rf"(?:^|/)(vectors/{_KEY}/{LOG}/[^/]+)$")
_DOCUMENTS = re.compile(rf"(?:^|/)documents/({_KEY})/[^/]+$")
_OF_RUN = re.compile(r"(?:^|/)(runs/[0-9a-f]{16}/rows/[^/]+)$")


def _repaired(run: JobRun) -> Report:
    """Do the work of a run, begun again for every damaged file that can be made again.

    What is done already is not done again. The same file damaged again, or one that nobody knows
    how to make, is an error.
    """
    removed: set[str] = set()
    while True:
        try:
            return _work(run)
        except UnreadableFileError as error:
            record = _record_of(run, error.path)
            if record is None or record in removed:
                raise
            removed.add(record)
            warnings.warn(
                f"{error.path}: {error.what}; it is made again of the documents",
                HmrfWarning,
                stacklevel=2,
            )
            run.place.storage.delete([record])


def _record_of(run: JobRun, path: str) -> str | None:
    """Return the file below the output without which a damaged file is made again."""
    if named := _COUNTS.search(path):
        return f"{named[1]}/{COUNTED}"
    if named := _ROWS.search(path):
        return f"{named[1]}/{WRITTEN}"
    if named := _PLACES.search(path):
        return f"{named[1]}/{RECORD}"
    if named := _VECTORS.search(path):
        return named[1]  # what refers to it is made again, too
    if named := _DOCUMENTS.search(path):
        return run.record_of(named[1])
    named = _OF_RUN.search(path)  # rows without repeated ids, written by every attempt
    return None if named is None else named[1]


def damage_of(output: str, release: Release) -> str | None:
    """Return what is wrong with a release, as far as one night reads it; None if nothing is."""
    try:
        check_files(open_output(output, None), release, hashed_in(tonight(), release.sizes))
    except DamagedReleaseError as error:
        return str(error)
    return None


def remake_of(inputs: Inputs) -> tuple[Inputs, Parent, str] | None:
    """Return what a damaged last release was made of, from which release, and the damage.

    None where it is whole, or cannot be made again.
    """
    last = None if inputs.from_release is not None else last_release(inputs.output)
    if last is None or (damage := damage_of(inputs.output, last)) is None:
        return None
    then = _inputs_of(last, inputs)
    parent = None if then is None else parent_again(then, last)
    return None if then is None or parent is None else (then, parent, damage)


def _inputs_of(release: Release, inputs: Inputs) -> Inputs | None:
    """Return what a release was made of, None where these inputs have it no more as it was."""
    changes = compare(files_of(release.ledger), inputs.segments)
    if changes.changed or changes.gone:
        return None
    taken = inputs.journal.until(release.ledger.get(journal.KEY, {}).get("end", 0))
    same = set(changes.same)
    segments = [segment for segment in inputs.segments if segment.name in same]
    documents = Documents(segments, KnownListing.of(release.ledger))
    for mode in ("fit", "predict"):  # whatever is asked now, with --predict or without
        job = inputs.job.model_copy(update={"mode": mode})
        then = replace(
            inputs, job=job, documents=documents, choose_k=chose_again(release), journal=taken
        )
        if release.ledger.get(INPUTS) == then.identity:
            return then
    return None


def make_private(output: str) -> None:
    """Keep a local output from all but its owner: what is there, and all that will be written.

    The folder itself is the sign that writers go by (`storage.stores`), so it comes last. An object
    store has no such bits: its own rules say who may read.
    """
    if "://" in output:
        return
    try:
        if not os.path.isdir(output):
            make_folders(os.path.dirname(output))
            os.mkdir(output, PRIVATE_FOLDER)
        if is_private(output):
            return
        for path in (*_own(output), output):
            os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~OTHERS)
    except OSError as error:
        raise ConfigurationError(
            f"private: true must go with an output whose owner runs the job, got {output} "
            f"({error.strerror}); give another output, or leave private out"
        ) from error


def _own(output: str) -> Iterator[str]:
    """Yield what an output holds of its own, never through a link."""
    for name in (ownership.NAME, *ownership.NAMES, FILE):
        path = f"{output}/{name}"
        if os.path.islink(path) or not os.path.exists(path):
            continue
        yield path
        for above, folders, files in os.walk(path):
            inside = (f"{above}/{one}" for one in (*folders, *files))
            yield from (one for one in inside if os.path.exists(one) and not os.path.islink(one))


def report_if_done(inputs: Inputs) -> Report | None:
    """Return the report of the last release if nothing is left to do for these inputs.

    Nor is a damaged release done: the run that follows makes it again, or says how to go on.
    """
    storage = open_output(inputs.output, None)
    ownership.refuse_other(storage, inputs.owner, hand_over=inputs.take_over)
    if inputs.from_release is not None or inputs.take_over or pointer_damage(storage):
        return None
    with damage_explained(inputs.output):
        release = last_release(inputs.output)
    if release is None or not is_done(release, inputs):
        return None
    if damage_of(inputs.output, release):
        return None
    named = pointed(storage)  # `publish` done again makes it name the release
    if not named or named["release"] != release.number:
        return None
    report = _report_of(release, inputs)
    if inputs.job.publish is not None:
        from hmrf_dask.jobs.publish import is_published

        if not is_published(inputs, inputs.job.publish.sql):
            with held(inputs.output, release.run) as hold:
                _publish(inputs, hold)
    return report


def _report_of(release: Release, inputs: Inputs) -> Report:
    """Return the report of a release that is up to date, and whole as far as one night reads."""
    if inputs.job.private:  # it may be new in the job
        make_private(inputs.output)
    with damage_explained(inputs.output, release):
        if damage := damage_of(inputs.output, release):
            raise DamagedReleaseError(damage)
        name = f"runs/{release.run}/{NAME}"
        data = read_file(open_output(inputs.output), name, release.files[name])
    return Report.from_json(data, inputs.output).up_to_date()


def refuse_shrunk(run: JobRun, material: Material) -> None:
    """Raise InvalidInputError where more than half of the last release's documents are gone.

    They are compared by their ids, before the fit; where most files are as they were then, nothing
    is.
    """
    if run.previous is None or run.inputs.allow_shrink:
        return
    n_before = int(run.previous.counts["documents"])
    if 2 * _n_surely_there(run, material) >= n_before:
        return
    with run.watch.step("compare documents with the last release"):
        old = assignments_of(run.previous.files)
        shared = count_overlap(run.place, old, material.corpus, None, 1, names=material.names)
        n_there = int(shared.counts.sum())
    if 2 * n_there < n_before:
        files = counted(len(run.changes.gone), "file")
        raise InvalidInputError(
            "at least half of the last release's documents must be there, got "
            f"{n_before - n_there} of {n_before} gone ({files} with them gone, "
            f"{len(run.changes.changed)} changed); check that the manifest names the same "
            "documents and that their store is whole, or run with --allow-shrink"
        )


def _n_surely_there(run: JobRun, material: Material) -> int:
    """Return how many documents there are at least of files that the last release was made of."""
    same = {key.own for entry in run.last_files.values() for key in entry.keys}
    n_there: int = sum(
        one.n_documents
        for record in material.rows.records
        for batch in record.documents
        for one in batch
        if record.files[one.file].key in same
    )
    return n_there - len(material.repeated)


FULL = (errno.ENOSPC, errno.EDQUOT)


def run_job(inputs: Inputs, *, tell: Tell = nothing) -> Report:
    """Do what a job says, under Dask's scheduler; nothing if the last release is of these inputs.

    `tell` is called with what happens; see `hmrf_dask.jobs.progress`.
    """
    inputs = listed_again(inputs)
    try:
        return _run_as_listed(inputs, tell)
    finally:
        inputs.documents.close()


def _run_as_listed(inputs: Inputs, tell: Tell) -> Report:
    storage = open_output(inputs.output, None)
    ownership.refuse_other(storage, inputs.owner, hand_over=inputs.take_over)
    if inputs.job.publish is not None:
        from hmrf_dask.jobs.publish import check_publishing

        target = inputs.job.publish.sql
        check_publishing(target, inputs.output, inputs.owner, take_over=inputs.take_over)
    if damage := pointer_damage(storage):
        warnings.warn(f"{damage}; it is written again", HmrfWarning, stacklevel=2)
        storage.delete([LATEST])  # the newest release is found without it
    with damage_explained(inputs.output):
        again = remake_of(inputs)
    if again is not None:
        then, parent, damage = again
        warnings.warn(
            f"{damage}; release {parent.number - 1} is made again from what it was made of",
            HmrfWarning,
            stacklevel=2,
        )
        _run(then, lambda _: parent, tell)
    return _run(_resumed(inputs), find_parent, tell)


def _resumed(inputs: Inputs) -> Inputs:
    """Return the inputs of a run that was killed, with the answers that it had, if one was.

    Answers that were given since wait for the next run: hours of work are not begun again for them.
    """
    storage = open_output(inputs.output, None)
    for name in sorted(storage.names(RUNS)):
        end = journal.recorded(storage, f"{RUNS}/{name}")
        if end is None or end == inputs.journal.read.end:
            continue
        then = replace(inputs, journal=inputs.journal.until(end))
        with damage_explained(inputs.output):
            parent = find_parent(then)
        if parent.run_id == name and not parent.done:
            _warn_of_waiting(then.journal, inputs.journal)
            return then
    return inputs


def _warn_of_waiting(taken: journal.Taken, now: journal.Taken) -> None:
    had, there = taken.n_answers, now.n_answers
    warnings.warn(
        f"a run that did not end goes on with the {counted(had, 'answer')} of the journal that it "
        f"had, where there are {there:,} now; run again to use all",
        HmrfWarning,
        stacklevel=3,
    )


def _run(inputs: Inputs, find: Callable[[Inputs], Parent], tell: Tell) -> Report:
    """Do one run, from where it is to begin, as the only one that holds the output."""
    storage = open_storage(inputs.output, {}, durable=True)
    while True:
        with damage_explained(inputs.output):
            parent = find(inputs)
        if inputs.job.private:
            make_private(inputs.output)
        ownership.claim(storage, inputs.owner, hand_over=inputs.take_over)
        with held(inputs.output, parent.run_id) as hold:
            ownership.confirm(storage, inputs.owner, hand_over=inputs.take_over)
            with damage_explained(inputs.output):
                found_again = find(inputs)
            if found_again != parent:
                continue
            if parent.release is not None and parent.done:
                _point_at(hold, parent.release)
                report = _report_of(parent.release, inputs)
                _publish(inputs, hold)
                return report
            run = JobRun(inputs, parent, hold, Watch(storage, parent.run_id, tell))
            run.record_made([run.name])
            journal.record(storage, run.name, inputs.journal)
            record_launch(storage, run.name, inputs)
            with _left_tidy(run), _space_explained(inputs.output):
                return _repaired(run)


def _point_at(hold: OutputLock, release: Release) -> None:
    """Finish what a run did not that was killed after its commit."""
    contents = Contents(release.files, release.ledger, release.counts, release.model)
    publish(hold, run_id=release.run, previous=release, contents=contents)


def _work(run: JobRun) -> Report:
    with damage_explained(run.inputs.output, run.previous):
        run.watch.plan(planned_steps(run))
        check_parent(run)
        given = given_answers(run)
        material = prepare(run)
        refuse_shrunk(run, material)
        answers = find_answers(run, material, given)
        if run.inputs.job.mode == "predict":
            results = write_prediction(run, material)
        else:
            results = write_fit(run, material, answers, fit_all(run, material, answers))
        report = release(run, material, answers, results)
    if names := run.inputs.job.names:
        with run.watch.step("name clusters"):
            _name_clusters(run, names.namer)
    if run.inputs.job.publish is not None:
        with run.watch.step("publish in the database"):
            _publish(run.inputs, run.hold)
    from hmrf_dask.jobs.report import report_after_run  # not where nothing is left to do: be quick

    with run.watch.step("write the report page"):
        report_after_run(run)
    return report


def _publish(inputs: Inputs, hold: OutputLock) -> None:
    """Let readers of a database see the last release, where the job publishes any there."""
    if inputs.job.publish is not None:
        from hmrf_dask.jobs.publish import publish_release

        publish_release(inputs, inputs.job.publish.sql, hold.check)


def _name_clusters(run: JobRun, namer: str) -> None:
    """Name clusters after a release, which what goes wrong with a namer cannot end."""
    from hmrf_dask.jobs.released import load_release

    try:
        load_release(run.inputs.output).name_clusters(find_namer(namer, by_file=True))
    except Exception as error:  # noqa: BLE001 - the release is there, whatever happens here
        words = str(error) if isinstance(error, HmrfError) else in_words(error)
        warnings.warn(f"clusters go by their words: {words}", HmrfWarning, stacklevel=2)


@contextmanager
def _left_tidy(run: JobRun) -> Iterator[None]:
    """Leave no folder of a run that nothing can resume: with these inputs it ends the same way.

    Other errors, and kills, leave it: the same run again resumes there. So do not those of runs
    that ended before, as soon as another one begins.
    """
    if run.inputs.from_release is None:  # else ids of what is skipped are still searched for
        also = None if run.previous is None else run.previous.number
        clean(run.hold, keep=run.inputs.job.keep, also=also)
    try:
        yield
    except TooManyRejectedError:
        raise  # its folder lists what was rejected, until the next run begins
    except (InvalidInputError, ConfigurationError):
        # Where only its publication failed, the release is there: it stays, and so does the last.
        numbers = run.parent.number - 1, run.parent.number
        made = [read_if_whole(run.place.storage, number) for number in numbers]
        if all(one is None or one.run != run.run_id for one in made):
            remove_own(run.place.storage, run.name)
        raise


@contextmanager
def _space_explained(output: str) -> Iterator[None]:
    """Say it in words when a disk is full, wherever in the work that was."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, HmrfError):
            raise
        raise RunUnavailableError(
            f"there must be space to write, got none left while writing for {output} ({error}); "
            "make some, then run again: it goes on where it stopped"
        ) from error
