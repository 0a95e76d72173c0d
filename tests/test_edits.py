"""Clusters that people merge, split and freeze: what the next runs make of it, and its undo."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hmrf_dask import load_release
from hmrf_dask.answers.journal import journal_address, open_journal
from hmrf_dask.answers.records import Entry
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning, InvalidInputError
from hmrf_dask.fit.division import Division
from hmrf_dask.jobs.beginning import waiting_edits
from hmrf_dask.jobs.inputs import gather, load_job
from hmrf_dask.jobs.reshape import Edits, Reshaping, Start, decode_former, encode_former, with_made
from hmrf_dask.jobs.run_job import run_job
from hmrf_dask.page.output import OutputClusters
from hmrf_dask.releases.lineage import first_lineage, trace
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import assigned
from tests.support.job_runs import run_with_report as run

SMALL: dict[str, Any] = {"method": {"n_clusters": 3, "n_init": 1}}


def command(*arguments: str) -> Result:
    return CliRunner().invoke(hmrf, list(arguments))


def classes_of(output: str) -> dict[int, set[str]]:
    """Return the known classes of the documents of each cluster."""
    table, found = load_release(output).assignments(["doc_id", "cluster"]), dict[int, set[str]]()
    for name, cluster in zip(table["doc_id"], table["cluster"], strict=True):
        found.setdefault(int(cluster), set()).add(name.partition("/")[0])
    return found


def test_a_merge_and_its_undo_over_nights(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(45, 5, **SMALL)).output
    job, before = tmp_path / "job.yaml", classes_of(output)
    kept, gone = 2, 0
    shown = command("edit", output, "--merge", f"{kept},{gone}")
    assert shown.exit_code == 0, shown.output
    assert "with the next run clusters 2" in shown.output
    assert "1 answer or edit since the last release" in command("inspect", output).output
    assert classes_of(output) == before  # nothing yet
    merged = run(job)
    assert classes_of(output) == {kept: before[kept] | before[gone], 1: before[1]}
    assert (merged.clusters["number"], merged.clusters["merged"]) == (2, 1)
    assert merged.clusters["edits"] == ["n_clusters 3, 1 less by edits: 1 merge"]
    assert run(job).status == "up to date"
    assert command("report", output).exit_code == 0
    assert "n_clusters 3, 1 less by edits" in (Path(output) / merged.places["page"]).read_text()
    assert "\nn_clusters 3, 1 less by edits: 1 merge\n" in command("inspect", output).output
    corpus.write(corpus.files(corpus.draw(15), first=50))
    assert run(job, mode="predict").clusters["edits"]
    assert run(job).clusters["number"] == 2  # and it is not merged once more
    model = load_release(output)
    with pytest.raises(InvalidInputError, match="cluster must be one of 1, 2, got 0"):
        model.split(gone)
    assert model.undo(gone).next_run
    assert command("edit", output, "--rename", "1", "Moon").exit_code == 0
    assert "  Moon: " in (shown := command("run", str(job))).stdout, shown.output
    assert run(job).clusters["number"] == 3
    assert classes_of(output) == before
    assert command("edit", output, "--undo", str(kept)).exit_code == 65  # nothing is left of it


def test_a_split_and_a_freeze_over_nights(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(45, 5, **SMALL)).output
    job, whole = tmp_path / "job.yaml", classes_of(output)
    model = load_release(output)
    model.freeze(2)
    model.split(1)
    frozen = model.model.cluster_centers_[2]
    split = run(job)
    assert split.clusters["edits"] == ["n_clusters 3, 1 more by edits: 1 freeze, 1 split"]
    parts = classes_of(output)
    assert {one: parts[one] for one in (0, 1, 2)} == whole
    assert parts[3] == whole[1]
    sizes = load_release(output).sizes
    assert sizes[1] >= sizes[3] > 0
    inputs = gather(load_job(str(job)), str(job))
    folder = Path(output) / "runs" / load_release(output)._release.run / "edits.parquet"
    former = decode_former(folder.read_bytes())
    assert {one.kind: len(former[one.id]) for one in inputs.journal.edits} == {
        "freeze": 1,
        "split": 1,
    }
    held = next(one.id for one in inputs.journal.edits if one.kind == "freeze")
    assert np.array_equal(former[held][0].centroid, frozen)
    model = load_release(output)
    with pytest.raises(InvalidInputError, match="cluster 2, which is; take that back with undo 2"):
        model.merge([2, 0])
    assert model.undo(3).edit == "split"
    run(job)
    assert classes_of(output) == whole


def test_what_cannot_be_edited_is_said(tmp_path: Path) -> None:
    corpus = JobCorpus(tmp_path)
    output = run(corpus.write_all(45, 5, **SMALL)).output
    for arguments, code, said in (
        (("--merge", "0,9"), 65, "cluster must be one of 0, 1, 2, got 9"),
        (("--merge", "0"), 2, "at least two clusters"),
        (("--merge", "0,-1"), 2, "at least two clusters"),
        (("--merge", "0,0"), 65, "2 to 1,000 different clusters"),
        (("--split", "-1"), 2, "-1"),
        (("--split", "0", "--freeze", "1"), 2, "give one of"),
        (("--undo", "0"), 65, "without one"),
    ):
        shown = command("edit", output, *arguments)
        assert shown.exit_code == code, shown.output
        assert said in " ".join(shown.output.split())
    model = load_release(output)
    model.merge([0, 1])
    with pytest.raises(InvalidInputError, match=r"must wait, got the merge of clusters 0 and 1"):
        model.split(1)
    with pytest.raises(InvalidInputError, match="of 0, 1, 2, got -1"):
        model.freeze(-1)
    shown = command("edit", output, "--undo", "1")  # no run had done it
    assert "no run had done it" in shown.output
    assert "Next" not in shown.output
    for wrong in ("01", [0.5, 1], 0.5, [True, 2]):
        with pytest.raises(InvalidInputError, match="clusters must be given by their numbers"):
            model.merge(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="at most 200 characters, got 5,000"):
        model.rename(0, "x" * 5000)
    assert command("inspect", output, "--json").exit_code == 0
    run(tmp_path / "job.yaml")
    with pytest.raises(ConfigurationError, match=r"of the last release \(2\) .* got release 1"):
        load_release(output, 1).freeze(0)
    assert "edits" not in load_release(output).ledger


@pytest.mark.long(reason="a run for each way to begin cold")
@pytest.mark.parametrize("how", ["start", "n_clusters", "same"])
def test_a_cold_start_leaves_edits_and_says_so(tmp_path: Path, how: str) -> None:
    job = JobCorpus(tmp_path).write_all(45, 5, **SMALL)
    output = run(job).output
    load_release(output).merge([0, 1])
    run(job)
    number = {"start": 3, "n_clusters": 4, "same": 2}[how]
    changes: dict[str, Any] = {"method": {**SMALL["method"], "n_clusters": number}}
    if how == "same":  # the job says by now what there is: nothing is lost
        assert run(job, **changes).clusters["edits"] == ["n_clusters 2; edits: 1 merge"]
        load_release(output).undo(0)
        assert run(job, **changes).clusters["number"] == 3
        return
    changes |= {"start": "cold"} if how == "start" else {}
    with pytest.warns(HmrfWarning, match="the merge of clusters 0 and 1: nothing comes of it"):
        assert run(job, **changes).clusters["number"] == number
    assert run(job, **changes).status == "up to date"
    changes["start"] = "warm"
    assert run(job, **changes).clusters["number"] == number


def test_edited_clusters_are_the_same_bits_in_any_files_and_after_a_kill(tmp_path: Path) -> None:
    seen = []
    for file, killed in ((20, False), (7, True)):
        corpus = JobCorpus(tmp_path / str(file))
        job = corpus.write_all(45, 5, **SMALL)
        if file == 7:
            (tmp_path / "7/documents/part-000.jsonl.gz").rename(tmp_path / "7/documents/z.jsonl.gz")
        output = run(job).output
        load_release(output).merge([2, 0])
        load_release(output).split(1)
        if killed:
            _run_killed(job)
        report = run(job)
        model = load_release(output)
        labels = {name: row["cluster"] for name, row in assigned(report).items()}
        centroids = model.model.cluster_centers_.tobytes()
        seen.append(
            (labels, centroids, report.fit["J"], model.ledger["edits"]["applied"][1]["made"])
        )
    assert seen[0] == seen[1]


def _run_killed(job: Path) -> None:
    def killed(event: dict[str, Any]) -> None:
        if event.get("step") == "match clusters":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(gather(load_job(str(job)), str(job)), tell=killed)


def test_the_page_edits_clusters_under_the_name_of_who_does(tmp_path: Path) -> None:
    output = run(JobCorpus(tmp_path).write_all(45, 5, **SMALL)).output
    clusters = OutputClusters(output)
    assert "with the next run clusters 0" in clusters.edit("merge", [0, 2], "", "Ada")
    assert clusters.edit("rename", [1], " The  moon ", "Ada").startswith(
        "cluster 1 is called The moon; before: "
    )
    view = clusters.view()
    assert view["waiting"] == ["the merge of clusters 0 and 2"]
    last = {one["cluster"]: one["last"] for one in view["clusters"]}
    assert last == {0: view["waiting"][0], 1: "its name", 2: view["waiting"][0]}
    assert {one.annotator for one in open_journal(journal_address(output)).entries().entries} == {
        "Ada"
    }
    run(tmp_path / "job.yaml")
    assert [one["cluster"] for one in clusters.view()["clusters"]] == [0, 1]
    for verb, several in (("split", [0, 1]), ("melt", [0]), ("merge", [])):
        with pytest.raises(InvalidInputError, match="an edit must be one of"):
            clusters.edit(verb, several, "", "Ada")
    with pytest.raises(InvalidInputError, match="elsewhere"):
        OutputClusters(output, "answers go elsewhere").edit("freeze", [0], "", "Ada")


# ---- what edits make of centroids, without runs


def halves(clusters: tuple[int, ...], n_parts: int) -> Division:
    """Return parts that say whose documents they are of."""
    centroids = np.full((n_parts, 2), 10.0 * sum(clusters)) + np.arange(n_parts)[:, None]
    return Division(centroids, np.arange(n_parts, 0, -1))


def reshaped(
    entries: Sequence[Entry], edits: Edits | None = None, former: Any = None, n_clusters: int = 4
) -> Reshaping:
    """Return what becomes of clusters 0, 1, …, each with a centroid of its number."""
    starts = [Start(n, np.full(2, float(n)), n + 1, (n,)) for n in range(n_clusters)]
    reshaping = Reshaping(starts, edits or Edits(4), dict(former or {}), halves)
    reshaping.follow(entries)
    return reshaping


def edit(name: str, kind: str, *clusters: int) -> Entry:
    return Entry(name, kind, clusters=clusters)


def test_a_merge_is_the_mean_of_its_documents() -> None:
    merged = reshaped([edit("m", "merge", 3, 0)])
    assert merged.centroids[:, 0].tolist() == [1.0, 2.0, (4 * 3.0 + 1 * 0.0) / 5]
    assert merged.called == {2: 3}
    again = reshaped([edit("m", "merge", 3, 0)], merged.edits, n_clusters=3)
    assert (again.changed, again.edits) == (False, merged.edits)


def test_a_merge_that_nobody_remembers_comes_apart_in_parts() -> None:
    merged = reshaped([edit("m", "merge", 0, 3)])
    remembered = decode_former(encode_former(merged.former))
    known = reshaped([], merged.edits, remembered, n_clusters=3)
    assert [start.cluster for start in known.starts] == [0, 3, 1, 2]
    assert known.called == {0: 0, 1: 3}
    assert not known.edits
    unknown = reshaped([], merged.edits, n_clusters=3)
    assert [start.cluster for start in unknown.starts] == [None, None, 1, 2]


def test_a_split_has_parts_that_are_merged_by_its_undo() -> None:
    split = reshaped([edit("s", "split", 1)])
    assert [start.cluster for start in split.starts] == [0, None, None, 2, 3]
    edits = with_made(split.edits, split.parts, [0, 4, 1, 2, 3])
    assert edits.applied[0].made == (4, 1)
    joined = reshaped([], edits, n_clusters=5)
    assert joined.called == {1: 1}
    assert len(joined.starts) == 4
    lost = reshaped([], edits)  # there is no cluster 4
    assert lost.remarks == [
        "the split of cluster 1 cannot be undone: the clusters that came of it are gone"
    ]


def test_edits_of_what_is_split_wait_and_others_end() -> None:
    entries = [edit("s", "split", 1), edit("m", "merge", 1, 2), edit("x", "merge", 0, 9)]
    mixed = reshaped([*entries, edit("f", "freeze", 3), edit("y", "merge", 0, 3)])
    assert mixed.edits.waiting == ("m",)
    assert mixed.edits.ended == ("x", "y")
    assert mixed.remarks == [
        "the merge of clusters 0 and 9 is left out: the last release has no cluster 9",
        "the merge of clusters 0 and 3 is left out: cluster 3 is frozen",
    ]


def test_where_rows_are_made_again_what_is_new_or_taken_back_waits() -> None:
    applied = reshaped([edit("m", "merge", 0, 3), edit("f", "freeze", 1)]).edits
    with pytest.warns(HmrfWarning, match="wait for the run after this one"):
        edits = waiting_edits(applied, [edit("f", "freeze", 1), edit("s", "split", 2)], 4)
    assert edits is not None
    assert (edits.waiting, edits.applied) == (("s", "m"), applied.applied)
    assert edits.described(3)[1] == "2 edits waiting for the next run"


def test_a_frozen_cluster_begins_every_fit_with_its_centroid() -> None:
    entries = [edit("f", "freeze", 3)]
    frozen = reshaped(entries)
    moved = [Start(3, np.full(2, 7.0), 5, (3,))]
    later = Reshaping(moved, frozen.edits, frozen.former, halves)
    later.follow(entries)
    assert later.centroids[0, 0] == 3.0
    assert (later.changed, later.called) == (True, {0: 3})
    gone = reshaped(entries, frozen.edits, frozen.former, n_clusters=2)
    assert (gone.edits.applied, gone.edits.ended) == ((), ("f",))


def test_ids_that_edits_decide_are_those_whatever_documents_say() -> None:
    cells = np.array([0, 1, 2]), np.array([0, 0, 1]), np.array([5, 9, 4])
    now = trace(first_lineage([5, 9, 4]), *cells, [14, 4], called={0: 0})
    assert (now.ids, now.n_moved) == ((0, 2), 9)
    assert {one.cluster: one.kind for one in now.changes} == {0: "kept", 1: "merged", 2: "kept"}
    back = trace(now, np.array([0, 0, 2]), np.array([0, 1, 2]), np.array([5, 9, 4]), [5, 9, 4],
                 called={1: 1})  # fmt: skip
    assert (back.ids, back.next_id) == ((0, 1, 2), 3)


def test_an_edit_is_a_line_of_the_journal_like_any(tmp_path: Path) -> None:
    journal = open_journal(journal_address(str(tmp_path)))
    entry = Entry("m", "merge", clusters=(3, 7), release=2)
    journal.append(entry)
    assert json.loads((tmp_path / "journal.jsonl").read_text())["clusters"] == [3, 7]
    assert list(journal.entries().entries) == [entry]
    for clusters, said in (((3,), "2 to 1,000"), ((3, 3), "different"), ((3, -1), "0 or more")):
        assert said in Entry("m", "merge", clusters=clusters).problem
    assert "one cluster" in Entry("s", "split", clusters=(1, 2)).problem
