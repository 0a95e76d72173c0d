"""Documents in an index of Elasticsearch or OpenSearch, over HTTP: a point in time, page by page.

The endpoints used are those that both have: `_field_caps`, `_search` in the order of the key, and
the point in time, which each of them opens and closes in its own way.
"""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import Field

from hmrf_dask.databases.connection import address_of
from hmrf_dask.documents.keyed_query import Range
from hmrf_dask.documents.keyed_records import (
    OVERLAP_ROWS,
    FieldName,
    Found,
    KeyedRecords,
    RecordSettings,
    Store,
    at,
    refuse_other_id,
)
from hmrf_dask.documents.yaml_files import validated
from hmrf_dask.errors import (
    ConfigurationError,
    HmrfError,
    InvalidInputError,
    SourceUnavailableError,
)

if TYPE_CHECKING:
    from hmrf_dask.documents.manifest import Columns

_PAGE: Final = 500  # documents of an answer
_HOUR: Final = 3_600_000  # milliseconds: a program names the time before others see what it wrote
_KEYS: Final = ("keyword", "long", "integer", "short")
_TIMES: Final = ("date", "long", "integer")
_LOGIN: Final = (401, 403)
_NO_INDEX: Final = "index_not_found_exception"
_LATER: Final = (404, 408, 429)  # of a search: the point in time is gone, or too much goes on


class SearchSettings(RecordSettings):
    """Documents of an index of Elasticsearch or OpenSearch."""

    index: Annotated[str, Field(pattern=r"^[^\s_/\\*?\"<>|,#:+-][^\s/\\*?\"<>|,#:]{0,254}$")] = (
        Field(description="The index, or an alias of one.")
    )
    key: FieldName = Field(
        description="The field that names a document, of keywords or whole numbers: its id."
    )


def open_search(name: str, settings: Mapping[str, Any], columns: Columns) -> SearchSource:
    """Return the source of a resource; nothing is connected to.

    Raises
    ------
    ConfigurationError
        The settings are wrong.
    """
    known = validated(SearchSettings, dict(settings), name)
    refuse_other_id(known.key, columns)
    return SearchSource(name, known, columns)


@dataclass(frozen=True)
class SearchSource(KeyedRecords):
    """The documents of an index, by the settings of the manifest."""

    name: str
    settings: SearchSettings
    columns: Columns

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return "search"

    @contextmanager
    def snapshot(self) -> Iterator[str]:
        """Hold a point in time open, which all workers read."""
        server = _Server(self.settings)
        name = server.opened_point()
        try:
            yield name
        finally:
            with suppress(HmrfError):  # it ends by itself
                server.close_point(name)

    @contextmanager
    def _opened(self, snapshot: str) -> Iterator[Store]:
        if snapshot:
            yield _Index(_Server(self.settings), self.settings, snapshot)
            return
        with self.snapshot() as own:
            yield _Index(_Server(self.settings), self.settings, own)


class _Index(Store):
    """An index at a point in time."""

    def __init__(self, server: _Server, settings: SearchSettings, point: str) -> None:
        self._server = server
        self._settings = settings
        self._point = point

    def refuse_unfit(self) -> None:
        """Refuse a key or times of changes of other types than have an order, and missing keys."""
        known = self._settings
        self._refuse_type(known.key, _KEYS, "keywords or whole numbers")
        if known.changed:
            self._refuse_type(known.changed, _TIMES, "dates or whole numbers")
        without = {"bool": {"must_not": {"exists": {"field": known.key}}}}
        if self._hits([without], known.key, 1, ()):
            raise InvalidInputError(
                f"{known.key} must be in all documents of {known.index}, got some without; correct "
                "them, or name another key"
            )

    def _refuse_type(self, field: str, admitted: Sequence[str], must: str) -> None:
        types = self._types_of(field)
        if len(types) != 1 or types[0] not in admitted:
            raise ConfigurationError(
                f"{field} must be a field of {must}, got {' and '.join(types) or 'none'} in "
                f"{self._settings.index}; name another field (of a text maybe {field}.keyword)"
            )

    def _types_of(self, field: str) -> list[str]:
        """Return the types of a field: several where an alias has several indexes."""
        index = quote(self._settings.index, safe="")
        found = self._server.ask("GET", f"{index}/_field_caps?fields={quote(field, safe='')}")
        return sorted(found.get("fields", {}).get(field, {}))

    def records(
        self, rows: Range, fields: Sequence[str], ids: Sequence[str] = ()
    ) -> Iterator[Found]:
        """Yield documents in the order of the key, page by page.

        A page begins with the last key of the one before: so a key that comes twice is seen.
        """
        key, last = self._settings.key, None
        bounds = {sign: json.loads(str(bound[0])) for sign, bound in _bounds(rows) if bound}
        while True:
            parts = [{"range": {key: bounds}}] if bounds else []
            hits = self._hits([*parts, *self._newer(rows), *_of_ids(key, ids)], key, _PAGE, fields)
            for hit in hits:
                if hit["_id"] != last:
                    yield _found(hit, key, fields)
            if len(hits) < _PAGE:
                return
            if hits[-1]["_id"] == last:
                raise InvalidInputError(
                    f"{key} must name one document, got {hits[-1]['sort'][0]!r} in more than "
                    f"{_PAGE} of them; correct key, or the documents"
                )
            last = hits[-1]["_id"]
            bounds = {**bounds, "gte": hits[-1]["sort"][0]}
            bounds.pop("gt", None)

    def _newer(self, rows: Range) -> list[dict[str, Any]]:
        """Return the condition of changes since a moment; those that say no time are of them."""
        field = self._settings.changed
        if rows.since is None or field is None:
            return []
        bound: dict[str, Any] = json.loads(str(rows.since))
        missing = {"bool": {"must_not": {"exists": {"field": field}}}}
        return [{"bool": {"should": [{"range": {field: bound}}, missing]}}]

    def _hits(
        self,
        conditions: Sequence[Mapping[str, Any]],
        order: str,
        size: int,
        fields: Sequence[str],
        way: str = "asc",
    ) -> list[dict[str, Any]]:
        """Return the first documents that meet all conditions."""
        found = self._server.ask(
            "POST",
            "_search?allow_partial_search_results=false",
            {
                "pit": {"id": self._point, "keep_alive": self._server.keep_alive},
                "query": {"bool": {"filter": list(conditions)}},
                "sort": [{order: way}],
                "size": size,
                "_source": list(fields),
                "track_total_hits": False,
            },
        )
        if found.get("timed_out"):
            raise SourceUnavailableError(
                f"{self._settings.index}: a search took too long; run again later"
            )
        hits: list[dict[str, Any]] = found["hits"]["hits"]
        return hits

    def moment(self) -> str | None:
        """Return the last change but some, and an hour before where it is a time.

        A time to come, of which there are less, hides nothing.
        """
        field = self._settings.changed
        assert field is not None
        there = {"exists": {"field": field}}
        newest = self._hits([there], field, OVERLAP_ROWS, (), "desc")
        if not newest:
            return None
        low = newest[-1]["sort"][0]
        if "date" in self._types_of(field):
            return json.dumps({"gte": low - _HOUR, "format": "epoch_millis"})
        return json.dumps({"gte": low})


def _bounds(rows: Range) -> list[tuple[str, Any]]:
    return [("gt", rows.after), ("lte", rows.to)]


def _of_ids(key: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [{"terms": {key: list(ids)}}] if ids else []


def _found(hit: Mapping[str, Any], key: str, fields: Sequence[str]) -> Found:
    """Return a document; its key is that which it is sorted by."""
    content, value = hit.get("_source"), hit["sort"][0]
    if not isinstance(content, dict):
        raise ConfigurationError("an index must keep the source of documents, got one without it")
    if isinstance(at(content, key), list):
        raise InvalidInputError(
            f"{key} must be one value, got a list in the document {hit['_id']!r}; correct it"
        )
    return Found(str(value), json.dumps(value), {name: at(content, name) for name in fields})


class _Staying(HTTPRedirectHandler):
    """Goes nowhere else: the login is for the one address."""

    def redirect_request(self, *_: Any) -> None:
        """Let the answer be an error."""


_OPENER: Final = build_opener(_Staying)


class _Server:
    """A server over HTTP; what goes wrong is said in words, without the address."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        url = address_of(settings.url_env, ("http", "https"), "https://host:9200")
        self._place = f"the search server of {settings.url_env}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host:
            raise ConfigurationError(f"{self._place}: the address cannot be used; correct it")
        named = f"[{host}]" if ":" in host else host
        self._base = f"{parts.scheme}://{named}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
        self._headers = {"Content-Type": "application/json"}
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"

    def ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return what a server answers."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._base}/{path}", data, self._headers, method=method)
        try:
            with _OPENER.open(request, timeout=self._settings.timeout) as answer:
                found = json.loads(answer.read())
        except HTTPError as error:
            raise self._refusal(error) from None
        except ssl.SSLCertVerificationError:
            raise ConfigurationError(f"{self._place}: its certificate is not trusted") from None
        except (OSError, HTTPException, ValueError) as error:
            raise SourceUnavailableError(
                f"{self._place}: no answer, or none that is whole ({type(error).__name__}); run "
                "again later"
            ) from None
        if not isinstance(found, dict):
            raise SourceUnavailableError(f"{self._place}: its answer is no object; run again later")
        return found

    def _refusal(self, error: HTTPError) -> HmrfError:
        said = f"{self._place}: {error.code}"
        with suppress(OSError, HTTPException, ValueError, KeyError, TypeError, IndexError):
            cause = json.loads(error.read())["error"]
            if cause["type"] == _NO_INDEX:
                return ConfigurationError(
                    f"{self._place}: there is no index {self._settings.index}; correct the manifest"
                )
            said = f"{said} {' '.join(str(cause['root_cause'][0]['reason']).split())[:300]}"
        if error.code < 400:
            return ConfigurationError(f"{said}, it sends elsewhere; give the address of the server")
        if error.code in _LOGIN:
            return ConfigurationError(f"{said}; correct the user, password or rights")
        if error.code in _LATER or error.code >= 500:
            return SourceUnavailableError(f"{said}; run again later")
        return ConfigurationError(f"{said}; correct the index or the fields in the manifest")

    @property
    def _is_opensearch(self) -> bool:
        version = self.ask("GET", "").get("version")
        return isinstance(version, dict) and version.get("distribution") == "opensearch"

    @property
    def keep_alive(self) -> str:
        """How long a point in time stays open after a request."""
        return f"{int(max(self._settings.timeout, 60))}s"

    def opened_point(self) -> str:
        """Open a point in time, and return its name."""
        index = quote(self._settings.index, safe="")
        if self._is_opensearch:
            path = f"{index}/_search/point_in_time?keep_alive={self.keep_alive}"
            return str(self.ask("POST", path)["pit_id"])
        return str(self.ask("POST", f"{index}/_pit?keep_alive={self.keep_alive}")["id"])

    def close_point(self, name: str) -> None:
        """Close a point in time."""
        if self._is_opensearch:
            self.ask("DELETE", "_search/point_in_time", {"pit_id": [name]})
        else:
            self.ask("DELETE", "_pit", {"id": name})
