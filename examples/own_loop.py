"""`Speculator.turn` in an agent loop of one's own: the loop stays, only the line that runs the tool changes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from obsspec_gym import EpisodeId, History, MemoryWorldModel, Outcome, Speculator

STEPS = ("ls", "cat *.txt | wc -w", "sleep 0.2; grep -l fox *.txt", "done")


async def think(history: History, seed: int) -> str:
    """Stands for a language model: takes a while, and answers from what it has read."""
    await asyncio.sleep(0.15)
    return STEPS[history.turn]


async def tool(command: str, directory: Path) -> Outcome:
    """The tool: a shell. `done` ends the episode."""
    if command == "done":
        return Outcome("", ends=True)
    shell = await asyncio.create_subprocess_shell(command, cwd=directory, stdout=asyncio.subprocess.PIPE)
    output, _ = await shell.communicate()
    await asyncio.sleep(0.2)  # the way to a sandbox that is elsewhere
    return Outcome(output.decode())


async def agent(speculator: Speculator, sample: int, directory: Path) -> list[str]:
    """One episode. Without speculation this would read: `action = await think(...); observation = await tool(...)`."""
    seen = []
    next_action = speculator.start(EpisodeId("find the fox", sample), "Which file has the fox?")
    while next_action is not None:
        action = await next_action
        foreseen = "foreseen" if next_action.hit else "waited for"
        observation, next_action = await speculator.turn(next_action.history, action, execute=tool(action, directory))
        seen.append(observation)
        print(f"  {action!r} ({foreseen}) -> {observation!r}")
    return seen


async def main(directory: Path) -> None:
    """The first sample fills the memory; for the second one the policy thinks while its tools run."""
    (directory / "a.txt").write_text("the lazy dog")
    (directory / "b.txt").write_text("the quick brown fox")
    speculator = Speculator(think, world_model=MemoryWorldModel())
    for sample in range(2):
        started = time.perf_counter()
        await agent(speculator, sample, directory)
        print(f"sample {sample}: {time.perf_counter() - started:.2f} s")
    await speculator.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
