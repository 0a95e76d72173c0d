"""An output lies apart from what a job reads: else runs read what runs wrote, or worse.

Whatever the spelling: relative, with `..`, through links, with other slashes or another protocol of
the same store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from hmrf_dask.documents.manifest import BUILTIN, Manifest
from hmrf_dask.documents.sources import Source, cut_at_magic, is_relative
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.releases import owner
from hmrf_dask.releases.own_files import FOLDERS
from hmrf_dask.runs.locations import Location
from hmrf_dask.runs.storage import open_storage
from hmrf_dask.whole_files import is_local

_IN_RUN = re.compile(rf"/({FOLDERS.pattern})(?=/)")
ADVICE = "name an output folder of its own, beside them"


class Place(NamedTuple):
    """What is read: a file, a folder with all that is in it, or what a pattern finds in one.

    Attributes
    ----------
    what : str
        What a person calls it.
    address : str
        An absolute path or a URL: of the folder that the pattern cannot leave, if there is one.
    pattern : tuple of str
        The segments of a pattern below it; none for a file or a folder.
    """

    what: str
    address: str
    pattern: tuple[str, ...] = ()


def places_of(manifest: Manifest, base: str) -> Iterator[Place]:
    """Yield where the documents and answers of a manifest lie; `base` is its folder."""
    named = [(f"the documents of {one.name!r}", one.path) for one in manifest.resources]
    if manifest.answers is not None:
        named.append(("the answers", manifest.answers.path))
    for what, paths in named:
        for path in paths:
            if not path.startswith(BUILTIN):
                folder, pattern = cut_at_magic(path)
                address = (f"{base}/{folder}" if folder else base) if is_relative(path) else folder
                yield Place(f"{what} ({path})", address, pattern)


def overlaps(output: str, places: Sequence[Place], *, called: str = "output") -> list[str]:
    """Return in words how an output lies in the way of what is read; nothing if it does not.

    Parameters
    ----------
    output : str
        An absolute path or a URL.
    places : sequence of Place
    called : str
        What the output is called where it was given.
    """
    own = Location.of(output)
    found = [f"{called} must have no '..' in its URL, got {output}"] if _climbs(output) else []
    for what, address, pattern in places:
        place = Location.of(address)
        if own.holds(place):
            how = "is" if place.holds(own) else "holds"
            found.append(f"{called} must lie apart from {what}, got {output}, which {how} it")
        elif place.holds(own) and _may_find(place, pattern, own):
            found.append(
                f"{called} must lie apart from {what}, got {output}, which lies in it: what is "
                "written there would be read as these"
            )
    return found


def listed_inside(output: str, sources: Sequence[Source]) -> list[str]:
    """Return in words which files with documents lie in the output, by whichever way."""
    own, folders = Location.of(output), dict[str, bool]()
    for source in sources:
        folder = os.path.dirname(source.url)
        if folder not in folders:
            folders[folder] = own.holds(Location.of(folder))
        is_link = is_local(source.url) and os.path.islink(source.url)
        if folders[folder] or (is_link and own.holds(Location.of(source.url))):
            return [
                f"output must lie apart from the documents, got {output}, in which {source.path} "
                "lies"
            ]
    return []


def refuse(problems: Sequence[str]) -> None:
    """Raise ConfigurationError for what `overlaps` found."""
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)}; {ADVICE}")


def refuse_in_run(place: str, called: str) -> None:
    """Refuse to write into a folder that a run of a job made: what lies there is a release's.

    Parameters
    ----------
    place : str
        An absolute path or a URL.
    called : str
        What it is called where it was given.
    """
    url = os.path.realpath(place) if is_local(place) else place
    for found in _IN_RUN.finditer(f"{url}/"):
        output = url[: found.start()]
        if owner.NAME in open_storage(output, {}, durable=False).names(""):
            raise ConfigurationError(
                f"{called} must lie apart from what runs of a job made, got {place}, which is or "
                f"lies in {found[1]} of the output {output}; {ADVICE}"
            )


def _climbs(output: str) -> bool:
    return "://" in output and ".." in output.split("/")


def _may_find(place: Location, pattern: Sequence[str], own: Location) -> bool:
    """Tell whether a pattern may find files in a folder below the one where it begins."""
    depth = len(place.parts)
    if not pattern or own.parts[:depth] != place.parts:  # all files, or a folder with two names
        return True
    reached = {0}  # segments that may come next
    for part in own.parts[depth:]:
        reached = {
            number if "**" in pattern[number] else number + 1
            for number in _passing(pattern, reached)
            if "**" in pattern[number] or fnmatchcase(part, pattern[number])
        }
    return bool(_passing(pattern, reached))


def _passing(pattern: Sequence[str], reached: Iterable[int]) -> set[int]:
    """Return the segments that may come next; `**` may stand for no folder at all."""
    found: set[int] = set()
    for number in reached:
        while number < len(pattern):
            found.add(number)
            if "**" not in pattern[number]:
                break
            number += 1
    return found
