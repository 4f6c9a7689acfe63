"""The commands and their options. What goes wrong becomes one sentence on stderr and an exit status."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

import obsspec_gym
from obsspec_gym.cli import INTERRUPTED, image, suite
from obsspec_gym.errors import InvalidArgumentError, MissingExtraError, ObsSpecError, SandboxUnavailableError

app = typer.Typer(
    name="obsspec",
    help="Observation speculation for tool-using agents: the policy thinks while the tool runs.",
    add_completion=False,
    rich_markup_mode=None,
)
app.add_typer(image.app, name="image")
app.add_typer(suite.app, name="suite")

Suite = Annotated[str, typer.Option(help="Where tasks come from, such as basics or basics/tests.")]
Policy = Annotated[str, typer.Option(help="shipped, a model directory, or expert (the suite's scripted one).")]
WorldModelName = Annotated[
    str, typer.Option(help="cascade (memory, then the shipped model), memory, shipped, a directory, memory+DIR, none.")
]
Episodes = Annotated[int, typer.Option(min=1, help="How many episodes in all.")]
Envs = Annotated[int, typer.Option(min=1, help="How many run at once.")]
Depth = Annotated[int, typer.Option(min=0, help="Observations to speculate ahead; 0 for none.")]
Breadth = Annotated[int, typer.Option(min=1, help="Alternative observations at each level.")]
Adaptive = Annotated[bool, typer.Option("--adaptive", help="Decide turn by turn, up to that depth and breadth.")]
Latency = Annotated[str, typer.Option(help="Delay added to commands: none, remote, or lognormal:MEDIAN,SIGMA.")]
Sandbox = Annotated[str, typer.Option(help="bubblewrap, docker, or local (no isolation).")]
Seed = Annotated[int, typer.Option(min=0, help="Which tasks, and which completions.")]
Temperature = Annotated[float, typer.Option(min=0, help="Of the policy's sampling; 0 is greedy.")]
Think = Annotated[float, typer.Option(min=0, help="Seconds an expert pretends to think.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest completion, in tokens.")]
Pace = Annotated[
    float, typer.Option(min=0, help="Seconds a decoding step of the policy takes at least: the pace of a larger model.")
]
Engine = Annotated[
    str,
    typer.Option(help="What the policy's model runs on: transformers, vllm, or servers' URLs, with commas between."),
]
WorldModelEngine = Annotated[str, typer.Option(help="What the world model's runs on.")]
Group = Annotated[int, typer.Option(min=1, help="How many episodes share a task.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]


@app.callback(invoke_without_command=True)
def obsspec(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Says what there is."""
    if version:
        print(obsspec_gym.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    envs: Envs = 8,
    episodes: Episodes = 16,
    group: Group = 4,
    suite: Suite = "basics",
    latency: Latency = "remote",
    sandbox: Sandbox = "bubblewrap",
    policy: Policy = "shipped",
    world_model: WorldModelName = "cascade",
    depth: Depth = 1,
    breadth: Breadth = 1,
    adaptive: Adaptive = False,
    temperature: Temperature = 1.0,
    think: Think = 0.3,
    max_tokens: MaxTokens = 128,
    pace: Pace = 0.02,
    out: Path = Path("runs/demo"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Solve shell tasks sequentially, speculatively, and with an oracle.

    By default with the delays of a remote sandbox and a policy at the pace of a larger model, where speculation is
    for: a tiny model that writes a dozen tokens beside a local command has nothing worth hiding (see for yourself
    with --latency none --pace 0).
    """
    from obsspec_gym.cli.demo import Demo
    from obsspec_gym.cli.workload import Workload
    from obsspec_gym.speculation.agents import Agents

    workload = Workload.of(
        suite, episodes=episodes, group=group, num_envs=envs, sandbox=sandbox, latency=latency, seed=seed
    )
    agents = Agents(
        policy,
        world_model,
        workload.suite,
        workload.tasks,
        temperature=temperature,
        think=think,
        max_tokens=max_tokens,
        pace=pace,
    )
    if not agents.predicts or depth < 1:
        raise InvalidArgumentError("the demo compares with speculation: it needs a world model and depth >= 1")
    _print(Demo(workload, agents, lambda: _selector(depth, breadth, adaptive), out, pace).run(), as_json)


@app.command()
def rollout(
    suite: Suite = "basics",
    policy: Policy = "shipped",
    world_model: WorldModelName = "cascade",
    episodes: Episodes = 8,
    group: Group = 1,
    envs: Envs = 4,
    depth: Depth = 1,
    breadth: Breadth = 1,
    adaptive: Adaptive = False,
    latency: Latency = "none",
    sandbox: Sandbox = "bubblewrap",
    temperature: Temperature = 1.0,
    think: Think = 0.0,
    max_tokens: MaxTokens = 128,
    pace: Pace = 0.0,
    engine: Engine = "transformers",
    world_model_engine: WorldModelEngine = "transformers",
    out: Path = Path("runs/rollout"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run episodes; write trajectories, a trace and the measures."""
    from obsspec_gym.cli.rollout import Rollout
    from obsspec_gym.cli.workload import Workload
    from obsspec_gym.speculation.agents import Agents

    workload = Workload.of(
        suite, episodes=episodes, group=group, num_envs=envs, sandbox=sandbox, latency=latency, seed=seed
    )
    agents = Agents(
        policy,
        world_model,
        workload.suite,
        workload.tasks,
        temperature=temperature,
        think=think,
        max_tokens=max_tokens,
        pace=pace,
        engine=engine,
        world_model_engine=world_model_engine,
    )
    _print(Rollout(workload, agents, _selector(depth, breadth, adaptive), out).run(), as_json)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="A YAML file, such as training/cpu.yaml.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Replace an option, as key=value: grpo.learning_rate=1e-4.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show everything, and load nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    as_json: Json = False,
) -> None:
    """Train a policy with GRPO, as a configuration says."""
    from obsspec_gym.cli.train import run_training

    _print(run_training(config, settings or [], dry_run=dry_run, resume=resume), as_json)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Which measurement.")],
    full: Annotated[bool, typer.Option("--full", help="The larger size, not the one of five minutes.")] = False,
    turns: Annotated[int | None, typer.Option(min=1, help="How many turns.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="How many repeats.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any other option of it, as key=value.")] = None,
    as_json: Json = False,
) -> None:
    """Measure one thing about this project."""
    from obsspec_gym.cli.bench import read_options, run_benchmark

    options = read_options(settings or [], turns=turns, repeats=repeats)
    _print(run_benchmark(name, full=full, options=options, echo=not as_json), as_json)


@app.command()
def simulate(
    profile: Annotated[str, typer.Option(help="paper-8b, paper-32b, or trace:FILE of a run.")] = "paper-8b",
    match_rate: Annotated[float | None, typer.Option(min=0, max=1, help="How often a prediction is right.")] = None,
    prediction_latency: Annotated[float | None, typer.Option(min=0, help="Seconds of a prediction.")] = None,
    depth: Depth = 1,
    breadth: Breadth = 1,
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Choose up to that depth and breadth.")] = False,
    rollouts: Annotated[int | None, typer.Option(min=1, help="Episodes in all; default 4 x --envs.")] = None,
    envs: Annotated[int | None, typer.Option(min=1, help="Episodes at a time; default the profile's.")] = None,
    seed: Seed = 0,
    sensitivity: Annotated[bool, typer.Option(help="Show what hangs on each assumed parameter.")] = True,
    as_json: Json = False,
) -> None:
    """Say what speculation would bring to a workload, on the virtual clock."""
    from obsspec_gym.cli.simulate import run_simulation

    result = run_simulation(
        profile,
        match_rate=match_rate,
        prediction_seconds=prediction_latency,
        depth=depth,
        breadth=breadth,
        adaptive=adaptive,
        rollouts=rollouts,
        envs=envs,
        seed=seed,
        sensitivity=sensitivity,
        echo=not as_json,
    )
    _print(result, as_json)


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="What rollout or demo wrote: a .perfetto.json file.")],
    out: Annotated[Path | None, typer.Option(help="Draw a picture (PNG) there, too.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes are drawn.")] = 4,
    as_json: Json = False,
) -> None:
    """Say what a run's trace shows; ui.perfetto.dev opens the file itself."""
    from obsspec_gym.cli.trace import show_trace

    _print(show_trace(file, out, episodes), as_json)


@app.command()
def doctor(
    clean: Annotated[bool, typer.Option("--clean", help="First remove what killed runs left on Docker.")] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can do, and what adds the rest."""
    from obsspec_gym.cli import doctor_docker
    from obsspec_gym.cli.doctor import examine, report

    for removed in doctor_docker.clean() if clean else []:
        print(f"removed {removed}")
    _print(report(examine()), as_json)


def run(arguments: Sequence[str] | None) -> int:
    """Runs the command line; returns the exit status. A Ctrl-C is raised."""
    with _orderly_ends():
        try:
            status = app(args=arguments, prog_name="obsspec", standalone_mode=False)
        except TyperException as error:
            return _refuse(error.format_message())
        except (InvalidArgumentError, MissingExtraError, SandboxUnavailableError) as error:
            return _refuse(str(error))
        except ObsSpecError as error:
            print(f"obsspec: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        if status == INTERRUPTED:  # typer's answer to a KeyboardInterrupt
            raise KeyboardInterrupt
        return int(status or 0)


@contextmanager
def _orderly_ends() -> Iterator[None]:
    """Whoever asks the process to end, by whichever signal, gets the same orderly end as by Ctrl-C.

    Also where the shell had SIGINT ignored, as shells do with what they run in the background.
    """
    handlers: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: _like_ctrl_c,
        signal.SIGHUP: _like_ctrl_c,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse(sentence: str) -> int:
    print(f"obsspec: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


def _like_ctrl_c(number: int, frame: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def _selector(depth: int, breadth: int, adaptive: bool) -> Any:
    from obsspec_gym.speculation.adaptive import AdaptiveSelector
    from obsspec_gym.speculation.selector import FixedSelector

    return AdaptiveSelector(depth, breadth) if adaptive and depth else FixedSelector(depth, breadth)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, ensure_ascii=False), flush=True)
