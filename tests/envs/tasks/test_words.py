"""Vocabularies: disjoint, and words that a ``sed`` cannot confuse."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from obsspec_gym.envs.tasks.words import HELD_OUT_WORDS, TRAIN_WORDS, Vocabulary, Words


def test_the_vocabularies_are_disjoint() -> None:
    assert not set(TRAIN_WORDS) & set(HELD_OUT_WORDS)
    assert len(set(TRAIN_WORDS)) == len(TRAIN_WORDS) > 200
    assert len(set(HELD_OUT_WORDS)) == len(HELD_OUT_WORDS) > 50


@given(st.integers(0, 10_000), st.sampled_from(Vocabulary))
def test_drawn_words_are_distinct_and_none_contains_another(seed: int, vocabulary: Vocabulary) -> None:
    words = Words(Random(seed), vocabulary).several(12)
    assert all(a not in b for a in words for b in words if a is not b)
    assert all((word in HELD_OUT_WORDS) is (vocabulary is Vocabulary.HELD_OUT) for word in words)
