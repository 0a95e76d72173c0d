"""Names that a callable makes: called once for what it has not seen, after those of people."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hmrf_dask import load_release
from hmrf_dask.cli.commands import hmrf
from hmrf_dask.errors import ConfigurationError, HmrfWarning
from hmrf_dask.jobs.namers import find_namer, identity_of
from tests.support.job_corpus import JobCorpus
from tests.support.job_runs import run

SMALL: dict[str, Any] = {"method": {"n_clusters": 3, "n_init": 1}}
CALLS: list[tuple[list[str], list[str]]] = []
ROOT = Path(__file__).parents[1]
HERE = "tests.test_namers:titled"


def titled(words: list[str], texts: list[str]) -> str:
    """Return a name, but of what is about faith."""
    CALLS.append((words, texts))
    if "prayer" in words:
        raise RuntimeError("no answer from the model")
    return f"  About\n{sorted(words)[0]} "


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


def test_a_namer_names_what_nobody_named_and_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = JobCorpus(tmp_path)
    job = corpus.write_all(45, 5, **SMALL)
    output = run(job).output
    with pytest.raises(ConfigurationError, match=r"listed in .* HMRF_DASK_NAMERS .* has none"):
        run(job, names={"namer": HERE})
    model = load_release(output)
    own = next(one for one in model.sizes if "orbit" in model.top_words(one))
    model.rename(own, "Space")
    with pytest.warns(HmrfWarning, match="no name for 1 cluster, .*RuntimeError: no answer from"):
        named = model.name_clusters(titled)
    assert (named.called, named.failed, len(named.names)) == (2, 1, 1)
    ((cluster, name),) = named.names.items()
    assert name.startswith("About ")
    assert model.names[cluster] == name
    assert model.names[own] == "Space"
    assert all(words == model.top_words(cluster) or "prayer" in words for words, _ in CALLS)
    assert all(len(texts) and texts[0] for _, texts in CALLS)
    CALLS.clear()
    monkeypatch.setenv("HMRF_DASK_NAMERS", f"other:one, {HERE}")
    corpus.write(corpus.files(corpus.draw(6), first=50))
    with pytest.warns(HmrfWarning, match="it is asked again"):
        run(job, names={"namer": HERE})  # whose words may be others by now
    assert all(
        "prayer" in words or set(words) != set(model.top_words(cluster)) for words, _ in CALLS
    )
    later = load_release(output)
    assert later.names[cluster].startswith("About ")
    assert later.names[own] == "Space"
    assert run(job, names={"namer": HERE}).status == "up to date"
    later.undo(cluster)
    CALLS.clear()
    with pytest.warns(HmrfWarning, match="it is asked again"):
        later.name_clusters(titled)  # not asked again about what was taken back
    assert all("prayer" in words for words, _ in CALLS)
    assert not later.names[cluster].startswith("About ")
    later.rename(cluster, "Mine")
    assert later.names[cluster] == "Mine"


def test_the_namer_of_the_page_asks_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class StandIn(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.headers["Authorization"], content["messages"][0]["content"]))
            answer = json.dumps({"choices": [{"message": {"content": "Double charges"}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing of requests."""

    page = (ROOT / "docs/how-to/groups.md").read_text()
    (code,) = re.findall(r"```python\n(import json.*?)```", page, re.DOTALL)
    assert len(code.strip().splitlines()) <= 16
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    with HTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
        for name, value in (("URL", url), ("MODEL", "small"), ("KEY", "secret")):
            monkeypatch.setenv(f"LLM_{name}", value)
        assert namespace["namer"](["card", "twice"], ["charged twice"]) == "Double charges"
    ((key, prompt),) = asked
    assert key == "Bearer secret"
    assert "card, twice" in prompt
    assert "- charged twice" in prompt


def test_what_is_no_namer_or_no_name_is_said(tmp_path: Path) -> None:
    output = run(JobCorpus(tmp_path).write_all(45, 5, **SMALL)).output
    model = load_release(output)
    with pytest.raises(ConfigurationError, match="a namer must be a callable"):
        model.name_clusters("gpt")  # type: ignore[arg-type]
    for said in (None, "  ", "\ud800"):
        with pytest.warns(HmrfWarning, match="no name for 3 clusters"):
            assert model.name_clusters(lambda *_, said=said: said).names == {}
    for wrong in ("json", "no_such_module:namer", "json:no_such", "os:sep"):
        shown = CliRunner().invoke(hmrf, ["edit", output, "--namer", wrong])
        assert (shown.exit_code, "a namer must be" in " ".join(shown.output.split())) == (78, True)
    assert identity_of(titled) == HERE
    assert not (tmp_path / "out/journal.jsonl").exists()


def test_a_namer_that_hangs_or_ends_the_process_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_release(run(JobCorpus(tmp_path).write_all(45, 5, **SMALL)).output)
    called, never = list[int](), threading.Event()

    def hangs(*_: object) -> str:
        called.append(1)
        never.wait(60)
        return "late"

    def ends(*_: object) -> str:
        raise SystemExit(3)

    monkeypatch.setattr("hmrf_dask.jobs.namers.SECONDS", 0.01)
    with pytest.warns(HmrfWarning, match=r"no name for 3 clusters.*no answer within 0\.01 s"):
        assert model.name_clusters(hangs).failed == 3
    assert called == [1]  # the others are not waited for
    never.set()
    monkeypatch.undo()
    with pytest.warns(HmrfWarning, match=r"no name for 3 clusters.*\(cluster 0: SystemExit: 3\)"):
        model.name_clusters(ends)


def test_a_module_that_cannot_be_imported_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_namers.py").write_text("raise ValueError('no key')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"be imported, got .*: ValueError: no key"):
        find_namer("broken_namers:namer", by_file=False)
