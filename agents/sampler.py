"""A plain batched sampler for recording: one forward pass a token for many episodes, nothing kept between turns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import DynamicCache, Qwen3ForCausalLM

from obsspec_gym.agents.dialogue import ACT, END, OBS, PAD, TASK
from obsspec_gym.envs.tasks.family import Step


class Sampler:
    """Samples commands.

    Args:
        folder: A trained policy.
        seed: Of the randomness.
        temperature: 0 is greedy.
        max_tokens: Longest command.
    """

    def __init__(self, folder: Path, seed: int, temperature: float = 1.0, max_tokens: int = 64) -> None:
        torch.set_num_threads(1)
        # Renamed in transformers 5.40; the old name works in all versions that this project allows.
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        self._model = Qwen3ForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._control = {name: self._tokenizer.token_to_id(name) for name in (TASK, ACT, OBS, END, PAD)}
        self._generator = torch.Generator().manual_seed(seed)
        self._temperature = temperature
        self._max_tokens = max_tokens

    def commands(self, situations: Sequence[tuple[str, Sequence[Step]]]) -> list[str]:
        """One command for each pair of an instruction and what was done so far; NUL, which no shell takes, left out."""
        completions = self.complete([self._prompt(*situation) for situation in situations], [END])
        return [self._tokenizer.decode(ids).replace("\0", "") for ids, _ in completions]

    @torch.no_grad()
    def complete(self, prompts: Sequence[list[int]], stops: Sequence[str]) -> list[tuple[list[int], float]]:
        """Completions without their stop token, each with the log-probability of all its tokens, the stop included."""
        stop = torch.tensor([self._control[name] for name in stops])
        length = max(map(len, prompts))
        rows = [[self._control[PAD]] * (length - len(prompt)) + prompt for prompt in prompts]
        tokens = torch.tensor(rows)
        mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        drawn: list[list[int]] = [[] for _ in prompts]
        logprobs = [0.0] * len(prompts)
        open_rows = torch.ones(len(prompts), dtype=torch.bool)
        for _ in range(self._max_tokens):
            logits = self._model(
                input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
            ).logits[:, -1]
            choice, logprob = self._draw(logits)
            for row in torch.nonzero(open_rows).flatten().tolist():
                logprobs[row] += float(logprob[row])
                if choice[row] in stop:
                    open_rows[row] = False
                else:
                    drawn[row].append(int(choice[row]))
            if not open_rows.any():
                break
            tokens, positions = choice[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        return list(zip(drawn, logprobs, strict=True))

    def _draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.log_softmax(logits / (self._temperature or 1.0), dim=-1)
        if self._temperature == 0:
            choice = logprobs.argmax(-1)
        else:
            choice = torch.multinomial(logprobs.exp(), 1, generator=self._generator).flatten()
        return choice, logprobs.gather(1, choice[:, None]).flatten()

    def _prompt(self, instruction: str, transcript: Sequence[Step]) -> list[int]:
        control, plain = self._control, self._plain
        ids = [control[TASK], *plain(instruction), control[ACT]]
        for command, observation in transcript:
            ids += [*plain(command), control[END], control[OBS], *plain(observation), control[ACT]]
        return ids

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
