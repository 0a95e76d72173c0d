"""Sealed JSON: what was written is read back whole and unchanged, or refused in words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from hmrf_dask.errors import InvalidInputError, RunDirectoryError
from hmrf_dask.redaction import shortened

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Form = TypeVar("Form")
RESTORE = "restore it from a copy, never edit it"


class DamagedFileError(RunDirectoryError):
    """A file of a run is missing or does not hold what was written."""


class RunUnavailableError(RunDirectoryError):
    """The run cannot go on now, but may later: another process writes it, or the store fails."""

    exit_code = 75


def digest(data: bytes) -> str:
    """Return the sha256 of `data`, hexadecimal.

    Examples
    --------
    >>> digest(b"rows")[:16]
    'bc51e9e65d79e1c9'
    """
    return hashlib.sha256(data).hexdigest()


def to_json(content: object) -> str:
    """Return JSON whose floats read back to the same bits; numpy scalars become plain ones.

    Examples
    --------
    >>> to_json({"J": np.float32(0.5), "sizes": (3, np.int64(4))})
    '{"J":0.5,"sizes":[3,4]}'
    """
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
    """Return `record` as a reader of its JSON will see it (tuples as lists, keys as text).

    Examples
    --------
    >>> round_trip({"sizes": (3, 4), "by": {1: "a"}})
    {'sizes': [3, 4], 'by': {'1': 'a'}}
    """
    result: dict[str, Any] = json.loads(to_json(record))
    return result


def seal(content: Mapping[str, Any]) -> bytes:
    """Return `content` as one line of JSON with a checksum: a changed digit must not pass.

    Examples
    --------
    >>> data = seal({"J": 0.1})
    >>> unseal(data, "00001.json")
    {'J': 0.1}
    >>> unseal(data.replace(b"0.1", b"0.2"), "00001.json")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.storage.sealed.DamagedFileError: 00001.json must be as it was written, got a ...
    """
    text = to_json(content)
    return f'{{"sha256":"{digest(text.encode())}","content":{text}}}\n'.encode()


def seal_for_people(content: Mapping[str, Any]) -> bytes:
    """Return `content` as indented JSON whose last key is its checksum; `unseal` reads it too.

    Examples
    --------
    >>> unseal(seal_for_people({"sizes": [3, 4]}), "lineage.json")
    {'sizes': [3, 4]}
    """
    import msgspec.json  # lays it out as the json module would, which writes that in Python

    whole = {**content, "sha256": digest(to_json(content).encode())}
    return msgspec.json.format(json.dumps(whole, default=_plain).encode(), indent=1) + b"\n"


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """Return the content of sealed JSON, or raise DamagedFileError naming the file.

    Examples
    --------
    >>> data = seal({"end": 7})
    >>> unseal(data, "journal.json")
    {'end': 7}
    >>> unseal(data.replace(b"7", b"8"), "journal.json")
    Traceback (most recent call last):
        ...
    hmrf_dask.storage.sealed.DamagedFileError: journal.json must be as it was written, got a ...
    """
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
    return dict(content)


def unseal_as(form: type[Form], data: bytes, name: str, written_as: str | None = None) -> Form:
    """Return sealed JSON as the dataclass it was made of, or raise DamagedFileError.

    Every field has its own type; keys that the dataclass has not are left out. The key `format`
    must be `written_as`, where that is given.
    """
    content = unseal(data, name)
    if written_as is not None and (written := content.pop("format", None)) != written_as:
        raise DamagedFileError(_damaged(name, f"the format {written!r:.80}, not {written_as}"))
    return typed(form, content, name)


def typed(form: type[Form], content: object, name: str) -> Form:
    """Return JSON values as a dataclass, or raise DamagedFileError naming the file.

    Examples
    --------
    >>> from hmrf_dask.releases.lineage import Flow
    >>> typed(Flow, {"cluster": 3, "documents": 10, "share": 0.5}, "lineage.json")
    Flow(cluster=3, documents=10, share=0.5)
    """
    from pydantic import ValidationError  # tasks that read no record need none of it

    try:
        record: Form = _reader(cast("Any", form)).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "all"
        raise DamagedFileError(_damaged(name, f"{place}: {first['msg']}")) from None
    return record


@cache
def _reader(form: Any) -> TypeAdapter[Any]:
    """Return what makes the dataclass of JSON values: to build it takes longer than to read."""
    from pydantic import TypeAdapter

    return TypeAdapter(form)


def _damaged(name: str, got: str) -> str:
    return f"{name} must be as it was written, got {got}; {RESTORE}"


def differences(have: object, asked: object, path: str = "") -> list[str]:
    """Return one line for every key whose value differs, in the order of `asked`.

    Examples
    --------
    >>> differences({"K": 3, "metric": {"a": 1}}, {"K": 4, "metric": {"a": 1}})
    ['K: run.json has 3, asked 4']
    """
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
