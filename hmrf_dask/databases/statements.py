"""SQL that is made here: names and values quoted, and a query of a person seen to be one select."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Final

from hmrf_dask.errors import ConfigurationError
from hmrf_dask.redaction import shortened

NAME_BYTES: Final = 63  # of PostgreSQL, which cuts longer ones
_QUERY_CHARACTERS = 100_000
# What may hide a bracket, a semicolon or a word: texts, quoted names, comments. An open one is an
# error of its own; so is one with another in it, which only PostgreSQL has. Backslashes count in
# texts of PostgreSQL that begin with E.
_PARTS = re.compile(
    r"(?P<text>\b[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`"
    r"|(?P<dollar>\$(?:[A-Za-z_]\w*)?\$)(?s:.)*?(?P=dollar))"
    r"|(?P<comment>--[^\n\r]*|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)"
    r"|(?P<open>['\"`]|/\*)"
    r"|(?P<plain>[^'\"`$/\-eE]+|.)",
    re.DOTALL,
)


def quoted(*names: str) -> str:
    """Return a name as SQL has it between quotes, such as that of a table in a schema.

    Examples
    --------
    >>> quoted("public", "tickets")
    '"public"."tickets"'
    """
    for name in names:
        if not name or "\0" in name or len(name.encode()) > NAME_BYTES:
            raise ConfigurationError(
                f"a name in a database must have 1 to {NAME_BYTES} bytes and no NUL character, got "
                f"{shortened(name)!r}; correct it"
            )
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(value: str) -> str:
    """Return a text as SQL has it between quotes; backslashes are themselves.

    Examples
    --------
    >>> print(literal("it's"))
    'it''s'
    """
    if "\0" in value:
        raise ValueError("a text in SQL must have no NUL character")
    return "'" + value.replace("'", "''") + "'"


def select_of(query: str) -> str:
    r"""Return a query that is a single select as a part of another: in brackets, no semicolon.

    That is for a person who errs: what guards the database is that transactions only read.

    Raises
    ------
    ConfigurationError
        It is something else.

    Examples
    --------
    >>> select_of("select id, body from tickets where team = ';';")
    "(select id, body from tickets where team = ';'\n)"
    >>> select_of("select 1; drop table tickets")
    Traceback (most recent call last):
    hmrf_dask.errors.ConfigurationError: query must be one select, got a semicolon inside; cut it
    """
    if problem := _problem_of_query(query):
        raise ConfigurationError(f"query must be one select, got {problem}")
    ends = [
        part.start() + part.group().rindex(";")
        for part in _PARTS.finditer(query)
        if part.lastgroup == "plain" and ";" in part.group()
    ]
    return f"({query[: ends[0]] if ends else query}\n)"


def _problem_of_query(query: str) -> str:
    """Return what a query is in place of a select, and what to do; "" if it is one."""
    if "\0" in query or len(query) > _QUERY_CHARACTERS:
        return f"a NUL or more than {_QUERY_CHARACTERS:,} characters; make a view of it"
    parts = list(_PARTS.finditer(query))
    if any(part.lastgroup == "open" for part in parts):
        return "a quote or a comment without its end; close it"
    stands_for = {"text": "''", "comment": " "}
    plain = "".join(stands_for.get(part.lastgroup or "", part.group()) for part in parts).strip()
    plain = plain.removesuffix(";").rstrip()
    word = re.split(r"\W", plain.lstrip("( \n\t"), maxsplit=1)[0]
    if word.lower() not in ("select", "with"):
        return f"{shortened(word or plain)} at its beginning; begin with select or with"
    if ";" in plain:
        return "a semicolon inside; cut it"
    depths = list(accumulate({"(": 1, ")": -1}.get(sign, 0) for sign in plain))
    return "brackets that do not match; correct them" if min(depths) < 0 or depths[-1] else ""
