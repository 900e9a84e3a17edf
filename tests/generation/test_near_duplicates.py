"""Near duplicates among texts: brute force is the oracle, at any size of block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.generation import near_duplicates
from beir_cocodr.generation.near_duplicates import without_near_duplicates


def kept_by_brute_force(texts: list[str], similarity: float) -> list[bool]:
    kept: list[set[str]] = []
    is_new = []
    for text in texts:
        word_set = set(text.split())
        jaccards = [len(word_set & other) / len(word_set | other) for other in kept if other]
        is_new.append(all(jaccard < similarity for jaccard in jaccards))
        if is_new[-1]:
            kept.append(word_set)
    return is_new


# Few words, so that texts share several; up to 12 in a text, so that prefixes differ in length.
TEXTS = st.lists(
    st.lists(st.integers(0, 14), max_size=12).map(lambda w: " ".join(f"w{n}" for n in w)),
    max_size=60,
)


@pytest.mark.parametrize(("block", "pairs"), [(65_536, 1 << 20), (8, 1 << 20), (16, 3), (1, 1)])
@settings(max_examples=60, deadline=None)
@given(texts=TEXTS, similarity=st.sampled_from([0.05, 0.2, 0.3, 0.5, 0.7, 0.75, 0.8, 0.9, 1.0]))
def test_brute_force_keeps_the_same_texts(block, pairs, texts, similarity):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near_duplicates, "_BLOCK", block)
        patch.setattr(near_duplicates, "_PAIRS", pairs)
        patch.setattr(near_duplicates, "_READ", 7)
        kept = without_near_duplicates(iter(texts), similarity)
    assert kept.tolist() == kept_by_brute_force(texts, similarity)


def test_a_template_does_not_lead_to_all_pairs(monkeypatch):
    """Of 20,000 texts from one template, a share of the 200 million pairs is compared."""
    compared = []
    similar = near_duplicates._WordSets.similar

    def counted(self, a, b, similarity):
        compared.append(len(a))
        return similar(self, a, b, similarity)

    monkeypatch.setattr(near_duplicates._WordSets, "similar", counted)
    towns = [f"how many people live in town {number}" for number in range(20_000)]
    others = [f"who built bridge {number} across river {number + 7}" for number in range(200)]
    kept = without_near_duplicates([*others, *towns], 0.7)
    assert kept[200:].tolist() == [True] + [False] * 19_999
    assert kept[:200].sum() == sum(kept_by_brute_force(others, 0.7))
    assert sum(compared) < 3_000_000
