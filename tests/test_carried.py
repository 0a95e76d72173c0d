"""What documents keep where a run only predicts, and ids come twice: all but what moved, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.jobs import release
from hmrf_dask.jobs.parent import CAME
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import QUARANTINED, assigned, run

Rows = dict[str, dict[str, Any]]
pytestmark = QUARANTINED


class Runs:
    """Runs over small files, of which each takes the next documents drawn."""

    def __init__(self, folder: Path) -> None:
        self.corpus = JobCorpus(folder)
        self.corpus.write({"answers.csv": b"a,b,kind\n"})
        self.job = self.corpus.write_job(on_bad_record="quarantine")

    def put(self, name: str, *more: dict[str, Any], n: int = 12) -> list[str]:
        """Write a file; return the ids in it."""
        documents = [*more, *self.corpus.draw(n)]
        data = "".join(f"{json.dumps(one)}\n" for one in documents).encode()
        self.corpus.write({f"documents/{name}.jsonl": data})
        return [one["id"] for one in documents]

    def remove(self, name: str) -> None:
        (self.corpus.folder / f"documents/{name}.jsonl").unlink()

    def go(self, mode: str = "predict") -> Rows:
        """Return the assignment of every document, by id; each is there once."""
        report = run(self.job, mode=mode)
        found = assigned(report)
        assert len(found) == report.documents["all"]
        return found


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def document(name: str, words: str) -> dict[str, Any]:
    return {"id": name, "text": " ".join([words] * 4), "label": None}


MOON, BRAKE = "orbit moon rocket lunar", "engine brake wheel gear"


def of_all(rows: Rows, ids: list[str]) -> list[dict[str, Any]]:
    return [rows[one] for one in ids]


def test_one_lost_and_one_doubled_do_not_make_up_for_each_other(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = runs.put("z", document("Y", MOON))
    runs.go("fit")
    runs.put("a", document("X", MOON))
    runs.go("fit")
    ids += runs.put("c", document("X", BRAKE))
    runs.go()
    ids += runs.put("r1", document("Y", BRAKE))
    runs.put("r2")
    ledger = release._ledger

    def former(*given: Any) -> dict[str, Any]:
        return {name: value for name, value in ledger(*given).items() if name != CAME}

    monkeypatch.setattr(release, "_ledger", former)  # so Y is that of r1 in the next run
    runs.go()
    runs.remove("a")
    ids += runs.put("r2")
    found = runs.go()
    assert set(found) == set(ids)
    assert found["X"]["cluster"] == found["Y"]["cluster"]


def test_an_id_that_moves_leaves_the_files_without_it_alone(runs: Runs) -> None:
    ids = runs.put("b", n=30)
    pair = f"a,b,kind,weight\n{ids[0]},{ids[1]},must,1000\n"
    runs.corpus.write({"answers.csv": pair.encode()})
    more, gone = runs.put("b1"), runs.put("b2")
    first = runs.go("fit")
    assert first[ids[0]]["constrained"]
    runs.put("a", document("X", MOON))
    runs.go()
    runs.put("z", document("X", BRAKE))
    runs.go()
    runs.remove("a")
    runs.remove("b2")  # which was in a pack with b and b1
    found = runs.go()
    assert of_all(found, ids + more) == of_all(first, ids + more)
    assert "X" in found
    assert not found.keys() & set(gone)


def test_the_other_document_of_an_id_in_one_pack_is_predicted(runs: Runs) -> None:
    moon, brake = document("moon", MOON), document("brake", BRAKE)
    runs.put("a", document("X", MOON))
    runs.put("b", document("X", BRAKE), moon, brake)
    found = runs.go("fit")
    assert found["X"]["cluster"] == found["moon"]["cluster"] != found["brake"]["cluster"]
    runs.remove("a")
    found = runs.go()
    assert found["X"]["cluster"] == found["brake"]["cluster"]


def test_the_document_that_had_an_id_first_keeps_it(runs: Runs) -> None:
    runs.put("b", document("X", MOON))
    expected = runs.go("fit")["X"]
    runs.put("a", document("X", BRAKE))
    assert runs.go()["X"] == expected
    runs.put("d")
    assert runs.go()["X"] == expected
    runs.put("d")  # it changed
    assert runs.go()["X"] == expected
    assert runs.go("fit")["X"]["cluster"] != expected["cluster"]  # now that of the first file
