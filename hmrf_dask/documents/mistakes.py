"""YAML files a person writes, checked against a model: all mistakes at once, each with its path.

Manifests and job files are read this way.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hmrf_dask.errors import ConfigurationError

M = TypeVar("M", bound=BaseModel)
_GENERAL = "(the whole file)"


def parse_yaml(data: bytes, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML file of plain values; `name` is its path or URL, for errors."""
    try:
        found = yaml.load(data.decode("utf-8-sig"), _Loader)  # a SafeLoader
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} must be UTF-8 text, {error}") from error
    except (yaml.YAMLError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        told = getattr(error, "problem", None) or error
        raise ConfigurationError(f"{name}{place}: must be YAML, {told}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{name} must be a mapping of names to values, got {type(found).__name__}"
        )
    return found


def validated(model: type[M], found: dict[str, Any], name: str) -> M:
    """Return what a file says as the model has it; one error names every mistake by its path.

    Parameters
    ----------
    model : type
        A pydantic model.
    found : dict
        As `parse_yaml` gives it.
    name : str
        What to call the file in the error: its path or URL.
    """
    try:
        return model.model_validate(found)
    except ValidationError as error:
        lines = list(_lines(error, found, model))
        count = "a mistake" if len(lines) == 1 else f"{len(lines)} mistakes"
        raise ConfigurationError(f"{name} has {count}: {'; '.join(lines)}") from None


def meant(given: str, known: Iterable[str]) -> str:
    """Return a question after the known name that is nearest to a given one; '' if none is near."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain values only, and refuses a key that comes twice, of which one would be lost."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys come once each."""
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} comes twice; keep one", key_node.start_mark
                )
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


# A date is a text to all who read these files; YAML's own would be refused for being none.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _lines(error: ValidationError, found: Any, model: type[BaseModel]) -> Iterator[str]:
    """Yield a line for each place that has a mistake; a union's members are told together."""
    places: dict[str, list[str]] = {}
    for one in error.errors(include_url=False, include_context=False):
        kept = _in_file(one["loc"], found, missing=one["type"] == "missing")
        path = ".".join(map(str, kept)) or _GENERAL
        places.setdefault(path, []).append(_told(one, kept, model))
    for path, told in places.items():
        yield f"{path}: {' or '.join(dict.fromkeys(told))}"


def _in_file(loc: tuple[int | str, ...], found: Any, *, missing: bool) -> tuple[int | str, ...]:
    """Return the part of a location that the file has: pydantic adds members of unions."""
    kept: list[int | str] = []
    for step in loc:
        inside = isinstance(found, list) and isinstance(step, int) and step < len(found)
        if inside or (isinstance(found, Mapping) and step in found):
            found = found[step]
        elif not (missing and step == loc[-1]):
            continue
        kept.append(step)
    return tuple(kept)


def _told(one: Any, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    if one["type"] == "extra_forbidden":
        known = _fields(model, path[:-1])
        near = meant(str(path[-1]), known)
        return f"must not be there{near or '; known are ' + ', '.join(known)}"
    if one["type"] == "missing":
        return "is missing"
    text: str = one["msg"].removeprefix("Value error, ")
    if one["type"] in ("value_error", "assertion_error"):
        return text
    near = ""
    if one["type"] == "literal_error" and isinstance(one["input"], str):
        near = meant(one["input"], [word for word in one["msg"].split("'") if word.strip(" ,")])
    if one["type"] == "string_type" and isinstance(one["input"], bool | int | float):
        near = " (put it in quotes; YAML reads no, off, yes and on as booleans)"
    return f"{text[:1].lower()}{text[1:]}, got {_short(one['input'])}{near}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the names that a mapping at a path may have."""
    models = [model]
    for step in path:
        if isinstance(step, str):
            inner = [
                field.annotation
                for one in models
                for name, field in one.model_fields.items()
                if step in (name, field.alias)
            ]
            models = [found for annotation in inner for found in _models_in(annotation)]
    names = [field.alias or name for one in models for name, field in one.model_fields.items()]
    return list(dict.fromkeys(names))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, within unions and lists too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)
