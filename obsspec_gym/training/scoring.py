"""What a world model would have foreseen, told from the tokens alone: no decoding, no race against the tool.

Greedy decoding takes the most probable token each time. So it writes an answer exactly where, reading the answer
itself, the model finds every token of it the most probable one: one pass over an episode verifies all of its
predictions. (A text has many tokenisations, and greedy decoding might write the right text in other tokens than the
tokenizer would. That is not counted here.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from transformers import PreTrainedModel

from obsspec_gym.training.answer_batch import AnswerBatch, hidden_states, logits
from obsspec_gym.training.passages import Answer, Passage

_TOKENS_AT_ONCE = 8192
_LOGITS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Score:
    """How much of some transitions a world model foresees, as ``metrics`` defines it. Ratios are ``None`` of nothing.

    Every transition counts as one prediction; one that the model cannot make is wrong.

    Attributes:
        match_rate: Exact matches (observation and end) / transitions.
        nonempty_match_rate: The same over transitions that printed something.
        time_weighted_match_rate: The same over all, weighted by the tool's seconds.
        hidden_seconds: Sum over the matches of what a right prediction would hide.
    """

    match_rate: float | None
    nonempty_match_rate: float | None
    time_weighted_match_rate: float | None
    hidden_seconds: float

    @classmethod
    def of(cls, answers: Sequence[Answer], matched: Sequence[bool]) -> Score:
        """The score of transitions and whether each was foreseen."""
        pairs = list(zip(answers, matched, strict=True))
        return cls(
            match_rate=_mean((float(match), 1.0) for _, match in pairs),
            nonempty_match_rate=_mean((float(match), 1.0) for answer, match in pairs if not answer.empty),
            time_weighted_match_rate=_mean((float(match), answer.tool_seconds) for answer, match in pairs),
            hidden_seconds=sum(answer.hidable_seconds for answer, match in pairs if match),
        )

    def to_log(self, prefix: str = "") -> dict[str, float]:
        """What of it is a number, by name."""
        return {f"{prefix}{name}": value for name, value in asdict(self).items() if value is not None}


def answers_of(passages: Iterable[Passage]) -> list[Answer]:
    """All answers, in the order in which :func:`foreseen` judges them."""
    return [answer for passage in passages for answer in passage.answers]


@torch.no_grad()
def foreseen(model: PreTrainedModel, passages: Sequence[Passage]) -> list[bool]:
    """Whether greedy decoding would have written each answer exactly.

    Args:
        model: A causal language model.
        passages: Where the answers are.

    Returns:
        One value an answer, passage by passage.
    """
    matched: dict[int, list[bool]] = {}
    for indices in _alike(passages):
        chosen = [passages[index] for index in indices]
        found = iter(_foreseen_at_once(model, chosen))
        for index, passage in zip(indices, chosen, strict=True):
            matched[index] = [next(found) for _ in passage.answers]
    return [match for index in range(len(passages)) for match in matched[index]]


def _foreseen_at_once(model: PreTrainedModel, passages: Sequence[Passage]) -> list[bool]:
    batch = AnswerBatch.of(passages, model.device)
    hidden = hidden_states(model, batch)
    best = [logits(model, part).argmax(dim=-1) for part in torch.split(hidden, _LOGITS_AT_ONCE)]
    answers = answers_of(passages)
    wrong = torch.zeros(len(answers), dtype=torch.long, device=model.device)
    wrong.index_add_(0, batch.owners, (torch.cat(best) != batch.targets).long())
    return [answer.start < answer.stop and errors == 0 for answer, errors in zip(answers, wrong.tolist(), strict=True)]


def _alike(passages: Sequence[Passage]) -> Iterator[list[int]]:
    """Indices of passages of like length, as many as fit in one pass."""
    group: list[int] = []
    for index in sorted(range(len(passages)), key=lambda index: len(passages[index].ids)):
        if group and (len(group) + 1) * len(passages[index].ids) > _TOKENS_AT_ONCE:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    """The weighted mean of (value, weight) pairs."""
    pairs = list(weighted)
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None
