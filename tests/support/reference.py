"""The pages of docs/reference that are made from the code: job, manifest, commands, exit codes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import click

from hmrf_dask import errors
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.documents import manifest
from hmrf_dask.jobs import job_file

WRITTEN = "<!-- `make published` writes this page -->\n"
MEANINGS = {
    0: "done",
    1: "a fault of the program: a traceback, which is worth a report",
    2: "usage: an option or an argument is wrong",
    65: "bad data: documents, answers or rows are not what they must be; a person has to look",
    75: "try again: a store does not answer, another run holds the output, there are no workers",
    78: "bad configuration: a job file, a manifest, a path, rights, memory; a person has to look",
    129: "ended by SIGHUP",
    130: "ended by Ctrl-C",
    141: "the reader of the output went away, such as `head`",
    143: "ended by SIGTERM",
}


def _values(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return in words what a key may hold."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name == "Method":
            return "[the parameters](../parameters.md)"
        properties = definitions[name].get("properties")
        return f"[{name}](#{name.lower()})" if properties else _values(definitions[name], {})
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        words = [_values(one, definitions) for one in choices if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(words))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema and len(schema["enum"]) < 15:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") in ("integer", "number"):
        return _number(schema)
    if schema.get("type") == "array":
        inner = _values(schema.get("items") or schema["prefixItems"][0], definitions)
        return f"{'two' if 'prefixItems' in schema else 'a list'} of: {inner}"
    if schema.get("type") == "object":
        of = schema.get("additionalProperties")
        return f"names with {_values(of, definitions)}" if isinstance(of, dict) else "names, values"
    return {"boolean": "`true`, `false`"}.get(schema.get("type", ""), "text")


def _number(schema: dict[str, Any]) -> str:
    kind = "a whole number" if schema["type"] == "integer" else "a number"
    if "minimum" not in schema:
        return kind
    return f"{kind}, {schema['minimum']:,g} to {_short(schema['maximum'])}"


def _short(number: float) -> str:
    if number == 2**63 - 1 or number == 2**64 - 1:
        return f"2^{int(number).bit_length()} − 1"
    return f"{number:,}" if isinstance(number, int) else f"{number:,g}"


def _default(name: str, schema: dict[str, Any], required: list[str]) -> str:
    default = schema.get("default")
    if name in required:
        return "required"
    if default is None or (isinstance(default, dict | list) and not default):
        return ""
    if isinstance(default, dict):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _what(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return what a key is for: in its own words, else in those of what it holds."""
    if words := schema.get("description"):
        return str(words).partition("\n")[0]
    inner = [definitions[schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else []
    parts = [*inner, *schema.get("anyOf", [])]
    return next((words for one in parts if (words := _what(one, definitions))), "")


def _table(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return a table of the keys of a part of a file."""
    required = schema.get("required", [])
    rows = ["| key | values | default | what |", "| --- | --- | --- | --- |"]
    for name, one in schema["properties"].items():
        what = _one_line(_what(one, definitions))
        values = _values(one, definitions)
        rows.append(f"| `{name}` | {values} | {_default(name, one, required)} | {what} |")
    return "\n".join(rows).replace("  |", " |") + "\n"


def _sections(schema: dict[str, Any], left_out: frozenset[str]) -> str:
    definitions = schema["$defs"]
    text = _table(schema, definitions)
    for name, one in definitions.items():
        if "properties" in one and name not in left_out:
            words = (one.get("description") or "").partition("Examples\n")[0].strip()
            text += f"\n## {name}\n\n{_one_line(words)}\n\n{_table(one, definitions)}"
    return text


def _one_line(text: str) -> str:
    return " ".join(text.split())


def job_page() -> str:
    """Return the reference of job files."""
    return (
        f"# Job file\n\n{WRITTEN}\nA job says what to do with the documents that a "
        "[manifest](manifest.md) names. Paths are relative to the file. All mistakes in it are "
        "reported at once.\nEditors complete and check it with `data_manifests/schema/"
        "job-v1.json`. The keys of `method` are [the parameters](../parameters.md).\n\n"
        + _sections(job_file.json_schema(), frozenset({"Method"}))
    )


def manifest_page() -> str:
    """Return the reference of manifests."""
    return (
        f"# Manifest\n\n{WRITTEN}\nA manifest says where documents and answers are, and whose "
        "they are. Names are those of Frictionless Data Package v2 where it has them.\nWhat is "
        "read and what is refused, record by record: `data_manifests/README.md`.\n\n"
        + _sections(manifest.json_schema(), frozenset())
    )


def _commands(group: click.Group, before: str = "hmrf-dask") -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        yield f"{before} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{before} {name}")


def commands_page() -> str:
    """Return what every command says of itself."""
    text = (
        f"# Commands\n\n{WRITTEN}\nWhich of them when: [which command](../which-command.md). How "
        "they end: [exit codes](exit-codes.md).\n"
    )
    for name, command in _commands(hmrf):
        words = name.split()
        context = click.Context(hmrf, info_name=words[0], **hmrf.context_settings)
        for word in words[1:]:
            group = context.command
            assert isinstance(group, click.Group)
            context = click.Context(group.commands[word], context, word, terminal_width=100)
        command = context.command
        text += f"\n## {name}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    return text


def exit_codes_page() -> str:
    """Return the exit codes, and the errors of Python that belong to them."""
    classes = filter(inspect.isclass, vars(errors).values())
    kinds = [one for one in classes if issubclass(one, errors.HmrfError)]
    kinds.remove(errors.HmrfError)
    rows = ["| code | meaning | in Python |", "| --- | --- | --- |"]
    for code, meaning in MEANINGS.items():
        names = ", ".join(f"`{one.__name__}`" for one in kinds if one.exit_code == code)
        rows.append(f"| {code} | {meaning} | {names} |".replace("|  |", "| |"))
    text = (
        f"# Exit codes and errors\n\n{WRITTEN}\nA command ends with one of these. Every error is "
        "one line on stderr that says what must be what, what was got, and what to do.\nIn Python "
        "the classes are in `hmrf_dask.errors`; all of them are an `HmrfError`, and warnings an "
        "`HmrfWarning`.\n\n" + "\n".join(rows) + "\n\n## Errors\n\n"
    )
    for one in sorted(kinds, key=lambda kind: kind.__name__):
        first = re.split(r"\n\s*\n", inspect.getdoc(one) or "")[0]
        text += f"- `{one.__name__}` ({one.exit_code}): {_one_line(first)}\n"
    return text
