"""Damage to every kind of file of a job's output, and what each command then says: for tests.

An output of two nights is copied, one file of it is damaged, and every command is asked. Each must
give what it gives without the damage, or refuse in words with one of the exit codes of the list.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp
from click.testing import CliRunner

from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import HmrfError
from hmrf_dask.releases.release import latest
from tests.support.job_corpus import JobCorpus

EXIT_CODES = (0, 65, 75, 78)
# Of former releases `inspect` lists those whose records are there.
NOISE = {
    "releases", "seconds", "memory", "run", "parent", "release", "output", "warnings", "places",
    "when", "hashed",
}  # fmt: skip
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Damage:
    """One damaged file.

    Attributes
    ----------
    name : str
        Of the file, below the output.
    how : str
        "flip", "cut", "empty" or "gone".
    place : float
        Where, as a share of its bytes.
    bit : int
    """

    name: str
    how: str
    place: float
    bit: int

    def do(self, output: Path) -> None:
        """Damage the file."""
        path = output / self.name
        data = bytearray(path.read_bytes())
        where = int(self.place * len(data))
        if self.how == "gone":
            path.unlink()
            return
        if self.how == "flip" and data:
            data[where] ^= 1 << self.bit
        path.write_bytes({"flip": data, "cut": data[:where], "empty": b""}[self.how])


def two_nights(folder: Path) -> JobCorpus:
    """Make an output of two releases with all kinds of files, and files for commands to read."""
    corpus = JobCorpus(folder)
    job = corpus.write_all(60, 12, on_bad_record="quarantine")
    corpus.write({"documents/bad.jsonl": b'{"id": 1}\n{"id": "ok", "text": "moon engine"}\n'})
    asked(["run", str(job)])
    corpus.write(corpus.files(corpus.draw(20), first=50))
    done = asked(["run", str(job)])
    assert done.exit_code == 0, done.output
    rows = ["doc_id,label", *(f"{one['id']},{one['label']}" for one in corpus.documents)]
    corpus.write({"truth.csv": "\n".join(rows).encode()})
    (vocabulary,) = (folder / "out" / "vocabularies").iterdir()
    found = json.loads((vocabulary / "vocabulary.json").read_bytes())
    n_terms = pq.ParquetFile(folder / "out" / found["files"]["terms"]["name"]).metadata.num_rows
    matrix = sp.random_array((20, n_terms), density=0.3, format="csr", rng=0)
    sp.save_npz(folder / "rows.npz", matrix)
    more = corpus.files(corpus.draw(20), first=70)
    corpus.write({name.replace("documents/", "later/"): data for name, data in more.items()})
    return corpus


def damages(output: Path, count: int, seed: int) -> Iterator[Damage]:
    """Give damages, of every kind of file in turn."""
    draw = random.Random(seed)
    kinds: dict[str, list[str]] = {}
    for path in sorted(output.rglob("*")):
        if path.is_file():
            name = str(path.relative_to(output))
            kinds.setdefault(kind_of(name), []).append(name)
    order = list(kinds)
    draw.shuffle(order)
    for number in range(count):
        how = draw.choices(["flip", "cut", "empty", "gone"], [7, 1, 1, 1])[0]
        name = draw.choice(kinds[order[number % len(order)]])
        yield Damage(name, how, draw.random(), draw.randrange(8))


def kind_of(name: str) -> str:
    """Return what kinds of files differ in: folders and endings, without hashes and numbers."""
    *folders, last = re.sub(r"\w*\d\w*", "", name).split("/")
    return "/".join([*filter(None, folders), last])


def asked(arguments: list[str]) -> Any:
    """Return the result of a command."""
    return CliRunner().invoke(hmrf, [*arguments, "--threads=2", "--json", "--quiet"])


def outcomes(folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Ask every command about the output of a folder; give what it said, by its name.

    Commands that write get a copy of their own.
    """
    out = str(folder / "out")
    yield "inspect", outcome_of(lambda: _inspect([out]))
    yield "inspect --verify", outcome_of(lambda: _inspect([out, "--verify"]))
    yield "evaluate", outcome_of(lambda: asked(["evaluate", out, str(folder / "truth.csv")]))
    given = ["predict", out, str(folder / "rows.npz"), "--out", str(folder / "predicted")]
    yield "predict", outcome_of(lambda: asked(given), lambda: table_of(folder / "predicted"))
    yield "reader", _read_as_the_readme_does(out)
    yield "run", _run(folder, [], [])
    later = sorted((folder / "later").iterdir())
    yield "run with more", _run(folder, [], later)
    yield "run --predict", _run(folder, ["--predict"], later)


def _run(folder: Path, options: list[str], more: list[Path]) -> Outcome:
    """Run the job on the output, with more documents; then put the output back."""
    out, kept = folder / "out", folder / "kept"
    shutil.copytree(out, kept)
    added = [folder / "documents" / path.name for path in more]
    for path, to in zip(more, added, strict=True):
        shutil.copy2(path, to)
    arguments = ["run", str(folder / "job.yaml"), *options]
    outcome = outcome_of(lambda: asked(arguments), lambda: assigned(str(out)))
    for path in added:
        path.unlink()
    shutil.rmtree(out)
    kept.rename(out)
    return outcome


def _inspect(arguments: list[str]) -> Any:
    return CliRunner().invoke(hmrf, ["inspect", *arguments, "--json"])


def outcome_of(ask: Callable[[], Any], found: Callable[[], Any] | None = None) -> Outcome:
    """Return the exit code of a command, what it printed and made, but for what always differs."""
    result = ask()
    outcome: Outcome = {"code": result.exit_code}
    if result.exit_code not in EXIT_CODES or (
        result.exception is not None and not isinstance(result.exception, SystemExit)
    ):
        outcome["traceback"] = repr(result.exception)
    if result.exit_code == 0:
        outcome["said"] = without_noise(json.loads(result.stdout))
        outcome["made"] = None if found is None else found()
    else:
        outcome["stderr"] = result.stderr
    return outcome


def without_noise(outcome: Any) -> Any:
    """Return what a command prints, without times and names of runs."""
    if isinstance(outcome, dict):
        return {key: without_noise(one) for key, one in outcome.items() if key not in NOISE}
    return outcome


def table_of(folder: Path) -> list[Outcome]:
    """Return all rows of the Parquet files below a folder."""
    rows: list[Outcome] = []
    for path in sorted(folder.rglob("*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows


def assigned(out: str) -> Outcome:
    """Return the cluster of every document of the last release, all of whose files are whole."""
    release = latest(out, verify=True)
    assert release is not None
    names = [name for name in release.files if "/assignments/" in name]
    rows = [row for name in names for row in pq.read_table(f"{out}/{name}").to_pylist()]
    return {row["doc_id"]: row for row in sorted(rows, key=lambda row: row["doc_id"])}


def _read_as_the_readme_does(out: str) -> Outcome:
    try:
        release = latest(out, verify=True)
        assert release is not None
        names = [f"{out}/{name}" for name in release.files if "/assignments/" in name]
        table = pq.ParquetDataset(names, page_checksum_verification=True).read()
    except (HmrfError, OSError, pa.ArrowException) as error:
        return {"code": getattr(error, "exit_code", 1), "stderr": f"error: {error}"}
    return {"code": 0, "said": sorted(table.to_pylist(), key=lambda row: row["doc_id"])}


def campaign(folder: Path, count: int, seed: int = 0) -> Outcome:
    """Damage files one after the other; return how commands took it, and all that is wrong."""
    corpus = two_nights(folder / "whole")
    at = folder / "copy"

    def fresh() -> None:
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(corpus.folder, at)

    fresh()
    expected = dict(outcomes(at))
    wrong: list[str] = []
    refused: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for damage in damages(corpus.folder / "out", count, seed):
        fresh()
        damage.do(at / "out")
        for command, outcome in outcomes(at):
            taken[verdict := _judged(outcome, expected[command])] += 1
            if verdict == "refused":
                refused[f"{kind_of(damage.name)}: {command}"] += 1
            elif verdict != "the same":
                wrong.append(f"{damage} {command}: {verdict}: {str(outcome)[:500]}")
    counts = {"damages": count, "the same": taken["the same"], "refused": taken["refused"]}
    return {**counts, "wrong": wrong, "refused by": dict(sorted(refused.items()))}


def _judged(outcome: Outcome, expected: Outcome) -> str:
    if "traceback" in outcome:
        return "traceback"
    if outcome["code"] == 0:
        return "the same" if outcome == expected else "silently used"
    lines = [line for line in outcome["stderr"].splitlines() if line.startswith("error: ")]
    in_words = outcome["code"] in EXIT_CODES and len(lines) == 1
    return "refused" if in_words and "Traceback" not in outcome["stderr"] else "no words"
