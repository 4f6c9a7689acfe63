"""Somebody else's asyncio agent: where it awaited its tool it now awaits `turn`, and its model is asked ahead."""

import asyncio
import time

from obsspec_gym import EpisodeId, History, MemoryWorldModel, Speculator


async def llm(messages: list[str]) -> str:
    """Their model: a client of some server."""
    await asyncio.sleep(0.2)
    return ("git status", "pytest -q", "git commit -am done", "submit")[len(messages) // 2]


async def run_tool(command: str) -> str:
    """Their tool."""
    await asyncio.sleep(0.25)
    return {"git status": "1 file changed", "pytest -q": "3 passed"}.get(command, "")


async def policy(history: History, seed: int) -> str:
    """The adapter: their messages, from a history that is real or may become so."""
    return await llm([str(event.value) for event in history])


async def main() -> None:
    """Their loop, in which the line with `turn` was: observation = await run_tool(action)."""
    speculator = Speculator(policy, world_model=MemoryWorldModel())
    for sample in range(2):  # what the first sample saw, the memory predicts for the second
        started, step = time.perf_counter(), speculator.start(EpisodeId("commit", sample), "Commit what works.")
        while (action := await step) != "submit":
            observation, step = await speculator.turn(step.history, action, execute=run_tool(action))
            print(f"  {action} -> {observation!r}{', the next action begun ahead' if step.hit else ''}")
        speculator.end(EpisodeId("commit", sample))
        print(f"sample {sample}: {time.perf_counter() - started:.2f} s")
    await speculator.close()


asyncio.run(main())
