"""Text into token ids such that nothing somebody else wrote can forge a control token."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from obsspec_gym.errors import InvalidArgumentError
from obsspec_gym.types import TokenIds

KEPT_TEXTS, KEPT_CHARACTERS = 2048, 1024
"""How many texts, and how long at most, a codec remembers the tokens of: 20 MB at worst, a token a character."""


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Token id to ``AddedToken(content, special, ...)``."""
        ...

    @property
    def eos_token(self) -> str | None:
        """The text of the token that ends a turn."""
        ...

    @property
    def chat_template(self) -> Any:
        """The Jinja template of conversations; ``None`` where there is none."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to token ids; added tokens in the text are recognised."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """Token ids to text."""
        ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]],
        add_generation_prompt: bool,
        tokenize: bool,
        **kwargs: Any,
    ) -> Any:
        """Renders a conversation; to ``str`` with ``tokenize=False``."""
        ...


class TextCodec:
    """Encodes trusted text (templates) and plain text (everything that a tool, a user or a model wrote).

    In plain text the names of control tokens are only letters: ``<|im_end|>`` in the output of a command becomes
    the tokens of its characters. Control tokens are the tokenizer's special tokens and every other added token
    that is not mere white space (``<tool_call>``, ``<think>``).

    The tokens of plain text are remembered: what a tool prints has often been predicted word for word, and the members
    of a group read and type much the same. A tokenizer that is changed needs a new codec.

    Args:
        tokenizer: A Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = {i: token for i, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}
        self._control_ids = {token.content: i for i, token in added.items()}
        self._special = frozenset(token.content for token in added.values() if token.special)
        self._forbidden = frozenset(added)
        # Longest first, so that a name which begins with another's is found whole.
        names = sorted(self._control_ids, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) if names else r"(?!)")
        self._remembered = functools.lru_cache(KEPT_TEXTS)(self._encoded)

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Every control token's text and id."""
        return self._control_ids

    def control_id(self, name: str) -> int:
        """The id of a control token.

        Raises:
            InvalidArgumentError: If the tokenizer has no such token.
        """
        if name not in self._control_ids:
            raise InvalidArgumentError(f"the tokenizer has no token {name!r}: it has {sorted(self._control_ids)}")
        return self._control_ids[name]

    def template(self, text: str) -> TokenIds:
        """Trusted text: control tokens are recognised."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def plain(self, text: str) -> TokenIds:
        """Text that somebody else wrote: no control token comes out of it."""
        return self._remembered(text) if len(text) <= KEPT_CHARACTERS else self._encoded(text)

    def _encoded(self, text: str) -> TokenIds:
        text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates have no tokens
        ids: list[int] = []
        for piece in self._harmless(text):
            ids += self._tokenizer.encode(piece, add_special_tokens=False)
        if self._forbidden.isdisjoint(ids):
            return tuple(ids)
        # A normaliser made a name out of other characters: letter by letter there is no name.
        letters = [self._tokenizer.encode(letter, add_special_tokens=False) for letter in text]
        return tuple(i for letter in letters for i in letter)

    def surrounded(self, before: str, text: str, after: str) -> TokenIds:
        """Plain text within trusted text, joined as the tokenizer would join the whole.

        A tokenizer may merge the end of ``before`` with the beginning of ``text``; it never merges across control
        tokens. So what stands between the last control token before and the first one after is encoded at once.
        """
        head, lead = self._split_after_last_name(before)
        tail = self._names.search(after)
        cut = tail.start() if tail else len(after)
        return (*self.template(head), *self.plain(lead + text + after[:cut]), *self.template(after[cut:]))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, control tokens by their names; never raises for what a model wrote."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def first_special(self, text: str) -> str | None:
        """The first *special* token named in a text; ``None`` if there is none."""
        for match in self._names.finditer(text):
            if match.group() in self._special:
                return match.group()
        return None

    def has_control(self, token_ids: Sequence[int]) -> bool:
        """Whether any of the tokens is a control token."""
        return not self._forbidden.isdisjoint(token_ids)

    def _harmless(self, text: str) -> list[str]:
        """The text in pieces, none of which contains a control token's name: each is cut after its first letter."""
        pieces: list[str] = []
        begin = 0
        while (match := self._names.search(text, begin)) is not None:
            pieces.append(text[begin : match.start() + 1])
            begin = match.start() + 1
        return [*pieces, text[begin:]]

    def _split_after_last_name(self, text: str) -> tuple[str, str]:
        end = 0
        for match in self._names.finditer(text):
            end = match.end()
        return text[:end], text[end:]
