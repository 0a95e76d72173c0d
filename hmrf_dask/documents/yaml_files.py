"""YAML files a person writes: plain values in bounds, checked against a model.

Manifests and job files are read this way; all mistakes are named at once, each with its path.
"""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Annotated, Any, ClassVar, Final, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from hmrf_dask.databases.connection import checked_variable
from hmrf_dask.documents.streams import read_whole
from hmrf_dask.errors import ConfigurationError, meant
from hmrf_dask.parameters import (
    PATH_CHARACTERS,
    YAML_BYTES,
    YAML_CHARACTERS,
    YAML_DEPTH,
    YAML_VALUES,
)
from hmrf_dask.redaction import shortened, without_secrets
from hmrf_dask.storage.addresses import is_local, local_path, store_problem

_TAG: Final = "tag:yaml.org,2002:"
# What a value without quotes is. Numbers are those of JSON and with _ between digits: YAML's own
# take 1:30 for 90 and 010 for 8. All else is text: dates, = and <<, .inf, thousands of digits.
_PLAIN: Final = (
    ("bool", r"^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$",
     "yYnNtTfFoO"),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]{0,39})$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]{1,9})?$",
     "-+0123456789."),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
)  # fmt: skip


def _read_plain(data: bytes, name: str) -> Any:
    """Return what a YAML file of plain values holds, in the bounds of `hmrf_dask.parameters`."""
    if len(data) > YAML_BYTES:
        raise ConfigurationError(f"{name} must have at most {YAML_BYTES:,} bytes, got more")
    try:
        return yaml.load(data.decode("utf-8-sig"), _Loader)  # a SafeLoader
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} must be UTF-8 text, {error}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigurationError(
            f"{name}: must have no control characters, got {chr(error.character)!r} as character "
            f"{error.position + 1}"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigurationError(f"{name}{place}: must be YAML, {problem!s:.300}") from error


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads plain values only, and refuses a key that comes twice, of which one would be lost."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return a node, refused before its content is read where it is not plain or too much."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _problem("anchors and aliases (&, *) are not read; write it out", event)
        if event.tag is not None:
            raise _problem(f"tags are not read, got {shortened(event.tag)}; leave it out", event)
        self._count += 1
        if self._count > YAML_VALUES:
            raise _problem(f"there are more than {YAML_VALUES:,} values", event)
        self._depth += 1
        if self._depth > YAML_DEPTH:
            raise _problem(f"values are nested more than {YAML_DEPTH} deep", event)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_scalar(self, node: Any) -> Any:
        """Return a text, which every file and terminal can hold."""
        value = super().construct_scalar(node)
        if len(value) > YAML_CHARACTERS:
            raise _problem(f"a value has more than {YAML_CHARACTERS:,} characters", node)
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise _problem("a text must have no NUL and no half of a character (\\ud800)", node)
        return value

    def construct_yaml_float(self, node: Any) -> float:
        """Return a number; what float64 cannot hold is none."""
        value = float(super().construct_yaml_float(node))
        if not isfinite(value):
            raise _problem(f"a number must be finite, got {shortened(node.value)}", node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are texts and come once each."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                written = (
                    key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or more"
                )
                raise _problem(
                    f"a key must be a text, got {without_secrets(written)[:80]}; put it in quotes",
                    key_node,
                )
            if key in seen:
                raise _problem(f"the key {shortened(key)} comes twice; keep one", key_node)
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


_Loader.add_constructor(f"{_TAG}float", _Loader.construct_yaml_float)
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(f"{_TAG}{_tag}", re.compile(_pattern), _first)


def _problem(words: str, where: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, words, where.start_mark)


M = TypeVar("M", bound=BaseModel)
_GENERAL = "(the whole file)"
_MOST_SHOWN: Final = 20  # mistakes
_KNOWN: Final = "; known are "
_OWN_PLACE: Final = re.compile(r"([\w.]+): ")
_PLAIN_NAME: Final = re.compile(r"[\w$. -]{1,100}")
JOB_FILE: Final = "job.yaml"  # what `init` calls it
JOBS: Final = "hmrf-dask/job/"  # what $schema of a job begins with
OUTPUTS: Final = {"LATEST", "releases"}  # of which each output has one
DOCUMENTS: Final = (
    ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq", ".gz", ".zst", ".zstd", ".txt", ".md",
)  # fmt: skip
NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
# What a value must be, by pydantic's name of the mistake: its own words speak of Python.
_MUST_BE: Final = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping of names to values",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": "a whole number",
    "invalid_key": "a mapping of names to values",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "model_type": "a mapping of names to values",
    "string_too_long": "no longer than {max_length}",
    "string_type": "a text",
    "too_long": "a list of {max_length} at most",
    "tuple_type": "a list",
}
# The kinds of files there are, each with the key that no other kind has, and its command.
_KINDS: Final = {"job": ("manifest", "run"), "manifest": ("resources", "check")}


def refusing(problem_of: Callable[[str], str]) -> AfterValidator:
    """Return what refuses a text with a problem, such as a secret in it."""

    def checked(text: str) -> str:
        """Return a text without a problem."""
        if problem := problem_of(text):
            raise ValueError(problem)
        return text

    return AfterValidator(checked)


def _as_variable(name: str) -> str:
    """Refuse what is no name of an environment variable: an address would stand in the file."""
    try:
        return checked_variable(name)
    except ConfigurationError as error:
        raise ValueError(str(error).removeprefix("url_env ")) from None


Variable = Annotated[str, AfterValidator(_as_variable)]
Words = Annotated[str, Field(max_length=10_000)]
Place = Annotated[str, Field(min_length=1, max_length=PATH_CHARACTERS), refusing(store_problem)]


def parse_yaml(data: bytes, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML file of plain values; `name` is its path or URL, for errors.

    Examples
    --------
    >>> parse_yaml(b"name: news", "job.yaml")
    {'name': 'news'}
    >>> parse_yaml(b"- news", "job.yaml")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: job.yaml must be a mapping of names to values, got ...
    """
    content = _read_plain(data, name)
    if isinstance(content, dict):
        return content
    kind = "a list" if isinstance(content, list) else f"the text {_short(content)}"
    raise ConfigurationError(
        f"{name} must be a mapping of names to values, got "
        f"{'an empty file' if content is None else kind}; `hmrf-dask init FILE_OR_FOLDER` makes a "
        "manifest and a job to begin with"
    )


def read_yaml(
    address: str, wanted: str, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the mapping in a YAML file, a job or manifest; `wanted` says which, for errors.

    A file of documents, or a folder, is refused with the command that takes it.
    """
    if is_local(address):
        _refuse_documents(address, wanted)
    return parse_yaml(read_whole(address, options or {}, YAML_BYTES), address)


def _refuse_documents(address: str, wanted: str) -> None:
    path = local_path(address)
    if os.path.isdir(path):
        what = "a folder"
        if os.path.isfile(os.path.join(path, JOB_FILE)):
            job = os.path.join(address, JOB_FILE)
            raise ConfigurationError(
                f"{address} is a folder, not a {wanted}; the job in it is {job}: give that"
            )
        if OUTPUTS & set(os.listdir(path)):
            raise ConfigurationError(
                f"{address} is the output of a job, not a {wanted}; `hmrf-dask inspect {address}` "
                "describes it"
            )
    elif os.path.isfile(path) and path.lower().endswith(DOCUMENTS):
        what = "a file of documents"
    else:
        return
    raise ConfigurationError(
        f"{address} is {what}, not a {wanted}: `hmrf-dask init {address}` makes a job for it, and "
        "says what to do next"
    )


def refuse_job(address: str) -> None:
    """Refuse a job file, or the folder it lies in, where its output belongs, and say which is."""
    path = local_path(address) if is_local(address) else ""
    if os.path.isdir(path) and not any(os.path.exists(f"{path}/{name}") for name in OUTPUTS):
        job, what = os.path.join(address, JOB_FILE), "the folder of a job"
    elif path.endswith((".yaml", ".yml")):
        job, what = address, "a job file"
    else:
        return
    if not os.path.isfile(local_path(job)):
        return
    content = parse_yaml(read_whole(job, {}, YAML_BYTES), job)
    output = content.get("output")
    if str(content.get("$schema")).startswith(JOBS) and isinstance(output, str):
        where = output if "://" in output else os.path.join(os.path.dirname(job), output)
        raise ConfigurationError(f"{address} is {what}, not its output: that is {where}, give it")


def refuse_other_kind(content: dict[str, Any], name: str, wanted: str) -> None:
    """Refuse a job where a manifest belongs, and the other way, with the command that takes it.

    Examples
    --------
    >>> refuse_other_kind({"resources": []}, "news.yaml", "job")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: news.yaml is a manifest, not a job: `hmrf-dask ...
    """
    kind = next(kind for kind in _KINDS if kind != wanted)
    if is_kind(content, kind):
        command = _KINDS[kind][1]
        raise ConfigurationError(
            f"{name} is a {kind}, not a {wanted}: `hmrf-dask {command} {name}` is its command"
            + _manifest_of(content, name)
        )


def is_kind(content: dict[str, Any], kind: str) -> bool:
    """Return whether a file says that it is a job or a manifest, or has only the keys of one.

    Examples
    --------
    >>> is_kind({"manifest": "news.yaml"}, "job"), is_kind({"resources": []}, "job")
    (True, False)
    """
    schema = str(content.get("$schema", ""))
    by_key = _KINDS[kind][0] in content and not any(
        key in content for name, (key, _) in _KINDS.items() if name != kind
    )
    return schema.startswith(f"hmrf-dask/{kind}/") or (by_key and not schema)


def _manifest_of(content: dict[str, Any], name: str) -> str:
    """Return which command takes the manifest that a job names; '' if it names none."""
    manifest = content.get("manifest")
    if not isinstance(manifest, str) or not manifest:
        return ""
    path = manifest if "://" in manifest else os.path.join(os.path.dirname(name), manifest)
    return f", and `hmrf-dask check {path}` that of the manifest it names"


def validated(model: type[M], content: dict[str, Any], name: str) -> M:
    """Return what a file says as the model has it; one error names every mistake by its path.

    Examples
    --------
    >>> from hmrf_dask.documents.manifest import Columns
    >>> validated(Columns, {"id": "key", "txt": "body"}, "news.yaml")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    hmrf_dask.errors.ConfigurationError: news.yaml has a mistake: txt: must not be there ...
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        places = _places(error, content, model)
        count = "a mistake" if len(places) == 1 else f"{len(places)} mistakes"
        first = dict(islice(places.items(), _MOST_SHOWN))
        more = "; …" if len(places) > len(first) else ""
        raise ConfigurationError(f"{name} has {count}: {'; '.join(_lines(first))}{more}") from None


def _places(error: ValidationError, content: Any, model: type[BaseModel]) -> dict[str, str]:
    """Return what is wrong at each place that has a mistake; a union's members are one."""
    places: dict[str, list[str]] = {}
    for mistake in error.errors(include_url=False):
        kept = _in_file(mistake["loc"], content, missing=mistake["type"] == "missing")
        path, words = ".".join(map(_step, kept)), _words(mistake, kept, model)
        if not path and (own := _OWN_PLACE.match(words)):  # a check of all that says where it is
            path, words = own[1], words[own.end() :]
        places.setdefault(path or _GENERAL, []).append(words)
    return {path: _joined(list(dict.fromkeys(words))) for path, words in places.items()}


def _step(step: int | str) -> str:
    """Return a step of a path; a name that is none is quoted, it may be anything."""
    plain = isinstance(step, int) or _PLAIN_NAME.fullmatch(step)
    return f"{step}" if plain else shortened(step, 100)


def _lines(places: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each place; what known names there are is said once."""
    same: dict[str, list[str]] = {}
    for path, words in places.items():
        same.setdefault(words if _KNOWN in words else f"{path}: {words}", []).append(path)
    for words, paths in same.items():
        yield f"{', '.join(paths)}: {words}" if _KNOWN in words else words


def _joined(words: list[str]) -> str:
    """Return what members of a union say of one value as one sentence."""
    begin, value = "must be ", f", got {words[0].partition(', got ')[2]}"

    def shared(sentence: str) -> bool:
        """Return whether a sentence begins and ends as all of them do."""
        return sentence.startswith(begin) and sentence.endswith(value)

    if len(words) > 1 and all(map(shared, words)):
        return begin + " or ".join(sentence[len(begin) : -len(value)] for sentence in words) + value
    return " or ".join(words)


def _in_file(loc: tuple[int | str, ...], content: Any, *, missing: bool) -> tuple[int | str, ...]:
    """Return the part of a location that the file has: pydantic adds members of unions."""
    kept: list[int | str] = []
    for step in loc:
        inside = isinstance(content, list) and isinstance(step, int) and step < len(content)
        if inside or (isinstance(content, Mapping) and step in content):
            content = content[step]
        elif not (missing and step == loc[-1]):
            continue
        kept.append(step)
    return tuple(kept)


def _words(mistake: Any, path: tuple[int | str, ...], model: type[BaseModel]) -> str:
    if mistake["type"] == "extra_forbidden":
        known = _fields(model, path[:-1])
        near = _homes(str(path[-1]), model) or meant(str(path[-1]), known)
        return f"must not be there{near or _KNOWN + ', '.join(known)}"
    if mistake["type"] == "missing":
        return "is missing"
    if mistake["type"] in ("value_error", "assertion_error"):
        return str(mistake["msg"].partition(" error, ")[2])
    if mistake["type"] == "string_too_short":
        return "must not be empty"
    context = {  # a limit as a person writes it: 1, not 1.0
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in mistake.get("ctx", {}).items()
    }
    if context.get("pattern") == NAME_PATTERN:
        must = "lower-case letters, digits, '.', '_' and '-', a letter or digit first"
    else:
        must = _MUST_BE.get(mistake["type"], mistake["msg"]).format_map(context).replace("'", "")
    return f"must be {must}, got {_short(mistake['input'])}{_hint(mistake)}"


def _homes(name: str, model: type[BaseModel]) -> str:
    """Return the section that a name belongs to which stands elsewhere, "" where there is none."""
    for section, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            if name in inner.model_fields:
                return f", but below {field.alias or section}: write {section}: {{{name}: …}}"
    return ""


def _hint(mistake: Any) -> str:
    """Return what may have been meant by a value."""
    value = mistake["input"]
    if mistake["type"] == "literal_error" and isinstance(value, str):
        words = mistake["ctx"]["expected"].split("'")[1::2]
        return meant(value, words) if len(words) > 1 else ""
    if mistake["type"] == "string_type" and isinstance(value, bool | int | float):
        return " (put it in quotes; YAML reads no, off, yes and on as true or false)"
    if mistake["type"] in ("float_type", "int_type") and isinstance(value, str):
        return _as_number(value)
    return ""


def _as_number(value: str) -> str:
    """Return how a text is written as a number, "" if it is none: YAML's fractions have a point."""
    try:
        number = float(value[:80])
    except ValueError:
        return ""
    if len(value) >= 80 or not isfinite(number):
        return ""
    whole = number.is_integer() and abs(number) < 1e15  # 3, as 3.0 is no whole number
    return f" (write {int(number) if whole else number}, without quotes)"


def _short(value: Any) -> str:
    """Return a value as YAML writes it, not too long."""
    if isinstance(value, list | Mapping):  # nobody knows what is in there
        return "a list" if isinstance(value, list) else "a mapping"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "nothing" if value is None else shortened(value)


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Return the names that a mapping at a path may have."""
    models = [model]
    for step in path:
        if isinstance(step, str):
            models = [
                inner
                for known in models
                for name, field in known.model_fields.items()
                if step in (name, field.alias)
                for inner in _models_in(field.annotation)
            ]
    names = [
        field.alias or name
        for known in models
        for name, field in known.model_fields.items()
        if not field.exclude
    ]
    return list(dict.fromkeys(names))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, within unions and lists too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)
