"""Rows about what a user gets: abstracts in a JSONL file to released clusters, in new processes.

Ours is `hmrf-dask run` with a job file that names documents, K and an output, and leaves all else
to the defaults; next to it a script of scikit-learn, whose words and weights are alike by its own
defaults. Both begin with the start of Python and end with clusters by document id on the disk. The
first repeat has the seed 0, which is a job's default, the next ones 1, 2, …, on both sides.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow import parquet

from hmrf_dask.releases import latest
from tests.benchmarks.commands import Ran, run_command
from tests.benchmarks.corpora import random_pairs
from tests.benchmarks.measuring import Bench, Figure, ratios, raw
from tests.benchmarks.rows_fits import FINE, agreement
from tests.benchmarks.rows_iterations import folders

ASKED = {20: (1.7, 2.2), 100: (2.2, 3.5)}
TRUTHS = ("label", "label_fine")  # 20 and 171 classes
SCRIPT = Path(__file__).with_name("scikit_learn_script.py")
FEW = 6000  # documents of the runs before the clock: beyond 5,000 starts go another way
WAYS = {  # of the script
    "scikit_learn": "scikit-learn, KMeans with its defaults",
    "mini_batch": "scikit-learn, MiniBatchKMeans with its defaults",
    "ten_starts": "scikit-learn, KMeans with n_init=10",
}


@dataclass(frozen=True)
class Texts:
    """Documents in a file, and what each is about by two truths."""

    path: Path
    ids: list[str]
    truths: dict[str, NDArray[Any]]  # "label", "label_fine"

    def nmi(self, clusters: dict[str, int]) -> dict[str, float]:
        """Return how well clusters by id fit each truth."""
        found = [clusters[one] for one in self.ids]
        return {name: agreement(truth, found) for name, truth in self.truths.items()}


@dataclass(frozen=True)
class Place:
    """Where a row works: all texts, a few of them, and names of new folders."""

    texts: Texts
    few: Texts
    new: Callable[[], str]


@contextmanager
def place_of(bench: Bench) -> Iterator[Place]:
    """Give the abstracts as JSONL files of ids and texts, which go when the row is done."""
    table = parquet.read_table(bench.arxiv, columns=["doc_id", "text", *TRUTHS])
    with folders(bench) as new:
        folder = Path(new())
        texts = _written(table.slice(0, bench.sizes.arxiv_rows), folder / "abstracts.jsonl")
        yield Place(texts, _written(table.slice(0, FEW), folder / "few.jsonl"), new)


def _written(table: Any, path: Path) -> Texts:
    ids, texts = (table[name].to_pylist() for name in ("doc_id", "text"))
    with path.open("w", encoding="utf-8") as file:
        for document, text in zip(ids, texts, strict=True):
            file.write(json.dumps({"id": document, "text": text}, ensure_ascii=False) + "\n")
    return Texts(path, ids, {name: np.asarray(table[name].to_pylist()) for name in TRUTHS})


def write_answers(texts: Texts, n_answers: int) -> str:
    """Write random pairs as the coarse truth answers them; return the name of the file."""
    kinds = random_pairs(texts.truths["label"], n_answers)
    lines = [
        f"{texts.ids[a]},{texts.ids[b]},{kind.removesuffix('_link')}\n"
        for kind, pairs in kinds.items()
        for a, b in pairs.tolist()
    ]
    name = f"answers-{n_answers}-{len(texts.ids)}.csv"
    (texts.path.parent / name).write_text("a,b,kind\n" + "".join(lines), encoding="utf-8")
    return name


# ---- the two sides


@dataclass(frozen=True)
class Done:
    """What a run of either side left."""

    ran: Ran
    n_iter: int
    nmi: dict[str, float]
    steps: dict[str, float]  # seconds; ours alone


def middle(found: list[Done], truth: str) -> dict[str, Any]:
    """Return the medians of several runs, for bench.json."""
    return {
        "wall": round(statistics.median(one.ran.timed.wall for one in found), 3),
        "cpu": round(statistics.median(one.ran.timed.cpu for one in found), 3),
        "peak_MiB": max(one.ran.peak for one in found) >> 20,
        "nmi": round(statistics.median(one.nmi[truth] for one in found), 4),
        "n_iter": [one.n_iter for one in found],
    }


def run_script(texts: Texts, way: str, n_clusters: int, seed: int) -> Done:
    """Run the script of scikit-learn."""
    results = texts.path.with_suffix(".clusters")
    asked = [str(texts.path), str(results), way, str(n_clusters), str(seed)]
    ran = run_command([sys.executable, "-W", "ignore", str(SCRIPT), *asked])
    read = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    nmi = texts.nmi({one["id"]: one["cluster"] for one in read})
    return Done(ran, ran.timed.value["n_iter"], nmi, {})


def run_job(
    place: Place, texts: Texts, n_clusters: int, seed: int = 0, answers: str | None = None
) -> Done:
    """Run our job into a new output."""
    output = place.new()
    job = _job_file(texts, n_clusters, seed, output, answers)
    ran = run_command([sys.executable, "-m", "hmrf_dask", "run", str(job), "--json", "--quiet"])
    report, release = ran.timed.value, latest(output)
    assert release is not None
    names = [f"{output}/{name}" for name in release.files if "/assignments/" in name]
    assigned = parquet.ParquetDataset(names).read()
    clusters = zip(*(assigned[name].to_pylist() for name in ("doc_id", "cluster")), strict=True)
    events = Path(output, "runs", report["run"], "fit", "events.jsonl").read_text(encoding="utf-8")
    steps = steps_of(ran, report["seconds"], [json.loads(one) for one in events.splitlines()])
    return Done(ran, report["fit"]["iterations"], texts.nmi(dict(clusters)), steps)


def _job_file(texts: Texts, n_clusters: int, seed: int, output: str, answers: str | None) -> Path:
    manifest = {
        "$schema": "hmrf-dask/manifest/v1",
        "name": "abstracts",
        "resources": [{"name": "abstracts", "path": texts.path.name}],
    }
    if answers is not None:
        manifest["answers"] = {"path": answers}
    job = {
        "$schema": "hmrf-dask/job/v1",
        "manifest": "abstracts.yaml",
        "method": {"n_clusters": n_clusters, "random_state": seed},
        "output": output,
    }
    folder = texts.path.parent
    for name, content in (("abstracts.yaml", manifest), ("job.yaml", job)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    return folder / "job.yaml"


def steps_of(ran: Ran, seconds: dict[str, float], events: list[dict[str, Any]]) -> dict[str, float]:
    """Return how long each step of a job took, which together are all of its time.

    Steps are timed by the run; those of the fit lie between its events. What lies before the first
    step and after the last one is seen from outside.
    """

    def last(phases: tuple[str, ...], otherwise: float) -> float:
        """Return when a phase of the fit was last at work."""
        found = [_when(one) for one in events if one.get("phase") in phases]
        return max(found, default=otherwise)

    names = list(seconds)
    fit = names.index("fit")
    start, stop = (_when(next(one for one in events if one["event"] == e)) for e in _ENDS)
    first = next(_when(one) for one in events if one.get("iteration") == 0)
    fitted = last(("fit", "warm-up"), first)
    refined = last(("refine",), fitted)
    counted, weighed = (seconds.get(name, 0.0) for name in ("count words", "weigh words"))
    before = sum(seconds[name] for name in names[: fit + 1])
    after = sum(seconds[name] for name in names[fit + 1 :])
    found = {
        "start-up": stop - ran.began - before,
        "count words": counted,
        "weigh words": weighed,
        "answers, ids": before - seconds["fit"] - counted - weighed,
        "look at the rows": seconds["fit"] - (stop - start),
        "starts": first - start,
        "fit": fitted - first,
        "refinement": refined - fitted,
        "write": after,
    }
    return found | {"report, publish, end": ran.timed.wall - sum(found.values())}


_ENDS = ("start", "stop")


def _when(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


# ---- the rows


def end_to_end(bench: Bench) -> list[Figure]:
    """Time whole jobs against the script with scikit-learn's defaults; report its other ways."""
    if not bench.arxiv.exists():
        return [
            _figure(n_clusters, skipped=f"no file {bench.arxiv}")
            for n_clusters in bench.sizes.end_to_end
        ]
    with place_of(bench) as place:
        return [_end_to_end(bench, place, n_clusters) for n_clusters in bench.sizes.end_to_end]


def _figure(n_clusters: int, values: tuple[float, ...] = (), **more: Any) -> Figure:
    must, aim = ASKED.get(n_clusters, (None, None))
    return Figure(
        f"end-to-end-{n_clusters}",
        "texts in a file to released clusters, in new processes, with the defaults, against a "
        f"scikit-learn script with its own, K = {n_clusters}",
        values, must=must, aim=aim, **more,
    )  # fmt: skip


def _end_to_end(bench: Bench, place: Place, n_clusters: int) -> Figure:
    texts, few = place.texts, place.few
    bench.say(f"end to end, K = {n_clusters}, {len(texts.ids):,} texts")
    run_job(place, few, n_clusters)  # kernels are compiled, and modules are in memory
    run_script(few, "scikit_learn", n_clusters, 0)
    done: dict[str, list[Done]] = {"hmrf_dask": [], "scikit_learn": []}
    for seed in range(bench.sizes.end_to_end[n_clusters]):
        done["hmrf_dask"].append(run_job(place, texts, n_clusters, seed))
        done["scikit_learn"].append(run_script(texts, "scikit_learn", n_clusters, seed))
    done["mini_batch"] = [run_script(texts, "mini_batch", n_clusters, 0)]
    if n_clusters <= bench.sizes.ten_starts:
        done["ten_starts"] = [run_script(texts, "ten_starts", n_clusters, 0)]
    runs = {way: [one.ran.timed for one in found] for way, found in done.items()}
    truth = TRUTHS[n_clusters >= FINE]
    return _figure(
        n_clusters,
        ratios(runs["scikit_learn"], runs["hmrf_dask"]),
        raw=raw(runs),
        facts={
            "K": n_clusters,
            "documents": len(texts.ids),
            "MB": round(texts.path.stat().st_size / 1e6, 1),
            "truth": truth,
            "ways": {way: middle(found, truth) for way, found in done.items()},
            "steps": _steps(done["hmrf_dask"]),
        },
    )


def _steps(found: list[Done]) -> dict[str, float]:
    """Return the steps of the median run, so that their sum is its time."""
    run = sorted(found, key=lambda one: one.ran.timed.wall)[(len(found) - 1) // 2]
    return {name: round(seconds, 3) for name, seconds in run.steps.items()}


def answers(bench: Bench) -> list[Figure]:
    """Time jobs with answers, random pairs as the truth has them, against the same without."""
    K, sizes = bench.sizes.n_clusters, bench.sizes.answers
    if not bench.arxiv.exists():
        return [_of_answers(n, K, skipped=f"no file {bench.arxiv}") for n in sizes]
    done: dict[int, list[Done]] = {n: [] for n in (0, *sizes)}
    with place_of(bench) as place:
        texts, few = place.texts, place.few
        bench.say(f"end to end with answers, K = {K}, {len(texts.ids):,} texts")
        given = {n: write_answers(texts, n) for n in sizes}
        run_job(place, few, K, answers=write_answers(few, min(sizes)))
        for seed in range(bench.sizes.answers_repeats):
            for n, found in done.items():
                found.append(run_job(place, texts, K, seed, given.get(n)))
    runs = {n: [one.ran.timed for one in found] for n, found in done.items()}
    return [
        _of_answers(
            n, K, ratios(runs[n], runs[0]), raw=raw({"answers": runs[n], "none": runs[0]}),
            facts={
                "K": K, "documents": len(texts.ids), "answers": n, "truth": TRUTHS[0],
                "ways": {name: middle(done[key], TRUTHS[0])
                         for name, key in (("answers", n), ("none", 0))},
                "steps": _steps(done[n]),
            },
        )
        for n in sizes
    ]  # fmt: skip


def _of_answers(
    n_answers: int, n_clusters: int, values: tuple[float, ...] = (), **more: Any
) -> Figure:
    return Figure(
        f"end-to-end-answers-{n_answers}",
        f"such a job with {n_answers:,} answers against it without any, K = {n_clusters}",
        values, better="less", must=1.5, aim=1.2, **more,
    )  # fmt: skip
