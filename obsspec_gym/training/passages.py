"""What a world model learns from: episodes as rows of tokens in which every observation is to be foreseen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from obsspec_gym.agents.world_model.lm import LMWorldModel
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.speculation.collector import Collection
from obsspec_gym.speculation.record import is_empty
from obsspec_gym.types import Outcome, TokenIds, Transition


@dataclass(frozen=True, slots=True)
class Answer:
    """One transition within a passage: what the model has to write for it to be predicted.

    Attributes:
        turn: Index of the turn within its episode, from 0.
        start: Where the observation begins within the passage's tokens.
        stop: Where the token ends that closes it. Equal to ``start`` where the model can make no prediction (no text,
            or too long for its context): such a transition counts, and nothing is learnt from it.
        empty: Whether the command printed nothing.
        tool_seconds: Wall seconds the tool ran.
        hidable_seconds: Seconds of generation that a right prediction would hide: min(tool - prediction, generation of
            the next action), and 0 where the episode ends.
    """

    turn: int
    start: int
    stop: int
    empty: bool
    tool_seconds: float
    hidable_seconds: float


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens of an episode, as the world model reads them, and the answers within them.

    An episode that fits the model's context is one passage; of a longer one the older turns are dropped as
    :class:`~obsspec_gym.agents.world_model.lm.LMWorldModel` drops them, and a new passage begins.

    Attributes:
        task_id: The task.
        sample: The member of the group.
        ids: The tokens.
        answers: At least one, by turn.
    """

    task_id: str
    sample: int
    ids: TokenIds
    answers: tuple[Answer, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        """By task, sample and turn, whichever process or environment played it."""
        return self.task_id, self.sample, self.answers[0].turn, self.ids

    @property
    def teaches(self) -> bool:
        """Whether anything can be learnt from it."""
        return any(answer.start < answer.stop for answer in self.answers)

    def to_state(self) -> list[Any]:
        """Plain values, for a checkpoint."""
        answers = [
            [answer.turn, answer.start, answer.stop, answer.empty, answer.tool_seconds, answer.hidable_seconds]
            for answer in self.answers
        ]
        return [self.task_id, self.sample, list(self.ids), answers]

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> Passage:
        """The passage that :meth:`to_state` wrote."""
        task_id, sample, ids, answers = state
        return cls(task_id, sample, tuple(ids), tuple(Answer(*answer) for answer in answers))


def passages_of(
    world_model: LMWorldModel,
    transitions: Iterable[Transition],
    next_generations: Iterable[float] | None = None,
    *,
    seconds_per_token: float = 0.0,
) -> list[Passage]:
    """Writes transitions as the world model reads them, in the order of task, sample and turn.

    Args:
        world_model: Its tokenizer, its dialogue, its context.
        transitions: What happened, in any order.
        next_generations: For each transition, the seconds in which the policy generated the action after it; by
            default it is taken to have needed at least as long as the tool.
        seconds_per_token: What a predicted token costs: a prediction is there so much later.

    Raises:
        InvalidArgumentError: If there are not as many durations as transitions.
    """
    transitions = list(transitions)
    durations = [math.inf] * len(transitions) if next_generations is None else list(next_generations)
    if len(durations) != len(transitions):
        raise InvalidArgumentError(
            f"next_generations has one number a transition, got {len(durations)} for {len(transitions)}"
        )
    passages: list[Passage] = []
    by_turn = sorted(zip(transitions, durations, strict=True), key=lambda pair: _place(pair[0]))
    for transition, next_generation in by_turn:
        passage = _passage(world_model, transition, next_generation, seconds_per_token)
        if passages and _continues(passages[-1], passage):
            passage = Passage(passage.task_id, passage.sample, passage.ids, (*passages.pop().answers, *passage.answers))
        passages.append(passage)
    return passages


def transitions_of(collection: Collection) -> tuple[list[Transition], list[float]]:
    """Everything that happened in a collection, and how long the policy generated after each of it.

    The last turn of a truncated episode is left out: that an episode is cut off there is no answer of the tool.
    """
    generations = {
        (turn.episode, turn.turn): turn.generation.seconds for turn in collection.turns if turn.generation is not None
    }
    transitions: list[Transition] = []
    next_generations: list[float] = []
    for trajectory in collection.trajectories:
        acted = [] if trajectory.history is None else [event for event in trajectory.history if event.is_action]
        for history, step in zip(acted, trajectory.steps, strict=True):
            last = history is trajectory.history
            if last and not trajectory.terminated:
                continue
            transitions.append(Transition(history, Outcome(step.observation, last), step.tool_seconds))
            next_generations.append(0.0 if last else generations.get((trajectory.episode, history.turn), 0.0))
    return transitions, next_generations


def _place(transition: Transition) -> tuple[str, int, int]:
    episode = transition.history.episode
    return episode.task_id, episode.sample, transition.history.turn


def _passage(
    world_model: LMWorldModel, transition: Transition, next_generation: float, seconds_per_token: float
) -> Passage:
    """The passage of one transition alone."""
    before, outcome = transition.history.parent, transition.outcome
    if before is None:
        raise InvalidArgumentError("a transition's history ends with the action that was executed, got one without")
    prompt = world_model.prompt(before, transition.action) or ()
    written = (world_model.answer(outcome) if prompt else None) or ()
    tool = transition.tool_seconds - seconds_per_token * len(written)
    answer = Answer(
        turn=transition.history.turn - 1,
        start=len(prompt),
        stop=len(prompt) + len(written),
        empty=is_empty(outcome.observation),
        tool_seconds=transition.tool_seconds,
        hidable_seconds=0.0 if outcome.ends else max(0.0, min(tool, next_generation)),
    )
    return Passage(before.episode.task_id, before.episode.sample, (*prompt, *written), (answer,))


def _continues(passage: Passage, following: Passage) -> bool:
    """Whether the next turn's passage begins with this one, token by token."""
    same_episode = (passage.task_id, passage.sample) == (following.task_id, following.sample)
    after = passage.answers[-1].turn < following.answers[0].turn
    return same_episode and after and following.ids[: len(passage.ids)] == passage.ids
