"""A language model that predicts what a command will print, in the compact dialogue."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from obsspec_gym.agents.dialogue import ACT, END, OBS, TASK
from obsspec_gym.agents.engine.base import Engine
from obsspec_gym.agents.engine.sharing import SharingEngine
from obsspec_gym.agents.generation import Generation
from obsspec_gym.agents.history import History
from obsspec_gym.agents.tokens import TextCodec, Tokenizer
from obsspec_gym.agents.world_model.calibration import Calibration
from obsspec_gym.agents.world_model.confidence import Evidence
from obsspec_gym.agents.world_model.program import program
from obsspec_gym.agents.world_model.surprise import Surprises
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.seeding import derive_seed
from obsspec_gym.types import Action, Completion, Outcome, Prediction, Priority, Sampling, TokenIds, Transition

# The end of a text that further text may still change the tokenisation of.
_OPEN_END = re.compile(r"(?:[a-zA-Z]+|[0-9]+|[^a-zA-Z0-9]+)\Z")
_DROPPED_TURNS = 4

_FEW = 8
"""What a program printed last is worth trying again if it was no longer, in tokens."""

_PROGRAMS = 1024


class LMWorldModel:
    """Predicts observations by generating them after ``<|obs|>``.

    The history is written as ``<|task|>{instruction}<|act|>{command}<|end|><|obs|>{observation}...`` with the model's
    own tokenizer. What it generates is the observation, then ``<|act|>`` where the episode goes on or ``<|end|>``
    where it ends. The first prediction is greedy, further ones are sampled at temperature 1 with derived seeds. The
    raw confidence is what ``confidence`` makes of the evidence, and is calibrated on line as source ``lm``.

    What the same action brought before in the episode, or the same program last and in few words, is the draft of the
    greedy prediction (with an engine that verifies drafts): much of what is right is there after one step.

    What several episodes ask at the same time, as the members of a group do, is generated once.

    A history that does not fit the context keeps its first event (the task) and the most recent turns; the oldest
    are dropped in steps of 4 turns, so that the rest is the same prompt prefix for several turns. A prediction that
    needs more than ``max_tokens`` is none. Actions and observations that are no text are not predicted.

    Args:
        engine: Generates. Of its own weights; :meth:`close` closes it if ``owns_engine``.
        tokenizer: A Hugging Face tokenizer with the compact dialogue's control tokens.
        context_length: Tokens the model can attend to, prompt and prediction together.
        max_tokens: Upper bound on a prediction's length.
        source: What its predictions are called in measures.
        owns_engine: Whether :meth:`close` closes the engine.
        cached_events: Encoded events kept, the least recently used dropped first.
        confidence: From the evidence for a prediction to the probability that it is right, as fitted for this model
            (:class:`~obsspec_gym.agents.world_model.confidence.Confidence`). By default, and with an engine that
            verifies no drafts, the probability of the whole text.

    Raises:
        InvalidArgumentError: If the tokenizer lacks the control tokens, or ``max_tokens`` leaves no room for a
            prompt.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        context_length: int = 2048,
        max_tokens: int = 256,
        source: str = "lm",
        owns_engine: bool = False,
        cached_events: int = 16_384,
        confidence: Callable[[Evidence], float] | None = None,
    ) -> None:
        if not 0 < max_tokens < context_length:
            raise InvalidArgumentError(
                f"max_tokens must be between 1 and the context of {context_length} tokens, got {max_tokens}"
            )
        self._engine = engine
        self._shared = SharingEngine(engine)
        self._codec = TextCodec(tokenizer)
        self._task, self._act, self._obs, self._end = map(self._codec.control_id, (TASK, ACT, OBS, END))
        self._prompt_length = context_length - max_tokens
        self._greedy = Sampling(temperature=0.0, max_tokens=max_tokens, stop_token_ids=(self._act, self._end))
        self._source = source
        self._owns_engine = owns_engine
        self._calibration = Calibration()
        self._segments: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._cached_events = cached_events
        self._drafts = engine.capabilities.drafts
        self._printed: OrderedDict[str, TokenIds] = OrderedDict()  # by program: what it printed last, if in few words
        self._confidence = confidence if engine.capabilities.drafts else None
        self._surprises = Surprises(self._shared, self._locate, capacity=cached_events)

    @property
    def engine(self) -> Engine:
        """What generates."""
        return self._engine

    async def predict(self, history: History, action: Action, n: int, partial: str = "") -> list[Prediction]:
        """Generates the observation of ``action``, as a continuation of ``partial``.

        Cancelling the call cancels its generations in the engine.
        """
        prompt = self.prompt(history, action) if n > 0 else None
        if prompt is None:
            return []
        # A word may be cut in two by the end of `partial`: the model writes the last one again, and must agree.
        begun = self._codec.plain(_OPEN_END.sub("", partial))
        found = await self._generate(history, action, prompt, begun, partial, n)
        if not found and partial:
            found = await self._generate(history, action, prompt, self._codec.plain(partial), partial, n)
        return self._calibration.apply(history, action, found)[:n]

    def observe(self, transition: Transition) -> None:
        """Calibrates, with what was predicted for this transition, and keeps what programs print in few words."""
        self._calibration.observe(transition)
        if not self._drafts:
            return
        ran, answer = program(transition.action), self.answer(transition.outcome)
        self._printed.pop(ran, None)
        if answer is not None and len(answer) <= _FEW:
            self._printed[ran] = answer
        if len(self._printed) > _PROGRAMS:
            self._printed.popitem(last=False)

    def close(self) -> None:
        """Closes the engine if it is the model's own. Idempotent."""
        if self._owns_engine:
            self._engine.close()

    def state_dict(self) -> dict[str, Any]:
        """What calibration has learnt; the weights are the engine's."""
        return self._calibration.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes back what :meth:`state_dict` gave."""
        self._calibration.load_state_dict(state)

    def prompt(self, history: History, action: Action) -> TokenIds | None:
        """What the model reads: everything up to ``<|obs|>`` after ``action``.

        Args:
            history: Ends with the observation that the action was chosen on.
            action: What is being executed.

        Returns:
            Token ids; ``None`` where something is no text, or not even the last turn fits.
        """
        events = history.events
        if not isinstance(action, str) or not all(isinstance(event.value, str) for event in events):
            return None
        first, *rest = [self._segment(event) for event in events]
        last = (self._act, *self._codec.plain(action), self._end, self._obs)
        room = self._prompt_length - len(first) - len(last)
        while rest and sum(map(len, rest)) > room:
            # An action and its observation are dropped together; the last turn goes only when nothing else is left.
            turns = min(_DROPPED_TURNS, max(1, len(rest) // 2 - 1))
            rest = rest[2 * turns :]
        if room < 0:
            return None
        return (*first, *(token for segment in rest for token in segment), *last)

    def answer(self, outcome: Outcome) -> TokenIds | None:
        """What the model has to write after the prompt for ``outcome`` to be predicted: a training target.

        Args:
            outcome: What came back.

        Returns:
            The observation's tokens, then ``<|act|>`` or ``<|end|>``; ``None`` where the observation is no text, or
            longer than any prediction.
        """
        if not isinstance(outcome.observation, str):
            return None
        answer = (*self._codec.plain(outcome.observation), self._end if outcome.ends else self._act)
        return answer if len(answer) <= self._greedy.max_tokens else None

    def _locate(self, history: History, action: Action) -> tuple[TokenIds, TokenIds] | None:
        """What stands before an action, and the action with its end."""
        prompt = self.prompt(history, action)
        if prompt is None:
            return None
        begin = len(prompt) - prompt[::-1].index(self._act)
        return prompt[:begin], prompt[begin:-1]

    def _segment(self, event: History) -> TokenIds:
        """The tokens of one event, from the cache if they are there."""
        segment = self._segments.pop(event.world_key, None)
        if segment is None:
            text = self._codec.plain(event.value)
            if event.parent is None:
                segment = (self._task, *text)
            else:
                segment = (self._act, *text, self._end) if event.is_action else (self._obs, *text)
        self._segments[event.world_key] = segment
        if len(self._segments) > self._cached_events:
            self._segments.popitem(last=False)
        return segment

    async def _generate(
        self, history: History, action: Action, prompt: TokenIds, begun: TokenIds, partial: str, n: int
    ) -> list[Prediction]:
        """The distinct predictions of one greedy and ``n - 1`` sampled generations after ``prompt + begun``."""
        if len(begun) >= self._greedy.max_tokens:
            return []
        greedy = replace(self._greedy, max_tokens=self._greedy.max_tokens - len(begun))
        sampled = replace(greedy, temperature=1.0)
        less_urgent = Priority.SPECULATIVE if self._engine.capabilities.priority else Priority.COMMITTED
        generations: list[Generation] = []
        draft = self._draft(history, action, begun)
        try:
            for i in range(n):
                seed = derive_seed("world model", history.world_key.hex(), i)
                sampling, priority = (sampled, less_urgent) if i else (greedy, Priority.COMMITTED)
                generations.append(
                    self._shared.submit((*prompt, *begun), sampling, seed, priority=priority, draft=() if i else draft)
                )
            surprise = await self._surprise(history, action)  # verified in the same steps of the engine
            completions = [await generation for generation in generations]
        finally:
            for generation in generations:
                generation.cancel()
        found: dict[tuple[str, bool], Prediction] = {}
        for completion in completions:
            prediction = self._read(begun, completion, surprise)
            if prediction is not None and prediction.observation.startswith(partial):
                found.setdefault((prediction.observation, prediction.ends), prediction)
        return list(found.values())

    def _draft(self, history: History, action: Action, begun: TokenIds) -> TokenIds:
        """What the action might bring, as far as it goes on from what it has brought already."""
        if not self._drafts:
            return ()
        known = self._again(history, action) or self._printed.get(program(action), ())
        return known[len(begun) : self._greedy.max_tokens] if known[: len(begun)] == begun else ()

    def _again(self, history: History, action: Action) -> TokenIds:
        """What the same action brought when the episode last had it, and that the episode goes on."""
        observed = history
        while (acted := observed.parent) is not None and acted.parent is not None:
            if acted.value == action:
                return (*self._segment(observed)[1:], self._act)
            observed = acted.parent
        return ()

    async def _surprise(self, history: History, action: Action) -> float:
        """How unexpected the least expected of the actions was; 0 where nobody reads it."""
        return 0.0 if self._confidence is None else await self._surprises.lowest(history, action)

    def _read(self, begun: Sequence[int], completion: Completion, surprise: float) -> Prediction | None:
        """The prediction a completion stands for; ``None`` if it was cut or holds a stray control token."""
        *observation, stop = completion.token_ids or (None,)
        if stop not in (self._act, self._end) or self._codec.has_control(observation):
            return None
        text = self._codec.text((*begun, *observation))
        evidence = Evidence(completion.logprobs, surprise)
        confidence = evidence.sequence_probability if self._confidence is None else self._confidence(evidence)
        return Prediction(text, stop == self._end, confidence, self._source)
