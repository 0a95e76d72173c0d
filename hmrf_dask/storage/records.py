"""What a run remembers: commits and the labels files they name, as sealed JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.redaction import shortened

Labels = npt.NDArray[np.int32]
Arrays = Mapping[str, npt.NDArray[Any]]
Form = TypeVar("Form")
RESTORE = "restore it from a copy, never edit it"
Piece = tuple[str, int, Labels]  # a part, its first row, its labels


class DamagedFileError(RunDirectoryError):
    """A file of a run is missing or does not hold what was written."""


class RunUnavailableError(RunDirectoryError):
    """The run cannot go on now, but may later: another process writes it, or the store fails."""

    exit_code = 75


@dataclass(frozen=True)
class LabelsFile:
    """One file of labels: rows `first_row` to `first_row + n_rows` (exclusive) of its part.

    Attributes
    ----------
    name : str
        Path inside the run directory; it holds a hash of the content.
    sha256 : str
        Of the whole file, hexadecimal.
    first_row, n_rows : int
        For parts ``rows-…`` row numbers of the corpus, so any partitioning can read them.
    part : str
        Which part of the run wrote it, such as ``rows-00007`` or ``linked-00002``.
    start : int
        Where they begin in the file, which several parts may share.
    """

    name: str
    sha256: str
    first_row: int
    n_rows: int
    part: str
    start: int = 0


@dataclass(frozen=True)
class Commit:
    """One whole iteration: the caller's record and the files it needs."""

    number: int
    record: dict[str, Any]
    state_name: str
    state_sha256: str
    files: tuple[LabelsFile, ...]


class CheckpointStore(Protocol):
    """What the loop needs of a place that keeps its iterations."""

    def write_labels(self, number: int, part: str, first_row: int, labels: Labels) -> LabelsFile:
        """Keep the labels of one part; the same content twice is kept once."""

    def write_group(self, number: int, pieces: Sequence[Piece]) -> tuple[LabelsFile, ...]:
        """Keep the labels of several parts, which one task has."""

    def read_labels(self, file: LabelsFile) -> Labels:
        """Return the labels of one part, read-only."""

    def read_group(self, files: Sequence[LabelsFile]) -> list[Labels]:
        """Return the labels of several parts, read-only; what they share is read once."""

    def read_label_range(
        self, files: Sequence[LabelsFile], first_row: int, last_row: int, prefix: str = "rows-"
    ) -> Labels:
        """Return the labels of rows `first_row` to `last_row` (exclusive), read-only."""

    def discard(self, files: Sequence[LabelsFile]) -> None:
        """Remove what no commit will name."""

    def commit(
        self, number: int, record: dict[str, Any], state: Arrays, files: Sequence[LabelsFile]
    ) -> Commit:
        """Make one iteration visible, whole or not at all."""

    def latest(self) -> Commit | None:
        """Return the highest valid commit."""

    def load_state(self, commit: Commit) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a commit."""

    def clean(self, keep: int | None = None) -> None:
        """Remove what no kept commit needs."""

    def event(self, record: dict[str, Any]) -> None:
        """Note something that happened."""

    def finalise(self, record: dict[str, Any]) -> None:
        """Say that the run is done."""

    def final(self) -> dict[str, Any] | None:
        """Return what `finalise` was given, None while the run is not done."""


def digest(data: bytes) -> str:
    """Return the sha256 of `data`, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def to_json(content: object) -> str:
    """Return JSON whose floats read back to the same bits; numpy scalars become plain ones."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"a record must hold JSON values and finite numbers only, got {error}; "
            "put arrays in the state and leave out what is not finite"
        ) from error


def _plain(value: object) -> object:
    # np.float64 is a float and never comes here; a float32 widens without loss.
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    raise TypeError(f"{type(value).__name__} ({value!r:.80})")


def round_trip(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return `record` as a reader of its JSON will see it (tuples as lists, keys as text)."""
    result: dict[str, Any] = json.loads(to_json(record))
    return result


def seal(content: Mapping[str, Any]) -> bytes:
    """Return `content` as one line of JSON with a checksum: a changed digit must not pass."""
    text = to_json(content)
    return f'{{"sha256":"{digest(text.encode())}","content":{text}}}\n'.encode()


def seal_for_people(content: Mapping[str, Any]) -> bytes:
    """Return `content` as indented JSON whose last key is its checksum; `unseal` reads it too."""
    whole = {**content, "sha256": digest(to_json(content).encode())}
    return f"{json.dumps(whole, indent=1, default=_plain)}\n".encode()


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """Return the content of sealed JSON, or raise DamagedFileError naming the file."""
    try:
        envelope: dict[str, Any] = json.loads(data)
        sha256 = envelope.pop("sha256")
        content = envelope["content"] if envelope.keys() == {"content"} else envelope
        whole = isinstance(content, dict) and digest(to_json(content).encode()) == sha256
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(
            _damaged(name, f"no readable record ({type(error).__name__}: {error})")
        ) from error
    if not whole:
        raise DamagedFileError(_damaged(name, "a record that does not match its checksum"))
    found: dict[str, Any] = content
    return found


def unseal_as(form: type[Form], data: bytes, name: str, written_as: str | None = None) -> Form:
    """Return sealed JSON as the dataclass it was made of, every field of its own type.

    Parameters
    ----------
    form : type
        The dataclass; keys that it has not are left out.
    data : bytes
    name : str
        Of the file, for errors.
    written_as : str, optional
        What its key `format` must be.

    Raises
    ------
    DamagedFileError
        It is damaged, of another format, or other keys were sealed.
    """
    content = unseal(data, name)
    if written_as is not None and (found := content.pop("format", None)) != written_as:
        raise DamagedFileError(_damaged(name, f"the format {found!r:.80}, not {written_as}"))
    return typed(form, content, name)


def typed(form: type[Form], content: object, name: str) -> Form:
    """Return JSON values as a dataclass, or raise DamagedFileError naming the file."""
    from pydantic import TypeAdapter, ValidationError  # tasks that read no record need none of it

    try:
        return TypeAdapter(form).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "all"
        raise DamagedFileError(_damaged(name, f"{place}: {first['msg']}")) from None


def _damaged(name: str, got: str) -> str:
    return f"{name} must be as it was written, got {got}; {RESTORE}"


def commit_content(commit: Commit, writer: str) -> dict[str, Any]:
    """Return what the JSON of a commit holds; `writer` tells this very write from any other."""
    files = [[f.name, f.sha256, f.first_row, f.n_rows, f.part, f.start] for f in commit.files]
    return {
        "number": commit.number,
        "record": commit.record,
        "state": [commit.state_name, commit.state_sha256],
        "files": files,
        "writer": writer,
    }


@dataclass(frozen=True)
class _Written:
    """What `commit_content` gives."""

    number: int
    record: dict[str, Any]
    state: tuple[str, str]
    files: list[tuple[str, str, int, int, str, int] | tuple[str, str, int, int, str]]


def read_commit(data: bytes, name: str) -> Commit:
    """Return the commit in sealed JSON, or raise DamagedFileError naming the file."""
    found = unseal_as(_Written, data, name)
    files = tuple(LabelsFile(*entry) for entry in found.files)
    return Commit(found.number, found.record, *found.state, files)


def differences(have: object, asked: object, path: str = "") -> list[str]:
    """Return one line for every key whose value differs, in the order of `asked`."""
    if isinstance(have, dict) and isinstance(asked, dict):
        lines: list[str] = []
        for key in [*asked, *(key for key in have if key not in asked)]:
            inner = f"{path}.{key}" if path else str(key)
            lines += differences(have.get(key, _NOTHING), asked.get(key, _NOTHING), inner)
        return lines
    # 1 and 1.0 and True are equal in Python and not in a configuration.
    if type(have) is type(asked) and have == asked:
        return []
    return [f"{path}: run.json has {_short(have)}, asked {_short(asked)}"]


_NOTHING = object()


def _short(value: object) -> str:
    return "nothing" if value is _NOTHING else shortened(value, 100)
