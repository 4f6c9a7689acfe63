"""How an episode is written down for a language model, and how its completions are read.

Two ways: :class:`CompactDialogue` here, whose completion *is* the command, and
:class:`~obsspec_gym.agents.tool_calls.ToolCallDialogue`, the tokenizer's own chat template with a ``bash`` tool.
Both only ever append: the tokens of an episode are its first segment, then completions exactly as they were
sampled, each followed by an increment that shows what came back.
"""

from __future__ import annotations

from typing import Protocol

from obsspec_gym.agents.tokens import TextCodec
from obsspec_gym.types import Action, MalformedCall, TokenIds

TASK, ACT, OBS, END, PAD = "<|task|>", "<|act|>", "<|obs|>", "<|end|>", "<|pad|>"
"""The control tokens of the compact dialogue."""

COMPACT_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'user' -%}<|task|>{{ message.content }}"
    "{%- elif message.role == 'assistant' and message.tool_calls -%}"
    "<|act|>{{ message.tool_calls[0].function.arguments.command }}<|end|>"
    "{%- elif message.role == 'assistant' -%}<|act|>{{ message.content }}<|end|>"
    "{%- elif message.role == 'tool' -%}<|obs|>{{ message.content }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|act|>{%- endif -%}"
)
"""The compact dialogue as a chat template: user, then assistant (call or bare command) and tool by turns."""


class Dialogue(Protocol):
    """A way to write an episode as tokens."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        ...

    def opening(self, instruction: str) -> TokenIds:
        """Everything up to where the first completion begins."""
        ...

    def increment(self, observation: str, closed: bool) -> TokenIds:
        """What follows a completion, up to where the next one begins.

        Args:
            observation: What came back.
            closed: Whether the completion ended its turn itself; if not (it was cut), the increment does.
        """
        ...

    def write(self, action: Action) -> TokenIds:
        """An action as the completion that stands for it."""
        ...

    def read(self, token_ids: TokenIds) -> Action:
        """The action a completion stands for, or a ``MalformedCall``; never raises."""
        ...


class CompactDialogue:
    """``<|task|>{instruction}<|act|>{command}<|end|><|obs|>{observation}<|act|>...``

    A completion is the command and ``<|end|>``. One that was cut before ``<|end|>`` is half a command, and running
    half a command does something nobody wanted: it is a ``MalformedCall``, and so is one with a control token or a
    NUL character in it.

    Args:
        codec: Encodes for a tokenizer that has the control tokens.

    Raises:
        InvalidArgumentError: If the tokenizer lacks one of them.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._task, self._act, self._obs, self._end = map(codec.control_id, (TASK, ACT, OBS, END))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """``<|end|>`` alone."""
        return (self._end,)

    def opening(self, instruction: str) -> TokenIds:
        """``<|task|>{instruction}<|act|>``."""
        return (self._task, *self._codec.plain(instruction), self._act)

    def increment(self, observation: str, closed: bool) -> TokenIds:
        """``<|obs|>{observation}<|act|>``, after ``<|end|>`` where the completion lacks it."""
        close = () if closed else (self._end,)
        return (*close, self._obs, *self._codec.plain(observation), self._act)

    def write(self, action: Action) -> TokenIds:
        """``{command}<|end|>``; a malformed call is written as it is read: without its end."""
        text = self._codec.plain(str(action))
        return text if isinstance(action, MalformedCall) else (*text, self._end)

    def read(self, token_ids: TokenIds) -> Action:
        """The text before ``<|end|>``."""
        command = token_ids[:-1] if token_ids[-1:] == (self._end,) else token_ids
        text = self._codec.text(command)
        whole = len(command) < len(token_ids) and not self._codec.has_control(command) and "\0" not in text
        return text if whole else MalformedCall(text)


def is_compact(codec: TextCodec) -> bool:
    """Whether a tokenizer is made for the compact dialogue."""
    return all(name in codec.control_ids for name in (TASK, ACT, OBS, END))
