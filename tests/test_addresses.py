"""One rule for paths and URLs, and one redactor: a secret is refused and never shown."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrf_dask import errors
from hmrf_dask.errors import ConfigurationError, HmrfError
from hmrf_dask.redaction import logs_without_secrets
from hmrf_dask.storage.addresses import (
    absolute_url,
    link_problem,
    plain_url,
    refuse_credentials,
    store_problem,
    without_secrets,
)
from tests.support.hostile.addresses import CANARY, PLAIN, WITH_SECRETS


@pytest.mark.parametrize("address", WITH_SECRETS)
def test_an_address_with_a_secret_is_refused_without_it(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^output must ") as caught:
        plain_url(address, "output")
    assert CANARY not in str(caught.value)
    assert store_problem(address)


@pytest.mark.parametrize("address", PLAIN)
def test_an_address_without_a_secret_is_taken(address: str) -> None:
    assert plain_url(address, "output") == address


@pytest.mark.parametrize("quoted", ["{}", "'{}'", '"{}"', "({})", "got {!r}; check", "`{}`:"])
@pytest.mark.parametrize("address", WITH_SECRETS)
def test_a_text_that_repeats_an_address_has_no_secret_any_more(address: str, quoted: str) -> None:
    if quoted in ("{}", "({})") and " " in address.strip():
        return  # nothing says where an address ends that has blanks and no quotes
    if "\n" in address and "!r" not in quoted:
        return
    text = without_secrets(f"cannot open {quoted.format(address)}")
    assert CANARY not in text
    assert text.startswith("cannot open")


@pytest.mark.parametrize(
    "text",
    [
        "password=CANARY5ecret",
        "AWS_SECRET_ACCESS_KEY=CANARY5ecret",
        "{'secret': 'CANARY5ecret', 'b': 1}",
        '{"password": "CANARY5ecret"}',
        "got {'secret': 'CANARY5ecr…CANARY5ecret",
        "DefaultEndpointsProtocol=https;AccountKey=CANARY5ecret==;x",
        "Authorization: Bearer CANARY5ecret",
        "Authorization: CANARY5ecret",
        "X-Amz-Security-Token: CANARY5ecret",
        "connect --token=CANARY5ecret",
        "got 'me:pa,CANARY5ecret@host'",
        'got "me:pa\'CANARY5ecret@host"',
        r'{"body": "{\"refresh_token\": \"CANARY5ecret\"}"}',
        "[('Authorization', 'Bearer CANARY5ecret')]",
        "Credential=CANARY5ecret, Signature=CANARY5ecret",
        "-----BEGIN RSA PRIVATE KEY-----\nCANARY5ecret\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_value_behind_a_secret_name_is_masked(text: str) -> None:
    assert CANARY not in without_secrets(text)


@pytest.mark.parametrize(
    "address",
    ["https://CANARY5ecret\uff20host/a", "me too:CANARY5ecret@host", "~me:CANARY5ecret@host"],
)
def test_an_address_that_is_mistaken_for_another_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="must not hold a user") as caught:
        plain_url(address, "output")
    assert CANARY not in str(caught.value)


def test_keys_and_tokens_are_known_by_their_form() -> None:
    assert without_secrets("key AKIAIOSFODNN7EXAMPLE is no good") == "key AKIA… is no good"
    assert "c2ln" not in without_secrets("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnc2lnc2ln")


@pytest.mark.parametrize(
    "text",
    [
        "document 'a@b' is there twice, at 12:30:01, 3:a@b",
        "pairs.csv, line 3: a and b must be two different documents, got 'me@example.org' twice",
        "mailto:me@example.org",
        "s3://bucket/part-?.jsonl, s3://bucket/people/a@b.jsonl and /data/a@b/c?.csv",
        "must be one of tcp://host:port, got 5; start http://127.0.0.1:8787/status",
        "storage_options.token: must not be there; known are profile, anon",
        "must not hold a credential, got 'password'; use a profile",
        "key=hmrf-run-12, n_tokens=5, {'tokens': 3}, token_pattern=x",
        "is it https://example.org/a? yes",
        "a//b@c and C://x",
        r"C:\Users\me@home\a.txt and C:\a@b",
        "one of ('a', 'b') from 12:30@noon to 13:00@noon",
        "key must be text, got 'key'",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert without_secrets(text) == text


@given(st.text())
def test_the_redactor_takes_any_text_and_what_it_gives_stays(text: str) -> None:
    once = without_secrets(text)
    assert without_secrets(once) == once


@given(st.text(alphabet="ab:/?#@%&=;.-s3", max_size=40))
def test_what_is_taken_is_not_masked(text: str) -> None:
    for scheme in ("https://", "s3://"):
        if not store_problem(scheme + text):
            assert without_secrets(scheme + text) == scheme + text


def test_links_for_people_may_have_a_query_but_no_secret() -> None:
    assert link_problem("https://example.org/a?page=2#top") == ""
    for link in (
        "https://example.org/a?page=2&sig=CANARY5ecret",
        "https://example.org/a#access_token=CANARY5ecret",
        "https://me:CANARY5ecret@example.org",
    ):
        assert link_problem(link)
        assert CANARY not in link_problem(link)


@pytest.mark.parametrize(
    "options",
    [
        {"key": "CANARY5ecret"},
        {"password": 12345},
        {"sasToken": "CANARY5ecret"},
        {"x-api-key": "CANARY5ecret"},
        {"client_kwargs": [{"deep": [{"aws_secret_access_key": "CANARY5ecret"}]}]},
        {"endpoint_url": "https://me:CANARY5ecret@host"},
        {"client_kwargs": {"endpoint_url": "https://host?sig=CANARY5ecret"}},
        {"headers": ["Bearer CANARY5ecretCANARY5ecret"]},
        {"password": ["CANARY5ecret"]},
        {"secret": b"CANARY5ecret"},
    ],
)
def test_options_with_a_secret_are_refused_without_it(options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"credential|secret") as caught:
        refuse_credentials(options)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("github://owner:repo@/a", "must"),
        ("ssh://host/a", "unknown kind of store, 'ssh'"),
        ("reference://a", "unknown kind of store, 'reference'"),
        ("http://169.254.169.254/latest/meta-data", "metadata"),
        ("http://2852039166/latest", "metadata"),
        ("http://0xa9fea9fe/", "metadata"),
        ("http://[::ffff:169.254.169.254]/", "metadata"),
        ("http://[fe80::1]:80/", "metadata"),
        ("https://metadata.google.internal./x", "metadata"),
    ],
)
def test_a_file_names_no_other_stores(address: str, problem: str) -> None:
    assert problem in store_problem(address)


def test_one_folder_has_one_address() -> None:
    assert absolute_url("S3://bucket/a/") == absolute_url("s3://bucket/a")
    assert absolute_url("FILE:///data/a") == "/data/a"
    with pytest.raises(ConfigurationError, match=r"without '\*'"):
        absolute_url("s3://bucket/*")


def test_errors_and_logs_have_no_secret() -> None:
    import distributed  # noqa: F401 - it has errors pickled in its own way

    secret = "https://me:CANARY5ecret@host"
    kinds = [
        one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, HmrfError)
    ]
    for kind in kinds:
        error = kind(f"cannot open {secret}")
        for text in (str(error), repr(error), repr(error.args), str(copy.copy(error))):
            assert CANARY not in text
        assert str(pickle.loads(pickle.dumps(error))) == str(error) == "cannot open https://…@host"


def test_logs_have_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    secret = "https://me:CANARY5ecret@host"
    with logs_without_secrets():
        try:
            raise ValueError(secret)
        except ValueError:
            logging.getLogger("library.any").exception("of %s, %d %%", secret, 1)
    assert "of https://…@host, 1 %" in caplog.text
    assert "ValueError: https://…@host" in caplog.text
    assert CANARY not in caplog.text
