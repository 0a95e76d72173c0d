"""What a source asks of Elasticsearch and OpenSearch, answered from a dictionary over HTTP.

It keeps points in time as copies, sorts by one field with documents without it last, and refuses
what it does not know, as no real server is at hand.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class SearchServer:
    """One index: documents by `_id`, and the types of fields."""

    index: str
    types: dict[str, str]
    is_opensearch: bool = False
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    address: str = ""
    failing: Callable[[], tuple[int, Any] | None] = lambda: None

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        broken = self.failing()
        if broken:
            return broken
        url = urlsplit(path)
        if (method, url.path) == ("GET", "/"):
            kind = {"distribution": "opensearch"} if self.is_opensearch else {}
            return 200, {"version": {"number": "9.0", **kind}}
        if (method, url.path) == ("POST", "/_search"):
            return self._search(body)
        if method == "DELETE":
            name = body["pit_id"][0] if self.is_opensearch else body["id"]
            return (200, {}) if self.points.pop(name, None) is not None else _refused(404, "gone")
        index, _, asked = url.path.strip("/").partition("/")
        if index != self.index:
            return _refused(404, f"no such index [{index}]", "index_not_found_exception")
        if asked == "_field_caps":
            names = parse_qs(url.query)["fields"]
            known = {name: {self.types[name]: {}} for name in names if name in self.types}
            return 200, {"fields": known}
        opening = "_search/point_in_time" if self.is_opensearch else "_pit"
        if asked != opening or "keep_alive" not in parse_qs(url.query):
            return _refused(400, f"unknown {asked}")
        name = f"point {len(self.points)}"
        self.points[name] = copy.deepcopy(self.documents)
        return 200, {"pit_id" if self.is_opensearch else "id": name}

    def _search(self, body: Any) -> tuple[int, Any]:
        documents = self.points.get(body["pit"]["id"])
        if documents is None:
            return _refused(404, "No search context found")
        ((order, way),) = body["sort"][0].items()
        rows = [(id_, one) for id_, one in documents.items() if self._meets(one, body["query"])]
        there = sorted((row for row in rows if order in row[1]), key=lambda row: row[0])
        there.sort(key=lambda row: self._value(row[1], order), reverse=way == "desc")
        rows = [*there, *(row for row in rows if order not in row[1])][: body["size"]]
        hits = [
            {
                "_id": id_,
                "sort": [self._value(one, order)],
                "_source": {k: v for k, v in one.items() if k in body["_source"]},
            }
            for id_, one in rows
        ]
        return 200, {"timed_out": False, "hits": {"hits": hits}}

    def _value(self, document: dict[str, Any], name: str) -> Any:
        value = document.get(name)
        if self.types[name] == "date" and value is not None:
            return int(datetime.fromisoformat(value).timestamp() * 1000)
        return value

    def _meets(self, document: dict[str, Any], query: dict[str, Any]) -> bool:
        ((kind, asked),) = query.items()
        if kind == "bool":
            parts = {name: one if isinstance(one, list) else [one] for name, one in asked.items()}
            should = [self._meets(document, one) for one in parts.pop("should", [])]
            wrong = any(self._meets(document, one) for one in parts.pop("must_not", []))
            all_of = all(self._meets(document, one) for one in parts.pop("filter", []))
            assert not parts, parts
            return all_of and not wrong and (not should or any(should))
        if kind == "exists":
            return document.get(asked["field"]) is not None
        ((name, bound),) = asked.items()
        if kind == "terms":
            return str(document.get(name)) in bound
        assert kind == "range", kind
        assert (bound.get("format") == "epoch_millis") == (self.types[name] == "date")
        value = self._value(document, name)
        tests = {
            "gt": lambda b: value > b,
            "gte": lambda b: value >= b,
            "lte": lambda b: value <= b,
        }
        return value is not None and all(
            tests[sign](limit) for sign, limit in bound.items() if sign != "format"
        )


def _refused(code: int, reason: str, kind: str = "refused") -> tuple[int, Any]:
    return code, {"error": {"type": kind, "root_cause": [{"reason": reason}]}}


@contextmanager
def search_server(index: str, **known: Any) -> Iterator[SearchServer]:
    """Answer on a port of this machine."""
    server = SearchServer(index, **known)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            code, found = server.answer(self.command, self.path, body)
            data = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            if code == 302:
                self.send_header("Location", found["elsewhere"])
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - names of the library

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.address = f"http://reader:hunter2@127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
