"""A damaged last release is made again, where all that it was made of is there and unchanged.

It follows from the documents, the answers, the job and the release before it; from all of these
the same files come again. Where one of them changed since, a person decides: `--from-release`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hmrf_dask.jobs.inputs import Inputs
from hmrf_dask.jobs.ledger import SOURCES, compare, last_release
from hmrf_dask.jobs.parent import INPUTS, Parent, parent_again
from hmrf_dask.releases.nightly import hashed_in, tonight
from hmrf_dask.releases.output import open_output
from hmrf_dask.releases.release import DamagedReleaseError, Release, check_files


@dataclass(frozen=True)
class Remake:
    """How the last release is made again.

    Attributes
    ----------
    inputs : Inputs
        What it was made of.
    parent : Parent
    damage : str
        What is wrong with it.
    """

    inputs: Inputs
    parent: Parent
    damage: str


def damage_of(output: str, release: Release) -> str | None:
    """Return what is wrong with a release, as far as one night looks at it; None if nothing is."""
    try:
        check_files(open_output(output, None), release, hashed_in(tonight(), release.sizes))
    except DamagedReleaseError as error:
        return str(error)
    return None


def remake_of(inputs: Inputs) -> Remake | None:
    """Return how the last release is made again; None where it is whole, or cannot be made."""
    last = None if inputs.from_release is not None else last_release(inputs.output)
    damage = None if last is None else damage_of(inputs.output, last)
    if last is None or damage is None:
        return None
    then = inputs_of(last, inputs)
    parent = None if then is None else parent_again(then, last)
    return None if then is None or parent is None else Remake(then, parent, damage)


def inputs_of(release: Release, inputs: Inputs) -> Inputs | None:
    """Return what a release was made of, None where these inputs have it no more as it was."""
    changes = compare(release.ledger[SOURCES], inputs.sources)
    if changes.changed or changes.gone:
        return None
    same = set(changes.same)
    sources = tuple(one for one in inputs.sources if one.path in same)
    for mode in ("fit", "predict"):  # whatever is asked now, with --predict or without
        job = inputs.job.model_copy(update={"mode": mode})
        then = replace(inputs, job=job, sources=sources)
        if release.ledger.get(INPUTS) == then.identity:
            return then
    return None
