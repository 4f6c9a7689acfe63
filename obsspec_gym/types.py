"""The values that flow through the project, and their glossary.

- **Task**: what an agent is asked to do; an *episode* is one try at it in one environment.
- **Group**: the episodes of one task under one policy, told apart by their *sample* index (GRPO's group).
- **Turn**: one action and the observation it brought. Turn ``i`` of an episode has the episode's ``i``-th action.
- **Action**: what the policy sends to the environment (for terminals a command: ``str``).
- **Observation**: what came back, in its final form (decoded, truncated, formatted): it is compared and shown
  exactly like this.
- **Outcome**: an observation together with whether the episode goes on.
- **Prediction**: a world model's guess at an outcome.
- **History**: everything a policy has seen and done in one episode (:class:`obsspec_gym.agents.history.History`).
- **Generation**: a completion under way; **Completion**: what it came to.
- **Future**: a generation for a history that may become real.
- **Transition**: what really happened in one turn: a world model's training example.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from obsspec_gym.agents.history import History

Observation: TypeAlias = Any
Action: TypeAlias = Any
TokenIds: TypeAlias = tuple[int, ...]

SUBMIT = "submit"
"""The terminal action that ends an episode; ``submit TEXT`` hands in an answer as well."""


class MalformedCall(str):
    """The text of a completion in which no tool call could be read.

    A terminal environment runs nothing for it: the observation says what was wrong, and the episode goes on.
    """

    __slots__ = ()


class Priority(enum.IntEnum):
    """Who goes first in an engine; lower is earlier."""

    COMMITTED = 0
    """A generation for a history that is real."""
    SPECULATIVE = 1
    """A generation for a history that may never come true."""


class FinishReason(enum.Enum):
    """Why a completion ended."""

    STOP = "stop"
    """A stop token was sampled (it is the last of ``token_ids``)."""
    LENGTH = "length"
    """``max_tokens`` or the context length was reached."""
    CALL = "call"
    """A plain Python policy returned."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Which episode of a run: seeds are derived from it, never from an environment's index or a rank.

    Attributes:
        task_id: The task's identifier; the same for all members of a group.
        sample: The member of the group, from 0.
    """

    task_id: str
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool call really gave.

    Attributes:
        observation: The observation in its final form.
        ends: True when the episode is over (terminated or truncated): nothing is generated after it.
        visible: What the policy reads besides the observation (an action mask, say), hashable by value; part of
            the key a generation is filed under.
    """

    observation: Observation
    ends: bool = False
    visible: Any = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """A world model's guess at an :class:`Outcome`.

    Attributes:
        observation: The predicted observation.
        ends: Whether the episode is predicted to be over.
        probability: Calibrated probability in [0, 1] that observation and ``ends`` both come true exactly.
        source: Who predicted ("memory", "lm", ...): match rates and calibration are kept per source.
        visible: Predicted :attr:`Outcome.visible`.
    """

    observation: Observation
    ends: bool = False
    probability: float = 1.0
    source: str = "model"
    visible: Any = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: Divides the logits; 0 means greedy (the most probable token, the lower id on a tie), and
            logprobs are then of the distribution at temperature 1.
        top_k: Keep only the k most probable tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
        max_tokens: Upper bound on the completion's length, in tokens.
        stop_token_ids: Tokens that end the completion; the stop token is part of the completion.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be >= 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generation came to.

    Attributes:
        token_ids: The sampled tokens, the stop token included; empty for plain Python policies.
        logprobs: One natural-log probability a token, of the *processed* distribution it was drawn from
            (temperature, top-k, top-p applied).
        finish_reason: Why it ended.
        weights_version: The engine's weights version it was sampled under.
        action: The action itself, where a plain Python policy returned one.
        accepted_draft_tokens: How many leading tokens were verified from a draft rather than decoded.
    """

    token_ids: TokenIds = ()
    logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP
    weights_version: int = 0
    action: Action = None
    accepted_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Hint:
    """What a scheduler over engine replicas may use: never changes what is sampled.

    Attributes:
        trajectory: Identifies the conversation whose KV cache helps.
        turn: The turn the request is for, from 0.
        progress: Fraction of the turn budget used, in [0, 1].
    """

    trajectory: Hashable = None
    turn: int = 0
    progress: float = 0.0


@dataclass(frozen=True, slots=True)
class Transition:
    """What really happened in one turn.

    Attributes:
        history: The history that ends with ``action``.
        outcome: What came back.
        tool_seconds: Wall seconds the tool ran.
    """

    history: History
    outcome: Outcome
    tool_seconds: float

    @property
    def action(self) -> Action:
        """The action that was executed."""
        return self.history.last_action
