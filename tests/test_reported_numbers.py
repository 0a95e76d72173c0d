"""What a run reports since the last release, counted again by hand from documents and releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.jobs.places import FORMAT, Report
from hmrf_dask.releases.release import latest
from hmrf_dask.storage.sealed import DamagedFileError, seal_for_people
from tests.support.job_corpus import JobCorpus, lines
from tests.support.job_runs import assigned

JSON = dict[str, Any]


@pytest.fixture
def corpus(tmp_path: Path) -> JobCorpus:
    return JobCorpus(tmp_path)


def night(job: Path, *options: str) -> tuple[JSON, dict[str, int]]:
    """Run a job as a user does; return what --json says, and the cluster of every document."""
    asked = ["run", str(job), "--threads", "2", "--json", "--quiet", *options]
    result = CliRunner().invoke(hmrf, asked)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    known = {name: printed[name] for name in Report.__dataclass_fields__}
    return printed, {name: row["cluster"] for name, row in assigned(Report(**known)).items()}


def check_since(printed: JSON, before: dict[str, int], after: dict[str, int], changed: int) -> None:
    """Compare what is reported of documents with the clusters of two releases."""
    both = before.keys() & after.keys()
    moved = sum(before[one] != after[one] for one in both)
    found = {
        name: printed["documents"][name] for name in printed["documents"] if name != "vectorised"
    }
    assert found == {
        "all": len(after),
        "new": len(after.keys() - before.keys()),
        "changed": changed,
        "gone": len(before.keys() - after.keys()),
        "moved": moved,
        "moved_share": moved / len(both) if both else 0.0,
        "quarantined": 0,
    }


def other_nights(corpus: JobCorpus) -> int:
    """Remove a file, change one, move one, add one; return the documents that stayed in those."""
    folder = corpus.folder / "documents"
    (folder / "part-000.jsonl.gz").unlink()
    (folder / "part-002.jsonl.gz").rename(folder / "part-102.jsonl.gz")
    corpus.write(corpus.files(corpus.draw(15), first=50))
    stayed = corpus.documents[24:40]  # 4 of 20 are gone; others tell of another class now
    texts = [one["text"] for one in corpus.documents[40:60]]
    shuffled = [{**one, "text": texts[(n + 1) % 20]} for n, one in enumerate(stayed)]
    corpus.write({"documents/part-001.jsonl.gz": lines(shuffled + corpus.draw(3))})
    return len(stayed) + 20


@pytest.mark.parametrize("options", [(), ("--predict",)])
def test_documents_are_counted_by_their_ids(options: tuple[str, ...], corpus: JobCorpus) -> None:
    job = corpus.write_all(n_pairs=0, method={"n_clusters": 6, "n_init": 1, "random_state": 1})
    first, before = night(job)
    assert first["files"] == {"all": 6, "new": 6, "changed": 0, "gone": 0}
    check_since(first, {}, before, changed=0)
    stayed = other_nights(corpus)
    printed, after = night(job, *options)
    assert printed["files"] == {"all": 6, "new": 2, "changed": 1, "gone": 2}
    check_since(printed, before, after, changed=stayed)
    assert printed["documents"]["vectorised"] == len(after)  # all small files share a pack
    assert printed["documents"]["moved"] > 0
    again, same = night(job)
    if options:  # now the fit of what was predicted
        check_since(again, after, same, changed=0)
    else:
        assert (again["status"], again["documents"]) == ("up to date", printed["documents"])


def test_clusters_that_split_move_documents(corpus: JobCorpus) -> None:
    job = corpus.write_all(n_pairs=0)
    _, before = night(job)
    job = corpus.write_job(method={"n_clusters": 7, "n_init": 1, "random_state": 1})
    printed, after = night(job)
    check_since(printed, before, after, changed=0)
    assert 0 < printed["documents"]["moved_share"] < 1
    assert "churn" not in printed["clusters"]


def test_violated_pairs_are_reported_next_to_those_used(corpus: JobCorpus) -> None:
    corpus.write_all(n_pairs=0)
    right = corpus.answers(30).decode().splitlines()
    # Pairs of one class that must not be together cost little, so they are broken.
    wrong = [f"space/{3 * n:04},space/{3 * n + 3:04},cannot" for n in range(12)]
    corpus.write({"answers.csv": "\n".join([*right, *wrong, ""]).encode()})
    method = {"n_clusters": 3, "n_init": 1, "cannot_link_cost": 1e-3, "on_conflict": "keep"}
    printed, after = night(corpus.write_job(method=method))
    pairs = [line.split(",") for line in [*right[1:], *wrong]]
    used = {kind: [one for one in pairs if one[2] == kind] for kind in ("must", "cannot")}
    answers = printed["answers"]
    assert answers["pairs"] == {kind: len(found) for kind, found in used.items()}
    assert answers["violated"] == {
        "must": sum(after[a] != after[b] for a, b, _ in used["must"]),
        "cannot": sum(after[a] == after[b] for a, b, _ in used["cannot"]),
    }
    assert answers["violated"]["cannot"] > 0
    assert not {"must_link", "cannot_link"} & answers.keys()
    shown = CliRunner().invoke(hmrf, ["inspect", f"{printed['output']}/runs/{printed['run']}"])
    kinds = [f"{answers['violated'][one]} of {len(found)} {one}" for one, found in used.items()]
    assert f"violated: {kinds[0]}-links, {kinds[1]}-links" in shown.stdout


def test_people_read_what_is_counted(corpus: JobCorpus) -> None:
    job = corpus.write_all(n_pairs=0)
    night(job)
    (corpus.folder / "documents" / "part-000.jsonl.gz").unlink()
    corpus.write(corpus.files(corpus.draw(40), first=50))
    result = CliRunner().invoke(hmrf, ["run", str(job), "--threads", "2"])
    assert "140 documents: 40 new, 0 changed, 20 gone; 140 vectorised\n" in result.stdout
    assert "7 files: 2 new, 0 changed, 1 gone\n" in result.stdout
    assert "0 of the 100 documents that the last release had are in another cluster (0.00%)" in (
        result.stdout
    )
    output = job.parent / "out"
    release = latest(output)
    assert release is not None
    assert release.counts == {"documents": 140, "clusters": 3}
    printed = json.loads(CliRunner().invoke(hmrf, ["inspect", str(output), "--json"]).stdout)
    assert printed["release"]["counts"] == release.counts
    fit = f"{output}/runs/{release.run}/fit"
    printed = json.loads(CliRunner().invoke(hmrf, ["inspect", fit, "--json"]).stdout)
    assert printed["progress"]["fit"]["rows_moved"] == 0
    assert "0 rows changed cluster" in CliRunner().invoke(hmrf, ["inspect", fit]).stdout


def test_a_report_of_another_version_says_so() -> None:
    data = seal_for_people({"format": FORMAT.replace("v2", "v1"), "status": "done"})
    with pytest.raises(DamagedFileError, match=r"must have the format .*, got another; run again"):
        Report.from_json(data, "out")
