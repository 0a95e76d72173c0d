"""Which small files share a bundle, from the last release and the order of new files alone.

Files that were in a bundle of the last release stay in it. Where some of them changed or are gone,
a bundle of the others takes its place, which is read again: it is small.

New small files of a night share new bundles. So that many nights do not leave many small bundles,
those that are `MANY` times as large as one another at most, a tier, become one as soon as there are
`MANY` of them: their files are read once more, in all nights a file at most a few times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hmrf_dask.jobs.bundles import Bundle
from hmrf_dask.jobs.inputs import DocumentSource
from hmrf_dask.jobs.ledger import Entry, Keys, keys_of
from hmrf_dask.text.files import Place

SMALL = 2**20  # bytes of a file that shares a bundle
BYTES, FILES = 4 * 2**20, 256  # of a bundle, at most
UNPACKED = 8  # times its bytes a compressed file counts: it is its text that takes memory
MANY = 8  # bundles of a tier that are brought together, and how many times a tier is the next
TIERS = 3


def bundled(
    files: Sequence[DocumentSource],
    before: Mapping[str, Entry],
    place: Place,
    *,
    stop: bool,
    made_of: Collection[str] = (),
) -> list[Bundle]:
    """Return files in bundles.

    Parameters
    ----------
    files : sequence of DocumentSource
        In the order of their documents.
    before : mapping
        The files of the last release; see `hmrf_dask.jobs.ledger.entries`.
    place : Place
    stop : bool
    made_of : collection of str
        The counts that the last vocabulary was made of: files of others are not mixed with theirs,
        as drift is measured by bundle.
    """
    keys = {one.own: one for entry in before.values() for one in keys_of(entry)}
    stayed: dict[str, list[DocumentSource]] = defaultdict(list)
    new: list[DocumentSource] = []
    for file in files:
        known = keys.get(file.key)
        (new if known is None else stayed[known.bundle]).append(file)
    order = {file.key: number for number, file in enumerate(files)}
    packs = _packs_of(stayed, list(keys.values()), made_of)
    joined = _brought_together(packs)
    found = [_bundle(some, order, place, stop=stop) for some in joined]
    found += [Bundle(tuple(some), place, stop) for some in _packed(new)]
    return sorted(found, key=lambda one: order[one.files[0].key])


# ---- bundles of the last release


@dataclass(frozen=True)
class _Pack:
    """What is there of a bundle of the last release.

    Attributes
    ----------
    key : str
        Of the whole bundle.
    files : list of DocumentSource
    whole : bool
        Whether they are all that it had.
    known : bool
        Whether the last vocabulary was made of it.
    """

    key: str
    files: list[DocumentSource]
    whole: bool
    known: bool

    @property
    def fullness(self) -> float:
        """Return how full it is, 0 to 1, by bytes or by files."""
        return max(sum(map(_weight, self.files)) / BYTES, len(self.files) / FILES)

    @property
    def tier(self) -> int | None:
        """Return the number of its tier, those half full are 0; None where it stays alone."""
        if not self.whole or self.fullness > 0.5 or not all(map(_is_small, self.files)):
            return None
        tier, most = 0, 0.5 / MANY
        while tier < TIERS - 1 and self.fullness <= most:
            tier, most = tier + 1, most / MANY
        return tier


def _packs_of(
    stayed: Mapping[str, list[DocumentSource]], last: Sequence[Keys], made_of: Collection[str]
) -> list[_Pack]:
    """Return the bundles of the last release whose files are there, or some of them."""
    sizes, counts = Counter(one.bundle for one in last), {one.bundle: one.counts for one in last}
    known = set(made_of)
    return [
        _Pack(key, files, len(files) == sizes[key], counts[key] in known)
        for key, files in stayed.items()
    ]


def _brought_together(packs: Iterable[_Pack]) -> list[list[_Pack]]:
    """Return bundles of the last release, those of tiers that have many of them joined."""
    tiers: dict[tuple[int, bool], list[_Pack]] = defaultdict(list)
    found: list[list[_Pack]] = []
    for pack in packs:
        if pack.tier is None:
            found.append([pack])
        else:
            tiers[pack.tier, pack.known].append(pack)
    for some in tiers.values():
        found += _joined(some) if len(some) >= MANY else [[one] for one in some]
    return found


def _joined(packs: Sequence[_Pack]) -> list[list[_Pack]]:
    """Return neighbours together, as many as one bundle may hold; each at most half fills it."""
    found: list[list[_Pack]] = []
    n_bytes = n_files = 0
    for pack in packs:
        size = sum(map(_weight, pack.files))
        if not found or n_bytes + size > BYTES or n_files + len(pack.files) > FILES:
            found.append([])
            n_bytes = n_files = 0
        found[-1].append(pack)
        n_bytes, n_files = n_bytes + size, n_files + len(pack.files)
    return found


def _bundle(
    packs: Sequence[_Pack], order: Mapping[str, int], place: Place, *, stop: bool
) -> Bundle:
    files = sorted((file for one in packs for file in one.files), key=lambda one: order[one.key])
    same = len(packs) == 1 and packs[0].whole
    return Bundle(tuple(files), place, stop, () if same else tuple(one.key for one in packs))


# ---- new files


def _packed(files: Iterable[DocumentSource]) -> list[list[DocumentSource]]:
    """Return neighbours together: small files, at most `FILES` of at most `BYTES`."""
    found: list[list[DocumentSource]] = []
    room, open_one = 0, list[DocumentSource]()
    for file in files:
        if not _is_small(file):
            found.append([file])
            continue
        if not open_one or _weight(file) > room or len(open_one) == FILES:
            room, open_one = BYTES, []
            found.append(open_one)
        open_one.append(file)
        room -= _weight(file)
    return found


def _is_small(file: DocumentSource) -> bool:
    source = file.source
    return _weight(file) <= SMALL and not source.span and source.format != "builtin"


def _weight(file: DocumentSource) -> int:
    return file.source.n_bytes * (1 if file.source.compression == "none" else UNPACKED)
