"""Rows of Arrow that are taken column by column: they are what one by one gives, or not plain."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask.documents import batches
from hmrf_dask.documents.manifest import Columns
from hmrf_dask.documents.plain_rows import is_plain

COLUMNS = Columns(max_bytes=1024)
TEXTS = st.text(st.sampled_from("ab \0\x1c\x85\u2003é日!\n"), max_size=14) | st.just("x" * 1025)


def read(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [asdict(one) for one in batches.batches_of([rows], "t", COLUMNS)]


@given(st.lists(st.tuples(TEXTS | st.none(), TEXTS | st.none()), max_size=3))
def test_rows_are_the_same_documents_column_by_column_and_one_by_one(
    pairs: list[tuple[str | None, str | None]],
) -> None:
    ids, texts = [one for one, _ in pairs], [one for _, one in pairs]
    rows = pa.record_batch([pa.array(ids, pa.string()), pa.array(texts, pa.string())], COLUMN_NAMES)
    whole = read(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "is_plain", lambda *_: False)
        assert read(rows) == whole
    if is_plain(rows, COLUMNS):
        assert not whole[0]["rejects"] or len({*ids}) < len(ids)


COLUMN_NAMES = ["id", "text"]


def test_usual_rows_are_plain_and_others_are_looked_at_one_by_one() -> None:
    usual = {"id": [1, 2], "text": ["a text", "日本"]}
    assert is_plain(pa.record_batch(usual), COLUMNS)
    bad = pa.array([b"\xff", b"a"]).view(pa.string())
    for odd in ({"text": ["a", " "]}, {"text": ["a", None]}, {"id": ["a", ""]}, {"text": bad}):
        assert not is_plain(pa.record_batch({**usual, **odd}), COLUMNS)
    assert not is_plain(pa.record_batch(usual), Columns(label="id2"))
