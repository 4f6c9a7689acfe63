"""Somebody else's agent without asyncio: its model and its tool run in threads, and `turn` on a loop in another one."""

import time
from asyncio import to_thread

from obsspec_gym import EpisodeId, MemoryWorldModel, Speculator
from obsspec_gym.speculation.loop import LoopThread


def their_model(messages):
    time.sleep(0.2)
    return ("git status", "pytest -q", "git commit -am done", "submit")[len(messages) // 2]


def their_tool(command):
    return time.sleep(0.25) or {"git status": "1 file changed", "pytest -q": "3 passed"}.get(command, "")


async def policy(history, seed):
    return await to_thread(their_model, [str(event.value) for event in history])  # real, or one that may become so


async def begin(sample):
    step = speculator.start(EpisodeId("commit", sample), "Commit what works.")
    return step, await step


async def turn(step, action):
    observation, step = await speculator.turn(step.history, action, execute=to_thread(their_tool, action))
    return observation, step, await step


speculator, loop = Speculator(policy, MemoryWorldModel()), LoopThread()
for sample in range(2):  # what the first sample saw, the memory predicts for the second
    step, action = loop.run(begin(sample))
    while action != "submit":  # their loop: observation = their_tool(action); action = their_model(messages)
        observation, step, action = loop.run(turn(step, action))
        print(f"  {step.history.last_action} -> {observation!r}{', the next action begun ahead' if step.hit else ''}")
loop.run(speculator.close())
loop.close()
