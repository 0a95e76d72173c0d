"""Texts without the secrets in them: what errors, warnings, logs and the command line pass through.

It knows secrets by their form: the user part, the query and the fragment of a URL, values behind
names such as `password`, keys of clouds, tokens. A text without any comes back as it is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

HIDDEN: Final = "…"
# Stores in whose addresses "?" is a wildcard, not the beginning of a query.
GLOB_STORES: Final = frozenset(
    ("", "file", "local", "s3", "s3a", "gs", "gcs", "memory", "hdfs", "builtin")
)
_SECRET_NAME = re.compile(
    r"(^|_)(key|pass|pwd|pw|token|sig|sas|auth|bearer|cookies?|jwt)$"
    r"|secret|passw(or)?d|passphrase|credential|signature|authori[sz]ation"
    r"|(access|account|api|shared|private|signing|encryption|security)_?(key|token)"
    r"|connection_?string"
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SCHEME = r"(?:(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]{2,}+:[\\/]++|:[\\/]{2,}+|(?<![\w:/\\.])//)"
_QUOTED_URL = re.compile(
    rf"(?P<quote>['\"`])(?P<scheme>(?:\w+::)*{_SCHEME})(?P<rest>[^\n]{{0,2000}}?)(?P=quote)(?![\w/@?#&=])"
)
_BARE_URL = re.compile(rf"(?P<quote>)(?P<scheme>{_SCHEME})(?P<rest>\S+)")
_CLOSING = ";,:.)]}'\"`>"
# Other at signs, colons and marks are read as these by whatever normalises names of hosts.
_AT = re.compile(r"[@\uff20\ufe6b]|%(?:25)*(?:40|EF%(?:25)*B(?:C%(?:25)*A0|9%(?:25)*AB))", re.I)
_COLON = re.compile(r"[:\uff1a]|%(?:25)*3[aA]")
_BEHIND = re.compile(r"[?\uff1f\ufe56]|[#\uff03\ufe5f]|%(?:25)*3[fF]|%(?:25)*23")
# me:password@host without a scheme; digits alone are a time, a single character may be a drive.
_USER = (
    r"(?!mailto:|[A-Za-z]:\\)(?P<name>(?=[\w.%+-]*?[^\W\d_])(?:%(?!(?:25)*3[aA])|[\w.+-])++)"
    rf"(?:{_COLON.pattern})(?!/)"
)
_NO_SCHEME = re.compile(
    rf"(?<![\w/@.:%+-])(?P<quote>){_USER}[^\s'\",]+(?:{_AT.pattern})(?=[\w\[])", re.I
)
_QUOTED_USER = re.compile(
    rf"(?P<quote>['\"]){_USER}(?:(?!(?P=quote))\S)+(?:{_AT.pattern})(?=[\w\[])", re.I
)
# 'password': 'x' of a mapping, password=x of a query, an option or a connection string.
_VALUE = r"(?:'[^'\n]*'?|\"[^\"\n]*\"?|[^\s,;&'\")\]}]+)"
_IN_MAPPING = re.compile(
    r"(?P<name>['\"][\w.-]+['\"]\s*:\s*|\(['\"][\w.-]+['\"],\s*)" rf"(?P<value>b?{_VALUE})"
)
_IN_MAPPING_IN_TEXT = re.compile(
    r"(?P<name>\\+['\"][\w.-]+\\+['\"]\s*:\s*)(?P<value>\\+['\"][^'\"\n]*['\"]?)"
)
_ASSIGNED = re.compile(rf"(?P<name>(?<![\w.-])[\w.-]++\\?['\"]?\s?=\s?)(?P<value>{_VALUE})")
_NOT_ASSIGNED = frozenset(("key", "pass", "auth"))  # ordinary words before "="
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]{0,60}(?:token|key|signature|secret))"
    r"(['\"]?\s*:\s*)(?:(?:bearer|basic|digest|negotiate|token)\s+)?['\"]?[^\s'\"]+"
)
_BY_FORM = (
    re.compile(r"(?P<shown>\b(?:AKIA|ASIA))[A-Z0-9]{16}\b"),
    re.compile(r"(?P<shown>(?<![\w-])eyJ)[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*)?"),  # a JSON Web Token
    re.compile(r"(?P<shown>(?i:\bbearer\s+))[\w.~+/=-]{16,}"),
    re.compile(r"(?P<shown>-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?:-----END|$)"),
)


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret: `password`, `accountKey`, `x-api-key`, `sig`.

    Examples
    --------
    >>> is_secret_name("AccountKey"), is_secret_name("SSEKMSKeyId"), is_secret_name("profile")
    (True, False, False)
    """
    plain = _CAPITAL.sub("_", name).lower().replace("-", "_").replace(".", "_")
    return _SECRET_NAME.search(plain) is not None


def has_secret_form(text: str) -> bool:
    """Return whether a text holds a key of a cloud, a token or a private key, by its form.

    Examples
    --------
    >>> has_secret_form("AKIAIOSFODNN7EXAMPLE"), has_secret_form("a document")
    (True, False)
    """
    return any(pattern.search(text) for pattern in _BY_FORM)


def without_secrets(text: str) -> str:
    """Return a text with what may be a secret replaced by "…".

    Examples
    --------
    >>> without_secrets("no answer from https://me:hunter2@example.org/a?sig=9f#top; check it")
    'no answer from https://…@example.org/a?…; check it'
    >>> without_secrets("document 'a@b' at 12:30, /data/a@b.jsonl, s3://bucket/part-?.jsonl")
    "document 'a@b' at 12:30, /data/a@b.jsonl, s3://bucket/part-?.jsonl"
    """
    text = _QUOTED_URL.sub(_masked_url, text)
    text = _BARE_URL.sub(_masked_url, text)
    for pattern in (_QUOTED_USER, _NO_SCHEME):
        text = pattern.sub(rf"\g<quote>\g<name>:{HIDDEN}@", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    for pattern in (_IN_MAPPING, _IN_MAPPING_IN_TEXT, _ASSIGNED):
        text = pattern.sub(_masked_value, text)
    for pattern in _BY_FORM:
        text = pattern.sub(rf"\g<shown>{HIDDEN}", text)
    return text


def shortened(value: object, length: int = 80) -> str:
    """Return a value as Python writes it, without secrets and not longer than `length`.

    Examples
    --------
    >>> shortened({"password": "hunter2"}), shortened("abcdefghij", 8)
    ("{'password': '…'}", "'abcd...")
    """
    try:
        text = " ".join(without_secrets(repr(value)).splitlines())  # of arrays there are several
    except Exception as error:  # noqa: BLE001 - an object of somebody else's raises anything
        many = isinstance(value, int) and isinstance(error, ValueError)
        return "a number of thousands of digits" if many else f"a {type(value).__name__}"
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _masked_rest(scheme: str, rest: str) -> str:
    """Return what follows the scheme of a URL without user part, query and fragment."""
    ends = r"[/\\?#]" if scheme in ("", "file", "local") else r"[/?#]"
    authority = re.split(ends, rest, maxsplit=1)[0]
    if _AT.search(authority) or (_COLON.search(authority) and _AT.search(rest)):
        rest = f"{HIDDEN}@{_AT.split(rest)[-1]}"
    for mark in _BEHIND.finditer(rest):
        behind = rest[mark.end() :]
        wildcard = scheme in GLOB_STORES and mark[0][-1] in "?\uff1f\ufe56fF"
        if behind and not (wildcard and not re.match(r"[^/?]*=", behind)):
            return f"{rest[: mark.start()]}{mark[0]}{HIDDEN}"
    return rest


def _masked_url(match: re.Match[str]) -> str:
    quote, scheme, rest = match["quote"], match["scheme"], match["rest"]
    end = ""
    if not quote:  # punctuation of the sentence around it
        end = rest[len(rest.rstrip(_CLOSING)) :]
        rest = rest[: len(rest) - len(end)]
    name = scheme.rstrip("/\\").rstrip(":").rpartition(":")[2].lower()
    return f"{quote}{scheme}{_masked_rest(name, rest)}{end}{quote}"


def _masked_value(match: re.Match[str]) -> str:
    name = re.sub(r"[^\w.-]", "", match["name"])
    assigned = "=" in match["name"]
    if not is_secret_name(name) or (assigned and name.lower() in _NOT_ASSIGNED):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "'\"" else ""
    return f"{match['name']}{quote}{HIDDEN}{quote}"


@contextmanager
def logs_without_secrets() -> Iterator[None]:
    """Take secrets out of whatever this process logs within, tracebacks too.

    Examples
    --------
    >>> with logs_without_secrets():
    ...     record = logging.getLogger().makeRecord("a", 20, "", 1, "pwd=%s", ("x1",), None)
    >>> record.getMessage()
    'pwd=…'
    """
    made_before = logging.getLogRecordFactory()

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        """Return a record of the log whose texts show no secret."""
        record = made_before(*args, **kwargs)
        record.msg, record.args = without_secrets(record.getMessage()), None
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            record.exc_text = without_secrets(text)  # which formatters take as it is
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        logging.setLogRecordFactory(made_before)
