"""The dialogue in a tokenizer's own chat template, with a ``bash`` tool that is called in the Hermes format.

A completion calls the tool by ``<tool_call>{"name": "bash", "arguments": {"command": ...}}</tool_call>``, the format
that Qwen3's template teaches. What the template writes around observations is learnt once, by rendering a
conversation of placeholders, and must only ever append.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from obsspec_gym.agents.tokens import TextCodec, Tokenizer
from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import Action, MalformedCall, TokenIds

BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command in the shell and returns what it printed, its exit status and the directory.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
"""The only tool there is, as a JSON schema."""

SYSTEM_PROMPT = (
    "You solve a task in a Linux shell. Call the bash tool, one command a turn. When the task is done, call it with "
    "the command `submit`, or with `submit TEXT` to hand in TEXT as the answer."
)
"""What a chat model is told unless the user says otherwise."""

# Placeholders: letters and digits only, which no template escapes, trims or splits.
_INSTRUCTION, _OBSERVATION = "Zq0instruction0qZ", "Zq1observation1qZ"
_COMMAND, _COMMAND_END = "Zq2command2qZ", "Zq3end3qZ"

_CALL = re.compile(r"<tool_call>\s*")
_CALL_END = re.compile(r"\s*(</tool_call>|$)")


class ToolCallDialogue:
    """An episode as a conversation: system, user (the task), assistant (a tool call), tool (its result), ...

    Args:
        tokenizer: Has a chat template that appends: what it has written for a conversation does not change when
            messages follow.
        codec: Encodes for it.
        system_prompt: The system message; ``None`` for :data:`SYSTEM_PROMPT`, empty for none.
        template_arguments: Passed on to the template, ``{"enable_thinking": False}`` say.

    Raises:
        InvalidArgumentError: If there is no template, or it does not work in that way.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        codec: TextCodec,
        *,
        system_prompt: str | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if tokenizer.chat_template is None:
            raise InvalidArgumentError("the tokenizer has no chat template, and none of the compact dialogue's tokens")
        self._tokenizer = tokenizer
        self._codec = codec
        self._arguments = dict(template_arguments or {})
        prompt = SYSTEM_PROMPT if system_prompt is None else system_prompt
        system = [{"role": "system", "content": prompt}] if prompt else []
        self._first = [*system, {"role": "user", "content": _INSTRUCTION}]
        self._learn()
        if self.read(self.write("ls -a")) != "ls -a":
            raise InvalidArgumentError(
                "the chat template writes tool calls in another format than <tool_call>{JSON}</tool_call>, "
                "which is the one that can be read back"
            )

    def _learn(self) -> None:
        """Takes the template's writing apart: what surrounds an instruction, a call and an observation."""
        bare = self._render(self._first, generation_prompt=False)
        opening = self._render(self._first)
        one = self._render([*self._first, *self._turn(_COMMAND)])
        two = self._render([*self._first, *self._turn(_COMMAND), *self._turn(_COMMAND)])
        prompt, turn = opening[len(bare) :], one[len(bare) :]
        if not (opening == bare + prompt and one == bare + turn and two == one.removesuffix(prompt) + turn):
            raise InvalidArgumentError("the chat template rewrites what it wrote: it must only append")
        self._call_begins = len(bare) + len(_header(turn, prompt))
        call, after = _split(one[self._call_begins :], _OBSERVATION)
        rest = _split(call, _COMMAND)[1]
        eos = self._tokenizer.eos_token
        end = eos if eos is not None and eos in rest else self._codec.first_special(rest)
        if end is None:
            raise InvalidArgumentError("the chat template ends an assistant's message with no special token")
        self._end_name, self._end = end, self._codec.control_id(end)
        self._before_instruction, self._after_instruction = _split(opening, _INSTRUCTION)
        self._before_observation, self._after_observation = rest.split(end, 1)[1], after

    def _turn(self, command: str) -> list[dict[str, Any]]:
        call = {"type": "function", "function": {"name": "bash", "arguments": {"command": command}}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "bash", "content": _OBSERVATION},
        ]

    def _render(self, messages: list[dict[str, Any]], generation_prompt: bool = True) -> str:
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=[BASH_TOOL], add_generation_prompt=generation_prompt, tokenize=False, **self._arguments
            )
        except TemplateError as error:
            raise InvalidArgumentError(f"the chat template refuses a conversation with tool calls: {error}") from error
        return str(text)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The special token with which the template ends an assistant message (``<|im_end|>``)."""
        return (self._end,)

    def opening(self, instruction: str) -> TokenIds:
        """System message, tool, the task, and the header of the first completion."""
        return self._codec.surrounded(self._before_instruction, instruction, self._after_instruction)

    def increment(self, observation: str, closed: bool) -> TokenIds:
        """The end of the assistant's turn as far as it is missing, the tool's message, the next header."""
        close = "" if closed else self._end_name
        return self._codec.surrounded(close + self._before_observation, observation, self._after_observation)

    def write(self, action: Action) -> TokenIds:
        """The tool call as the template writes it; for a malformed call its mere text. Then the end of the turn."""
        if isinstance(action, MalformedCall):
            return (*self._codec.plain(action), self._end)
        whole = self._render([*self._first, *self._turn(f"{_COMMAND}{action}{_COMMAND_END}")])
        before, rest = whole[self._call_begins :].split(_COMMAND, 1)
        command, rest = rest.split(_COMMAND_END, 1)
        return self._codec.surrounded(before, command, rest.split(self._end_name, 1)[0] + self._end_name)

    def read(self, token_ids: TokenIds) -> Action:
        """The command of the completion's one tool call; thoughts and words around it are left aside."""
        text = self._codec.text(token_ids[:-1] if token_ids[-1:] == (self._end,) else token_ids)
        command = read_call(text)
        return MalformedCall(text) if command is None else command


def read_call(text: str) -> str | None:
    """The command of the one ``bash`` call in a completion's text.

    Returns:
        The command; ``None`` where no call, more than one call, or no valid call is found: broken JSON, another
        tool's name, arguments other than one text ``command``, a NUL character, or a thought that never ended.

    Example:
        >>> read_call('I look. <tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>')
        'ls'
    """
    said = text.rpartition("</think>")[2]
    calls = list(_CALL.finditer(said))
    if len(calls) != 1 or "<think>" in said[: calls[0].start()]:
        return None
    try:
        # Models write line breaks into JSON strings; strict=False reads them.
        call, length = json.JSONDecoder(strict=False).raw_decode(said[calls[0].end() :])
    except (ValueError, RecursionError):
        return None
    if _CALL_END.match(said, calls[0].end() + length) is None:
        return None
    if not isinstance(call, dict) or call.get("name") != "bash":
        return None
    arguments = call.get("arguments")
    if not isinstance(arguments, dict) or set(arguments) != {"command"}:
        return None
    command = arguments["command"]
    return command if isinstance(command, str) and "\0" not in command else None


def _header(turn: str, prompt: str) -> str:
    """What a turn writes before the assistant's own words: the generation prompt as far as the turn repeats it.

    With thinking off, say, the prompt goes on to close the thinking, which the turn does not have: both then agree
    up to a line's end.
    """
    if turn.startswith(prompt):
        return prompt
    same = next(i for i, (left, right) in enumerate(zip(turn, prompt, strict=False)) if left != right)
    return prompt[: prompt.rfind("\n", 0, same) + 1]


def _split(text: str, placeholder: str) -> tuple[str, str]:
    before, *after = text.split(placeholder)
    if len(after) != 1:
        what = {_INSTRUCTION: "the user's message", _COMMAND: "a tool call's command", _OBSERVATION: "a tool's message"}
        raise InvalidArgumentError(
            f"the chat template must write {what[placeholder]} once and unchanged, and writes it so {len(after)} times"
        )
    return before, after[0]
