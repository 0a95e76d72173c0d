"""The vocabulary of the last release: read, or made again of the counts that it was made of.

Rows and a warm start hang on it, so it is never replaced by another in silence: what is made again
must have the very identity that the release names.
"""

from __future__ import annotations

import warnings

from hmrf_dask.dataflow import DaskFlow
from hmrf_dask.errors import HmrfWarning, UnreadableFileError
from hmrf_dask.jobs.ledger import MADE_OF, VOCABULARY
from hmrf_dask.releases.release import DamagedReleaseError, Release
from hmrf_dask.runs.storage import Storage
from hmrf_dask.text.files import Place, load_vocabulary, read_source, save_vocabulary
from hmrf_dask.text.settings import TextSettings
from hmrf_dask.text.vectorise import make_vocabulary_of
from hmrf_dask.text.vocabulary import Vocabulary


def check_vocabulary(storage: Storage, release: Release) -> None:
    """Raise DamagedReleaseError where the vocabulary of a release cannot be read."""
    named = release.ledger[VOCABULARY]
    try:
        if named is not None:
            load_vocabulary(named, Place(storage.url))
    except UnreadableFileError as error:
        raise DamagedReleaseError(str(error)) from error


def read_vocabulary(
    release: Release, place: Place, settings: TextSettings, *, needed: bool
) -> Vocabulary | None:
    """Return the vocabulary of a release, None where it had none.

    Parameters
    ----------
    release : Release
    place : Place
    settings : TextSettings
        Those of the job, with which it is made again.
    needed : bool
        Whether a run cannot do without: else one that is lost is a warning.

    Raises
    ------
    DamagedReleaseError
        It cannot be read, nor made again.
    """
    named = release.ledger[VOCABULARY]
    if named is None:
        return None
    try:
        return load_vocabulary(named, place)
    except UnreadableFileError as error:
        said = f"the vocabulary of release {release.number} cannot be read ({error.what})"
    found = _made_again(named, release.ledger[MADE_OF], place, settings)
    if found is not None:
        warnings.warn(f"{said}; it was made again, the same", HmrfWarning, stacklevel=2)
        return found
    if needed:
        raise DamagedReleaseError(
            f"{said}, and it cannot be made again, as what it was made of is gone; for a new one "
            "run once with text.refit always and start cold in the job: clusters keep their ids by "
            "the documents they share"
        )
    warnings.warn(f"{said}; a new one is made", HmrfWarning, stacklevel=2)
    return None


def _made_again(
    named: str, made_of: list[str], place: Place, settings: TextSettings
) -> Vocabulary | None:
    """Return the vocabulary of this identity, made of counts; None where others come of them."""
    try:
        sources = [read_source(place.storage, key) for key in made_of]
        counted = [one for one in sources if one is not None]
        if not counted or len(counted) != len(sources):
            return None
        found = make_vocabulary_of(DaskFlow(), counted, settings, place)
    except UnreadableFileError:
        return None
    if found.identity != named:
        return None
    save_vocabulary(found, place)
    return found
