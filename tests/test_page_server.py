"""The server of the page without a browser: who may ask, what is saved, what is refused."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hmrf_dask.answers import journal as journals
from hmrf_dask.answers.journal import open_journal
from hmrf_dask.answers.records import Question
from hmrf_dask.errors import ConfigurationError
from hmrf_dask.page.refit import Outcome, Refit
from hmrf_dask.page.security import XSRF
from hmrf_dask.page.server import listening
from hmrf_dask.page.session import Asker
from tests.support.pages import Archive, Running, documents, running, session_of


@pytest.fixture
def page(tmp_path: Path) -> Any:
    with running(session_of(tmp_path, documents(40))) as started:
        yield started


def saved(folder: Path) -> list[Any]:
    return list(open_journal(folder / "journal.jsonl").entries().entries)


def answered(page: Running, word: str = "same", **content: Any) -> Any:
    """Answer the next question, a pair."""
    who = {"annotator": "Ada", "kind": "pair", **content}
    question = page.post("next", **who)["question"]
    return page.post("answer", ticket=question["ticket"], answer=word, **who)


# ---- who may ask


def test_the_first_address_gives_a_cookie_and_leads_to_an_address_without_the_token(page):
    status, _, headers = page.request("GET", f"/?token={page.page.guard.token}", headers={})
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]
    cookie = headers["Set-Cookie"].partition(";")[0]
    status, body, headers = page.request("GET", "/", headers={"Cookie": cookie})
    assert status == 200
    assert page.page.guard.token.encode() not in body
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"


def without(page: Running, name: str) -> dict[str, str]:
    return {key: value for key, value in page.headers().items() if key != name}


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/api/answers", "/api/nothing", "/else"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"Cookie": ""},
        {"Cookie": "hmrf-dask-1=guess"},
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_what_is_shown_is_shown_to_those_who_were_let_in(page, path, wrong):
    status, body, _ = page.request("GET", path, headers={**page.headers(), **wrong})
    assert status == 403
    assert b"orbit" not in body


@pytest.mark.parametrize("token", ["", "guess", "\u00e9", "x" * 9000])
def test_another_token_lets_nobody_in(page, token):
    from urllib.parse import quote

    status, _, headers = page.request("GET", f"/?token={quote(token)}", headers={})
    assert status == 403
    assert "Set-Cookie" not in headers


@pytest.mark.parametrize(
    "wrong",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": ""},
        {XSRF: ""},
        {XSRF: "guess"},
        {"Host": "evil.example"},
        {"Cookie": ""},
    ],
)
@pytest.mark.parametrize("what", ["answer", "undo", "comment", "name", "change", "next", "refit"])
def test_a_change_from_elsewhere_is_refused_and_changes_nothing(page, tmp_path, wrong, what):
    answered(page)
    before = (tmp_path / "journal.jsonl").read_bytes()
    headers = {**page.headers(), **wrong}
    status, _, _ = page.request("POST", f"/api/{what}", {"annotator": "Ada"}, headers)
    assert status == 403
    assert (tmp_path / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "what", ["next", "answer", "skip", "undo", "change", "comment", "name", "refit"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"])
def test_what_changes_something_is_asked_by_post_alone(page, tmp_path, method, what):
    answered(page)
    before = (tmp_path / "journal.jsonl").read_bytes()
    if what == "refit" and method == "GET":
        assert page.request(method, f"/api/{what}")[0] == 200  # how far it is
    else:
        assert page.request(method, f"/api/{what}")[0] == 405
    assert (tmp_path / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/security.py",
        "/static//etc/passwd",
        "/static/",
        "/journal.jsonl",
        "/api/../journal.jsonl",
        "//etc/passwd",
        "/api/document?ticket=x&id=../../etc/passwd",
    ],
)
def test_nothing_but_the_page_is_served(page, path):
    answered(page)
    status, body, _ = page.request("GET", path)
    assert status in (400, 403, 404)
    assert b"root:" not in body
    assert b"import" not in body


def test_no_document_is_served_but_those_of_the_open_question(page):
    question = page.post("next", annotator="Ada", kind="pair")["question"]
    ticket, own = question["ticket"], question["documents"][0]["id"]
    assert page.get(f"/api/document?ticket={ticket}&id={own}")["id"] == own
    assert page.get(f"/api/columns?ticket={ticket}&id={own}")["columns"]["file"] == "archive"
    for path in ("document", "columns"):
        for asked in (f"ticket={ticket}&id=bread/0034", f"ticket=guess&id={own}"):
            status, body, _ = page.request("GET", f"/api/{path}?{asked}")
            assert status == 400
            assert b"dough" not in body


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"ticket": 7}, 400),
        ({"ticket": "guess", "answer": "same"}, 400),
        ({"annotator": "x" * 81}, 400),
        ({"annotator": "\ud800"}, 400),
        ({"kind": "else"}, 400),
        ([1], 400),
    ],
)
def test_an_answer_that_is_none_is_refused_in_words(page, tmp_path, sent, status):
    got, body, _ = page.request("POST", "/api/answer", sent)
    assert got == status
    assert b"must be" in body
    assert not (tmp_path / "journal.jsonl").exists()


def test_a_change_must_be_json_of_some_size(page):
    headers = {**page.headers(), "Content-Type": "text/plain"}
    assert page.request("POST", "/api/undo", {}, headers)[0] == 415
    with suppress(ConnectionError):  # it hangs up, maybe before all is sent
        assert page.request("POST", "/api/comment", {"text": "x" * 200_000})[0] == 400


# ---- answers


def test_an_answer_is_on_the_disk_before_the_reply(page, tmp_path, monkeypatch):
    synced: list[bytes] = []
    file = tmp_path / "journal.jsonl"
    monkeypatch.setattr(journals.os, "fsync", lambda _: synced.append(file.read_bytes()))
    reply = answered(page)
    assert reply["words"][0] == "Saved: same."
    assert reply["id"].encode() in synced[0]


def test_the_same_answer_sent_twice_counts_once(page, tmp_path):
    ticket = page.post("next", annotator="Ada", kind="pair")["question"]["ticket"]
    who = {"annotator": "Ada", "kind": "pair", "ticket": ticket}
    first, second = (page.post("answer", answer="same", **who) for _ in range(2))
    assert first["id"] == second["id"]
    assert len(saved(tmp_path)) == 1


def test_the_opinion_of_the_program_comes_after_the_answer(page):
    shown = str(page.post("next", annotator="Ada", kind="choice"))
    assert "0.2" not in shown
    assert "thought" not in shown
    assert "thought" in answered(page)["words"][-1]


def test_undo_goes_back_as_far_as_one_wants_and_after_a_restart(tmp_path):
    texts = documents(40)
    with running(session_of(tmp_path, texts)) as page:
        asked = [answered(page, "different")["id"] for _ in range(3)]
        page.post("undo", annotator="Ada")
    with running(session_of(tmp_path, texts)) as page:
        assert page.get("/api/answers")["total"] == 2
        again = page.post("undo", annotator="Ada")
        page.post("undo", annotator="Ada")
        assert page.get("/api/answers")["total"] == 0
        assert again["question"]["kind"] == "pair"
        status, body, _ = page.request("POST", "/api/undo", {"annotator": "Ada"})
        assert (status, b"no answer of yours" in body) == (400, True)
    assert [one.about for one in saved(tmp_path) if one.kind == "undo"] == asked[::-1]


def test_a_contradiction_is_shown_with_its_chain_and_a_link_is_taken_back(page):
    session, asker = page.page.session, Asker("Ada", "1", "pair")
    said = [("space/0005", "space/0000", "same"), ("space/0010", "space/0005", "same")]
    said.append(("space/0010", "space/0000", "different"))
    for first, second, word in said:
        opened = session.open(Question("pair", (first, second)), asker)
        who = {"annotator": "Ada", "kind": "pair", "ticket": opened.ticket}
        reply = page.post("answer", answer=word, **who)
    links = reply["contradiction"]["links"]
    assert [one["says"] for one in links] == ["same", "same", "different"]
    assert len(page.get("/api/disputes")["contradictions"]) == 1
    assert page.get("/api/answers?only=disputed")["total"] == 3
    page.post("undo", about=links[1]["id"], annotator="Ada")
    assert page.get("/api/disputes")["contradictions"] == []


def test_a_list_of_answers_is_searched_filtered_commented_and_changed(page):
    first = answered(page, "unknown")["id"]
    answered(page, "different", annotator="Bob")
    assert page.get("/api/answers?only=unknown")["total"] == 1
    assert page.get("/api/answers?person=%3DBob")["total"] == 1
    assert page.get("/api/answers?search=ORBIT")["total"] == 2
    assert page.get("/api/answers?search=nowhere")["total"] == 0
    page.post("comment", about=first, text="read the second", review=True, annotator="Bob")
    entry = page.get("/api/answers?only=review")["answers"][0]
    assert (entry["id"], entry["comments"][0]["text"]) == (first, "read the second")
    page.post("change", about=first, option="same", annotator="Bob")
    listed = page.get("/api/answers?person=%3DAda")["answers"]
    assert [one["option"] for one in listed] == ["same"]


def test_groups_have_names_that_people_give(page):
    group = page.get("/api/groups")["groups"][1]
    page.post("name", document=group["document"], name="Motors", annotator="Ada")
    assert page.get("/api/groups")["groups"][1]["name"] == "Motors"
    page.post("name", document=group["document"], name="", annotator="Ada")
    assert page.get("/api/groups")["groups"][1]["name"] == group["name"]
    status, _, _ = page.request("POST", "/api/name", {"document": "x", "name": "y"})
    assert status == 400


def test_clusters_are_edited_by_lists_of_numbers(page):
    assert [one["cluster"] for one in page.get("/api/clusters")["clusters"]] == [0, 1, 2, 3, 4]
    assert page.post("edit", verb="merge", clusters=[0, 1])["words"] == ["Merge by ."]
    for wrong in (None, "01", [0, "1"], [True], [0.5]):
        status, body, _ = page.request("POST", "/api/edit", {"verb": "merge", "clusters": wrong})
        assert (status, b"whole numbers" in body) == (400, True)


def test_a_document_that_is_gone_is_not_asked_about(tmp_path):
    texts = documents(12)
    archive = Archive(texts)
    for gone in ("space/0005", "motor/0006"):
        del archive.documents[gone]
    del archive.documents["bread/0004"]  # which stands for its group
    with running(session_of(tmp_path, texts, archive)) as page:
        question = page.post("next", annotator="Ada", kind="choice")["question"]
        assert question["documents"][0]["id"] == "faith/0007"
        assert len(question["groups"]) == 5
        for _ in range(9):
            asked = page.post("next", annotator="Ada", kind="pair")["question"]
            if asked is None:
                break
            shown = {one["id"] for one in asked["documents"]}
            assert not shown & {"space/0005", "motor/0006", "bread/0004"}
            page.post(
                "answer", ticket=asked["ticket"], answer="different", annotator="Ada", kind="pair"
            )


def test_a_full_disk_is_said_and_the_question_stays(page, tmp_path, monkeypatch):
    import errno
    import os

    answered(page)
    question = page.post("next", annotator="Ada", kind="pair")["question"]
    before = (tmp_path / "journal.jsonl").read_bytes()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sent = {
        "ticket": question["ticket"],
        "answer": "same",
        "annotator": "Ada",
        "kind": "pair",
        "tab": "1",
    }
    with monkeypatch.context() as patched:
        patched.setattr(journals.os, "write", full)
        status, body, _ = page.request("POST", "/api/answer", sent)
    assert status == 503
    assert b"cannot save an answer" in body
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    assert page.request("POST", "/api/answer", sent)[0] == 200
    assert len(saved(tmp_path)) == 2


def test_two_people_at_once_lose_nothing_and_save_nothing_twice(tmp_path):
    texts = documents(105)
    with running(session_of(tmp_path, texts)) as page:
        got: dict[str, list[str]] = {"Ada": [], "Bob": []}

        def work(name: str) -> None:
            who = {"annotator": name, "kind": "choice", "tab": name}
            reply = page.post("next", **who)
            while question := reply["question"]:
                topic = question["documents"][0]["id"].partition("/")[0]
                shown = question["documents"][1:]
                groups = question.get("groups", [{"document": one["id"]} for one in shown])
                places = [one["document"] for one in groups]
                chosen = next((one for one in places if one.startswith(topic)), None)
                pair = question["kind"] == "pair"
                sent = {
                    "answer": "same" if chosen or not pair else "different",
                    "chosen": None if pair else chosen,
                }
                reply = page.post("answer", ticket=question["ticket"], **sent, **who)
                got[name].append(reply["id"])

        threads = [threading.Thread(target=work, args=[name]) for name in got]
        for one in threads:
            one.start()
        for one in threads:
            one.join(120)
    entries = saved(tmp_path)
    assert sorted(one.id for one in entries) == sorted([*got["Ada"], *got["Bob"]])
    assert {one.documents[0] for one in entries} >= {one for one in texts if int(one[-4:]) >= 5}
    fresh = Counter(
        one.documents[0]
        for one in entries
        if one.why not in ("control", "second opinion") and one.kind == "choice"
    )
    assert set(fresh.values()) == {1}
    assert all(got.values())


def test_a_group_that_an_answer_opens_can_be_chosen_from_then_on(page, tmp_path):
    who = {"annotator": "Ada", "kind": "choice"}
    first = page.post("next", **who)["question"]
    opened = first["documents"][0]["id"]
    second = page.post("answer", ticket=first["ticket"], answer="new", **who)["question"]
    places = [[one["document"] for one in asked["groups"]] for asked in (first, second)]
    assert places[1] == [*places[0], opened]
    sent = {"ticket": second["ticket"], "answer": "same", "chosen": opened, **who}
    third = page.post("answer", **sent)["question"]
    assert saved(tmp_path)[1].documents == (second["documents"][0]["id"], opened)
    assert [one["document"] for one in third["groups"]][5:] == [opened]


def test_of_many_groups_five_are_shown_and_then_five_more(tmp_path):
    topics = {f"topic{number:02}": f"Words about {number}." for number in range(30)}
    with running(session_of(tmp_path, documents(60, topics))) as page:
        who = {"annotator": "Ada", "kind": "choice"}
        first = page.post("next", **who)["question"]
        assert (len(first["groups"]), first["more"]) == (5, True)
        second = page.post("answer", ticket=first["ticket"], answer="none", **who)["question"]
        assert second["documents"] == first["documents"]
        seen = [{one["document"] for one in asked["groups"]} for asked in (first, second)]
        assert len(seen[0] | seen[1]) == 10
    assert [(one.answer, len(one.shown)) for one in saved(tmp_path)] == [("none", 5)]


def test_people_are_compared(tmp_path):
    with running(session_of(tmp_path, documents(7), people=2)) as page:
        for name in ("Ada", "Bob"):
            reply = page.post("next", annotator=name, kind="choice", tab=name)
            while question := reply["question"]:
                chosen = question["groups"][0]["document"] if "groups" in question else None
                who = {"annotator": name, "kind": "choice", "tab": name}
                reply = page.post(
                    "answer", ticket=question["ticket"], answer="same", chosen=chosen, **who
                )
        people = {one["name"]: one for one in page.get("/api/people")["people"]}
    assert people["Bob"]["compared"] == 2
    assert people["Bob"]["agreement"] == 1.0


def test_people_are_believed_as_the_job_says(tmp_path):
    session = session_of(tmp_path, documents(7), trust={"Ada": 0.6})
    with running(session) as page:
        question = page.post("next", annotator="Ada", kind="choice", tab="1")["question"]
        chosen = question["groups"][0]["document"]
        who = {"annotator": "Ada", "kind": "choice", "tab": "1"}
        page.post("answer", ticket=question["ticket"], answer="same", chosen=chosen, **who)
        assert session.notes.beliefs.annotators["Ada"].error_rate == pytest.approx(0.4)


# ---- a refit, and where it cannot listen


def test_a_refit_works_in_the_background_and_says_what_moved(tmp_path):
    go_on = threading.Event()

    def work(tell: Any) -> Outcome:
        assert go_on.wait(20)
        return Outcome({"J": 2.0}, {"J": 1.0, "moved": 3})

    with running(session_of(tmp_path, documents(12)), Refit(work)) as page:
        assert page.post("refit", annotator="Ada")["state"] == "running"
        assert page.request("POST", "/api/refit", {})[0] == 400
        assert answered(page)["words"]  # meanwhile
        go_on.set()
        for _ in range(200):
            if (view := page.get("/api/refit"))["state"] == "done":
                break
            threading.Event().wait(0.01)
        assert view["after"]["moved"] == 3
        assert "expected to move" in page.get("/api/history")["outlook"]


def test_a_refit_that_fails_says_why(tmp_path):
    def work(tell: Any) -> Outcome:
        raise ConfigurationError("the job must be there, got none")

    with running(session_of(tmp_path, documents(12)), Refit(work)) as page:
        page.post("refit")
        for _ in range(200):
            if (view := page.get("/api/refit"))["state"] == "failed":
                break
            threading.Event().wait(0.01)
    assert view["words"] == "the job must be there, got none"


def test_a_port_in_use_is_said_in_words(page):
    with pytest.raises(ConfigurationError, match="must be free, got"):
        listening("127.0.0.1", page.page.port)


@pytest.mark.parametrize("host", ["nowhere.invalid", "203.0.113.7"])
def test_an_address_of_another_machine_is_said_in_words(host):
    with pytest.raises(ConfigurationError, match="--host"):
        listening(host, 0)
