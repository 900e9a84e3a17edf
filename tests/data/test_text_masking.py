from __future__ import annotations

import numpy as np
import pytest
from conftest import sentences
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.text import IGNORED, WholeWordMasker


def words(tokenizer, ids: np.ndarray) -> list[list[int]]:
    """Positions of whole words, found from the tokens' own marks."""
    found: list[list[int]] = []
    for position, token in enumerate(tokenizer.convert_ids_to_tokens(ids.tolist())):
        if token in tokenizer.all_special_tokens:
            continue
        if token.startswith("##") and found and found[-1][-1] == position - 1:
            found[-1].append(position)
        else:
            found.append([position])
    return found


@settings(deadline=None)
@given(count=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_whole_words_within_the_budget(wordpiece, count, seed):
    rng = np.random.default_rng(seed)
    text = sentences(rng, seed % 4, count)
    ids = np.array(
        wordpiece(text, padding="max_length", max_length=120, truncation=True)["input_ids"]
    )
    masked, labels = WholeWordMasker(wordpiece)(ids, rng)
    picked = set(np.flatnonzero(labels != IGNORED).tolist())
    ordinary = sum(len(word) for word in words(wordpiece, ids))
    assert 1 <= len(picked) <= max(1, round(0.15 * ordinary))
    for word in words(wordpiece, ids):
        assert picked.isdisjoint(word) or picked.issuperset(word)
    assert (labels[sorted(picked)] == ids[sorted(picked)]).all()
    untouched = np.setdiff1d(np.arange(len(ids)), sorted(picked))
    assert (masked[untouched] == ids[untouched]).all()


def test_four_fifths_mask_a_tenth_random_a_tenth_unchanged(wordpiece):
    masker, rng = WholeWordMasker(wordpiece), np.random.default_rng(0)
    ids = np.array(wordpiece(sentences(rng, 1, 9))["input_ids"])
    fates = np.zeros(3)
    for _ in range(2000):
        masked, labels = masker(ids, rng)
        picked = labels != IGNORED
        fates += [
            (masked[picked] == masker.mask_id).sum(),
            ((masked[picked] != masker.mask_id) & (masked[picked] != ids[picked])).sum(),
            (masked[picked] == ids[picked]).sum(),
        ]
    # 2,000 draws of about 16 tokens: a deviation of 0.01 is more than five standard errors
    assert fates / fates.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_same_generator_same_masks(wordpiece):
    masker = WholeWordMasker(wordpiece)
    ids = np.array(wordpiece("the supersonic boundary of a turbulent wing")["input_ids"])
    first, second = (masker(ids, np.random.default_rng(3)) for _ in range(2))
    assert (first[0] == second[0]).all()
    assert (first[1] == second[1]).all()


def test_one_long_word_is_masked_whole_although_it_passes_the_budget(wordpiece):
    ids = np.array(wordpiece("zzzzzz")["input_ids"])
    _, labels = WholeWordMasker(wordpiece)(ids, np.random.default_rng(0))
    assert (labels != IGNORED).tolist() == [False] + [True] * 6 + [False]


def test_byte_level_vocabularies_mark_beginnings_instead():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "<mask>",
        "<s>",
        "</s>",
        "<pad>",
        "Ġwing",
        "Ġdrag",
        "Ġsuper",
        "sonic",
        "Ġflow",
        "Ġheat",
    ]
    model = models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<pad>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        mask_token="<mask>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    masker = WholeWordMasker(fast, probability=0.5)
    ids = np.array([1, 6, 7, 4, 6, 7, 5, 2])
    seen = set()
    for seed in range(40):
        _, labels = masker(ids, np.random.default_rng(seed))
        picked = labels != IGNORED
        assert picked[1] == picked[2]
        assert picked[4] == picked[5]
        seen.add(tuple(picked))
    assert len(seen) > 1


def test_a_tokenizer_without_a_mask_is_refused():
    class Bare:
        mask_token_id = None

    with pytest.raises(ValueError, match="mask token"):
        WholeWordMasker(Bare())
