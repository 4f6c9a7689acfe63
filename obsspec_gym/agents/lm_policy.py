"""A language model as a policy: an engine generates, a dialogue writes and reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from obsspec_gym.agents.dialogue import CompactDialogue, Dialogue, is_compact
from obsspec_gym.agents.engine.base import Engine, EngineLoad
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.loading import context_length, load_engine, load_tokenizer, model_directory
from obsspec_gym.agents.tokens import TextCodec, Tokenizer
from obsspec_gym.agents.tool_calls import ToolCallDialogue
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, Completion, Hint, Observation, Priority, Sampling, TokenIds

if TYPE_CHECKING:
    from obsspec_gym.agents.engine.transformers import DriverName, DtypeName


class LMPolicy:
    """A language model that works in a terminal.

    What the model is conditioned on is the history's token view: tokens are appended, never tokenised again, so
    a completion goes into the next prompt exactly as it was sampled.

    Args:
        engine: Generates.
        tokenizer: A Hugging Face tokenizer. One with the tokens of the compact dialogue is used with it; every
            other with its own chat template and a ``bash`` tool.
        sampling: How completions are drawn. The dialogue's stop tokens are added to it.
        system_prompt: The system message of a chat template; ``None`` for a short description of what is to be
            done. The compact dialogue has none.
        dialogue: Writes and reads instead of the one the tokenizer implies.
        context_length: Tokens the model can attend to, where a bound below the engine's own is wanted.
        max_turns: The episode's turn budget, as far as schedulers are told of it.
        owns_engine: Whether :meth:`close` closes the engine.

    Raises:
        InvalidArgumentError: If the tokenizer offers no dialogue, or an argument is out of range.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        sampling: Sampling | None = None,
        system_prompt: str | None = None,
        dialogue: Dialogue | None = None,
        context_length: int | None = None,
        max_turns: int = 32,
        owns_engine: bool = False,
    ) -> None:
        if max_turns < 1:
            raise InvalidArgumentError(f"max_turns must be >= 1, got {max_turns}")
        if context_length is not None and context_length < 2:
            raise InvalidArgumentError(f"context_length must be >= 2 tokens, got {context_length}")
        self._engine = engine
        self._tokenizer = tokenizer
        self._dialogue = dialogue if dialogue is not None else dialogue_for(tokenizer, system_prompt)
        sampling = sampling if sampling is not None else Sampling()
        stops = dict.fromkeys((*sampling.stop_token_ids, *self._dialogue.stop_token_ids))
        self._sampling = replace(sampling, stop_token_ids=tuple(stops))
        self._context_length = context_length
        self._max_turns = max_turns
        self._owns_engine = owns_engine

    @property
    def engine(self) -> Engine:
        """What generates."""
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the token views are of."""
        return self._tokenizer

    @property
    def dialogue(self) -> Dialogue:
        """What writes and reads the tokens."""
        return self._dialogue

    @property
    def sampling(self) -> Sampling:
        """How completions are drawn, with the dialogue's stop tokens."""
        return self._sampling

    @property
    def addressed_noise(self) -> bool:
        """Whether a completion is a pure function of (weights, history, seed): as the engine says."""
        return self._engine.capabilities.addressed_noise

    def with_sampling(self, sampling: Sampling) -> LMPolicy:
        """The same policy on the same engine, drawing otherwise; closing it leaves the engine open."""
        return LMPolicy(
            self._engine,
            self._tokenizer,
            sampling=sampling,
            dialogue=self._dialogue,
            context_length=self._context_length,
            max_turns=self._max_turns,
        )

    def generate(
        self,
        history: History,
        *,
        seed: int,
        priority: Priority = Priority.COMMITTED,
        draft: Sequence[int] = (),
    ) -> Generation:
        """Submits the history's tokens to the engine.

        Priority and draft change when a completion is there, never what it is: an engine that has no use for one
        of them is not sent it.

        Args:
            history: Ends with an observation.
            seed: The turn's seed.
            priority: Who goes first.
            draft: Tokens that might come.

        Raises:
            InvalidArgumentError: If the history ends with an action or has no tokens, or if the prompt leaves no
                room for a completion; nothing was sent then.
        """
        if history.is_action or not history.length:
            what = "ends with an action" if history.is_action else "has no tokens"
            raise InvalidArgumentError(f"a language model continues tokens that end with an observation: it {what}")
        if self._context_length is not None and history.length >= self._context_length:
            raise InvalidArgumentError(
                f"the prompt of {history.length} tokens fills the context of {self._context_length}"
            )
        can = self._engine.capabilities
        return self._engine.submit(
            history.token_ids,
            self._sampling,
            seed,
            hint=Hint(history.episode, history.turn, min(1.0, history.turn / self._max_turns)),
            priority=priority if can.priority else Priority.COMMITTED,
            draft=draft if can.drafts else (),
        )

    def parse(self, completion: Completion) -> Action:
        """The command, or a ``MalformedCall`` with the completion's text where none can be read."""
        return self._dialogue.read(completion.token_ids)

    def encode_action(self, action: Action) -> TokenIds:
        """A command as the completion that stands for it, its stop token included.

        Raises:
            InvalidArgumentError: If the action is no text.
        """
        return self._dialogue.write(_text(action, "action"))

    def load(self) -> EngineLoad:
        """How busy the engine is."""
        return self._engine.load()

    def encode_observation(self, history: History | None, observation: Observation) -> TokenIds:
        """The first observation with all that precedes it, or the increment that shows a later one.

        Args:
            history: Ends with an action whose segment is the completion as it was sampled; an increment first
                ends the turn where that does not. ``None`` for the first observation.
            observation: Text, final.

        Raises:
            InvalidArgumentError: If the observation is no text, or the history does not end with an action.
        """
        text = _text(observation, "observation")
        if history is None:
            return self._dialogue.opening(text)
        if not history.is_action:
            raise InvalidArgumentError("an observation follows an action, and the history ends with an observation")
        closed = history.segment[-1:] != () and history.segment[-1] in self._dialogue.stop_token_ids
        return self._dialogue.increment(text, closed)

    def close(self) -> None:
        """Closes the engine if it is the policy's own. Idempotent."""
        if self._owns_engine:
            self._engine.close()


def load_policy(
    source: str | Path = "shipped",
    *,
    engine: Engine | str = "transformers",
    driver: DriverName = "thread",
    dtype: DtypeName = "float32",
    sampling: Sampling | None = None,
    system_prompt: str | None = None,
    max_turns: int = 32,
) -> LMPolicy:
    """Loads a language-model policy; its engine is ``policy.engine``.

    Args:
        source: ``"shipped"`` (the tiny policy that comes with this package), or a local model directory.
        engine: Which engine to load on that directory: closing the policy closes it. Or one that generates
            instead; it stays the caller's.
        driver: Who runs the embedded engine's steps.
        dtype: What the embedded engine computes in.
        sampling: How completions are drawn.
        system_prompt: The system message of a chat template.
        max_turns: The episode's turn budget, as far as schedulers are told of it.

    Raises:
        InvalidArgumentError: If there is no model, or no dialogue for its tokenizer.
        MissingExtraError: If torch or transformers is not installed.
    """
    directory = model_directory(source, "policy")
    tokenizer = load_tokenizer(directory)
    dialogue = dialogue_for(tokenizer, system_prompt)  # before the weights: what is refused has loaded nothing
    owned = isinstance(engine, str)
    return LMPolicy(
        load_engine(directory, engine=engine, driver=driver, dtype=dtype) if isinstance(engine, str) else engine,
        tokenizer,
        sampling=sampling,
        dialogue=dialogue,
        context_length=context_length(directory),
        max_turns=max_turns,
        owns_engine=owned,
    )


def dialogue_for(tokenizer: Tokenizer, system_prompt: str | None = None) -> Dialogue:
    """The dialogue a tokenizer is made for: the compact one if it has its tokens, else its chat template.

    Args:
        tokenizer: A Hugging Face tokenizer.
        system_prompt: The system message of a chat template; ``None`` for the default.

    Raises:
        InvalidArgumentError: If it is made for neither, or a system prompt is given to the compact dialogue.
    """
    codec = TextCodec(tokenizer)
    if not is_compact(codec):
        return ToolCallDialogue(tokenizer, codec, system_prompt=system_prompt)
    if system_prompt:
        raise InvalidArgumentError("the compact dialogue has no system message, and a system prompt was given")
    return CompactDialogue(codec)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"a language model reads and writes text: the {what} is {type(value).__name__}")
    return value
