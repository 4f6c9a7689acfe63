"""Shell tasks in real sandboxes: the policy's next command is under way while the last one still runs."""

from __future__ import annotations

import gymnasium as gym

from obsspec_gym import FixedSelector, ObsSpecVectorEnv, load_policy, load_world_model

STEPS = 8

if __name__ == "__main__":
    terminals = gym.make_vec(
        "obsspec_gym/Terminal-v0",
        num_envs=4,
        suite="basics",
        latency="remote",  # as if the sandboxes were elsewhere; "none" for this machine's own pace
    )
    policy, world_model = load_policy(driver="process"), load_world_model(driver="process")
    envs = ObsSpecVectorEnv(terminals, policy, world_model, speculation=FixedSelector(depth=1, breadth=1))
    instructions, infos = envs.reset(seed=0)
    print(*instructions, sep="\n")

    episodes = solved = foreseen = 0
    for _ in range(STEPS):
        actions = envs.act()  # the speculated ones are (nearly) done, the rest start now
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        foreseen += int(infos["_next_action"].sum())
        episodes += int((terminated | truncated).sum())
        solved += int(rewards.sum())
        print(actions[0], "->", observations[0].splitlines()[-1])
    print(f"{solved} of {episodes} episodes solved; {foreseen} of {4 * STEPS} observations came as predicted")

    envs.close()
    policy.close()
    world_model.close()
