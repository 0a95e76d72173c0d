"""YAML of plain values, in bounds: no aliases, tags or merges, nothing large, deep or twice."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar, Final

import yaml

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.limits import YAML_BYTES, YAML_CHARACTERS, YAML_DEPTH, YAML_VALUES
from hmrf_dask.redaction import shortened, without_secrets

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


def read_plain(data: bytes, name: str) -> Any:
    """Return what a YAML file holds; `name` is its path or URL, for errors.

    Raises
    ------
    ConfigurationError
        It is no YAML, not of plain values, or beyond the bounds of `hmrf_dask.limits`.
    """
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
        told = getattr(error, "problem", None) or error
        raise ConfigurationError(f"{name}{place}: must be YAML, {told!s:.300}") from error


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
        if not math.isfinite(value):
            raise _problem(f"a number must be finite, got {shortened(node.value)}", node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are texts and come once each."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                given = (
                    key_node.value if isinstance(key_node, yaml.ScalarNode) else "a list or more"
                )
                raise _problem(
                    f"a key must be a text, got {without_secrets(given)[:80]}; put it in quotes",
                    key_node,
                )
            if key in seen:
                raise _problem(f"the key {shortened(key)} comes twice; keep one", key_node)
            seen.add(key)
        return dict(super().construct_mapping(node, deep=deep))


_Loader.add_constructor(f"{_TAG}float", _Loader.construct_yaml_float)
for _kind, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(_pattern), _first)


def _problem(words: str, where: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, words, where.start_mark)
