"""Train a bundled agent of a JAX world (PPO in plain JAX, on the CPU) and export it to ONNX.

    python reproduction/train_jax.py minatar-breakout
    python reproduction/train_jax.py rocket
    python reproduction/train_jax.py rocket --check      # only measure the agent that ships

Needs jax, onnx, and pgx for minatar-breakout. A second run with the same versions on the same kind
of processor writes the same agent.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cards import write_card

from safemargin.environments.functional import FunctionalEnvironment
from safemargin.environments.functional.naming import functional_environment

ZOO = Path(__file__).parents[1] / "src/safemargin/policies/zoo"
ENVIRONMENTS = 64
STEPS_PER_UPDATE = 128
EPOCHS = 4
MINIBATCHES = 8
TRACE = 0.95
CLIP = 0.2
LARGEST_GRADIENT = 0.5
VALUE_WEIGHT = 0.5
CURVE_POINTS = 40
MACHINE = "two busy CPU cores"

Params = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """What differs between the agents."""

    environment: str
    steps: int
    hidden: tuple[int, ...]
    activation: str  # the name of an ONNX operator
    learning_rate: float
    discount: float
    entropy_weight: float
    seed: int
    actions: tuple[str, ...]
    score_note: str


RECIPES = {
    "minatar-breakout": Recipe(
        environment="jax:pgx:minatar-breakout",
        steps=10_000_000,
        hidden=(64, 64),
        activation="Relu",
        learning_rate=2.5e-3,
        discount=0.99,
        entropy_weight=0.01,
        seed=1,
        actions=("STAY", "LEFT", "RIGHT"),
        score_note="bricks in a whole game, greedy; one action in ten repeats the last one, as "
        "pgx's MinAtar does by default",
    ),
    "rocket": Recipe(
        environment="jax:safemargin:rocket",
        steps=2_000_000,
        hidden=(64, 64),
        activation="Tanh",
        learning_rate=1e-3,
        discount=0.99,
        entropy_weight=0.0,
        seed=1,
        actions=("THROTTLE", "TORQUE"),
        score_note="rewards of a whole flight, greedy: 10 for a landing, -10 for a crash, and how "
        "much nearer, slower and more upright it became",
    ),
}
ACTIVATIONS = {"Relu": jax.nn.relu, "Tanh": jnp.tanh}


# -- the network -------------------------------------------------------------------------------


def initial(recipe: Recipe, world: FunctionalEnvironment, key: Any) -> Params:
    """Orthogonal weights; small ones in the head, so that the first actions are even."""
    sizes = [int(np.prod(world.observation_space.shape)), *recipe.hidden]
    keys = jax.random.split(key, len(sizes) + 1)
    wide = jax.nn.initializers.orthogonal(2**0.5)
    params: Params = {
        f"layer{i}": {"w": wide(keys[i], (a, b)), "b": jnp.zeros(b)}
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    }
    outputs = actions_of(world)
    head, value = (jax.nn.initializers.orthogonal(gain) for gain in (0.01, 1.0))
    params["head"] = {"w": head(keys[-2], (sizes[-1], outputs)), "b": jnp.zeros(outputs)}
    params["value"] = {"w": value(keys[-1], (sizes[-1], 1)), "b": jnp.zeros(1)}
    if not discrete(world):
        params["log_std"] = jnp.full(outputs, -0.5)
    return params


def forward(recipe: Recipe, params: Params, observations: Any) -> tuple[Any, Any]:
    """Return (logits or means [batch, actions], values [batch])."""
    flow = observations.reshape(len(observations), -1).astype(jnp.float32)
    for i in range(len(recipe.hidden)):
        layer = params[f"layer{i}"]
        flow = ACTIVATIONS[recipe.activation](flow @ layer["w"] + layer["b"])
    head, value = params["head"], params["value"]
    return flow @ head["w"] + head["b"], (flow @ value["w"] + value["b"])[:, 0]


def discrete(world: FunctionalEnvironment) -> bool:
    return hasattr(world.action_space, "n")


def actions_of(world: FunctionalEnvironment) -> int:
    space: Any = world.action_space
    return int(space.n) if discrete(world) else int(np.prod(space.shape))


def sample(params: Params, scores: Any, key: Any) -> Any:
    """Draw an action for each row."""
    if "log_std" not in params:
        return jax.random.categorical(key, scores)
    return scores + jnp.exp(params["log_std"]) * jax.random.normal(key, scores.shape)


def log_probability(params: Params, scores: Any, actions: Any) -> tuple[Any, Any]:
    """Return the actions' log-probabilities and the entropies, [batch] each."""
    if "log_std" not in params:
        logs = jax.nn.log_softmax(scores)
        chosen = jnp.take_along_axis(logs, actions[:, None], 1)[:, 0]
        return chosen, -(jnp.exp(logs) * logs).sum(1)
    log_std = params["log_std"]
    distance = (actions - scores) / jnp.exp(log_std)
    logs = -0.5 * distance**2 - log_std - 0.5 * np.log(2 * np.pi)
    entropy = (log_std + 0.5 * np.log(2 * np.pi * np.e)).sum()
    return logs.sum(1), jnp.full(len(scores), entropy)


# -- training ----------------------------------------------------------------------------------


def train(recipe: Recipe, world: FunctionalEnvironment) -> Iterator[tuple[int, Params, float]]:
    """PPO; yields (steps so far, parameters, mean score of the games that ended) now and then."""
    updates = recipe.steps // (ENVIRONMENTS * STEPS_PER_UPDATE)
    key = jax.random.PRNGKey(recipe.seed)
    key, for_weights, for_games = jax.random.split(key, 3)
    params = initial(recipe, world, for_weights)
    zeros = jax.tree.map(jnp.zeros_like, params)
    states, seen = jax.vmap(world.reset)(jax.random.split(for_games, ENVIRONMENTS))
    scores = jnp.zeros(ENVIRONMENTS)
    carry = (params, zeros, zeros, jnp.int32(0), states, seen, scores, key)
    several = jax.jit(
        lambda carry: jax.lax.scan(
            functools.partial(update, recipe, world, updates), carry, None, length=10
        )
    )
    for done in range(10, updates + 1, 10):
        carry, (total, games) = several(carry)
        score = float(total.sum() / jnp.maximum(games.sum(), 1))
        yield done * ENVIRONMENTS * STEPS_PER_UPDATE, carry[0], score


def update(
    recipe: Recipe, world: FunctionalEnvironment, updates: int, carry: Any, _: Any
) -> tuple[Any, Any]:
    """Play some steps and learn from them."""
    params, first, second, count, states, seen, scores, key = carry
    key, for_play, for_order = jax.random.split(key, 3)
    play = functools.partial(play_step, recipe, world, params)
    keys = jax.random.split(for_play, STEPS_PER_UPDATE)
    (states, seen, scores), played = jax.lax.scan(play, (states, seen, scores), keys)
    _, last = forward(recipe, params, seen)
    advantages = estimate_advantages(recipe, played, last)
    batch = {
        "observation": played["observation"],
        "action": played["action"],
        "log": played["log"],
        "advantage": advantages,
        "return": advantages + played["value"],
    }
    batch = jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), batch)

    def learn(carry: Any, rows: Any) -> tuple[Any, None]:
        params, first, second, count = carry
        part = jax.tree.map(lambda array: array[rows], batch)
        gradient = jax.grad(functools.partial(loss, recipe))(params, part)
        size = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda g: g * jnp.minimum(1, LARGEST_GRADIENT / size), gradient)
        rate = recipe.learning_rate * (1 - count / (updates * EPOCHS * MINIBATCHES))
        return adam(params, first, second, count, gradient, rate), None

    rows = len(batch["log"])
    orders = jax.vmap(lambda key: jax.random.permutation(key, rows))(
        jax.random.split(for_order, EPOCHS)
    )
    learned, _ = jax.lax.scan(
        learn, (params, first, second, count), orders.reshape(EPOCHS * MINIBATCHES, -1)
    )
    ended = played["ended"].astype(jnp.float32)
    result = (played["score"] * ended).sum(), ended.sum()
    return (*learned, states, seen, scores, key), result


def play_step(
    recipe: Recipe, world: FunctionalEnvironment, params: Params, carry: Any, key: Any
) -> tuple[Any, Any]:
    """Take one step in every game; a game that ended begins anew."""
    states, seen, scores = carry
    for_action, for_step, for_reset = jax.random.split(key, 3)
    outputs, values = forward(recipe, params, seen)
    actions = sample(params, outputs, for_action)
    logs, _ = log_probability(params, outputs, actions)
    after, following, rewards, terminated, truncated = jax.vmap(world.step)(
        states, actions, jax.random.split(for_step, ENVIRONMENTS)
    )
    _, beyond = forward(recipe, params, following)
    ended = terminated | truncated
    scores = scores + rewards
    played = {
        "observation": seen,
        "action": actions,
        "log": logs,
        "value": values,
        "reward": rewards + recipe.discount * beyond * (truncated & ~terminated),
        "ended": ended,
        "score": scores,
    }
    fresh = jax.vmap(world.reset)(jax.random.split(for_reset, ENVIRONMENTS))

    def chosen(new: Any, old: Any) -> Any:
        return jnp.where(ended.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    states, seen = jax.tree.map(chosen, fresh, (after, following))
    return (states, seen, jnp.where(ended, 0, scores)), played


def estimate_advantages(recipe: Recipe, played: Any, last: Any) -> Any:
    """Generalised advantages [steps, environments]."""

    def back(carry: Any, step: Any) -> tuple[Any, Any]:
        trace, following = carry
        goes_on = 1 - step["ended"].astype(jnp.float32)
        surprise = step["reward"] + recipe.discount * following * goes_on - step["value"]
        trace = surprise + recipe.discount * TRACE * goes_on * trace
        return (trace, step["value"]), trace

    _, advantages = jax.lax.scan(back, (jnp.zeros_like(last), last), played, reverse=True)
    return advantages


def loss(recipe: Recipe, params: Params, part: Any) -> Any:
    """The clipped objective of PPO."""
    scores, values = forward(recipe, params, part["observation"])
    logs, entropy = log_probability(params, scores, part["action"])
    advantages = part["advantage"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = jnp.exp(logs - part["log"])
    gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantages)
    error = 0.5 * (values - part["return"]) ** 2
    return (VALUE_WEIGHT * error - gain - recipe.entropy_weight * entropy).mean()


def adam(params: Any, first: Any, second: Any, count: Any, gradient: Any, rate: Any) -> Any:
    """Return parameters and moments after one step of Adam."""
    count = count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, second, gradient)
    scale = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(
        lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, first, second
    )
    return params, first, second, count


# -- shipping ----------------------------------------------------------------------------------


def export(recipe: Recipe, params: Params, world: FunctionalEnvironment, path: Path) -> None:
    """Write an ONNX file: the observation in, logits or mean and log_std, and the value, out."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    space = world.observation_space
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(space.dtype))
    shape = ["batch", *space.shape]
    nodes, flow, weights = [], "observation", []
    if kind != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [flow], ["numbers"], to=TensorProto.FLOAT))
        flow = "numbers"
    if len(space.shape) > 1:
        nodes.append(helper.make_node("Flatten", [flow], ["flat"], axis=1))
        flow = "flat"

    def linear(name: str, flow: str, output: str) -> None:
        for part in "wb":
            array = np.asarray(params[name][part], np.float32)
            weights.append(numpy_helper.from_array(array, f"{name}.{part}"))
        nodes.append(helper.make_node("Gemm", [flow, f"{name}.w", f"{name}.b"], [output]))

    for i in range(len(recipe.hidden)):
        linear(f"layer{i}", flow, f"sum{i}")
        nodes.append(helper.make_node(recipe.activation, [f"sum{i}"], [f"hidden{i}"]))
        flow = f"hidden{i}"
    scores = "logits" if discrete(world) else "mean"
    linear("head", flow, scores)
    linear("value", flow, "value")
    outputs = [(scores, ["batch", actions_of(world)]), ("value", ["batch", 1])]
    if not discrete(world):
        weights.append(numpy_helper.from_array(np.asarray(params["log_std"]), "spread"))
        # The same for all observations, but with a row for each: 0 · mean + spread.
        weights.append(numpy_helper.from_array(np.zeros(1, np.float32), "nothing"))
        nodes.append(helper.make_node("Mul", ["mean", "nothing"], ["rows"]))
        nodes.append(helper.make_node("Add", ["rows", "spread"], ["log_std"]))
        outputs.append(("log_std", ["batch", actions_of(world)]))
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("observation", kind, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in outputs],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"safemargin.kind": "logits" if discrete(world) else "gaussian"})
    onnx.checker.check_model(model)
    onnx.save(model, path)


def play(recipe: Recipe, world: FunctionalEnvironment, path: Path, *, greedy: bool) -> Any:
    """Return scores and lengths of 100 games, from the file that ships, [100] each."""
    import onnx
    from onnx import numpy_helper

    parts = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    params: Params = {}
    for name, array in parts.items():
        layer, dot, part = name.partition(".")
        if dot:
            params.setdefault(layer, {})[part] = jnp.asarray(array)
    if "spread" in parts:
        params["log_std"] = jnp.asarray(parts["spread"])
    limit = 20_000

    def game(key: Any) -> Any:
        for_reset, for_steps = jax.random.split(key)
        state, seen = world.reset(for_reset)

        def going(carry: Any) -> Any:
            return ~carry[3] & (carry[4] < limit)

        def one(carry: Any) -> Any:
            state, seen, score, _, steps = carry
            for_action, for_step = jax.random.split(jax.random.fold_in(for_steps, steps))
            outputs, _ = forward(recipe, params, seen[None])
            best = outputs.argmax(1) if discrete(world) else outputs
            action = (best if greedy else sample(params, outputs, for_action))[0]
            state, seen, reward, terminated, truncated = world.step(state, action, for_step)
            return state, seen, score + reward, terminated | truncated, steps + 1

        start = (state, seen, jnp.float32(0), jnp.bool_(False), jnp.int32(0))
        _, _, score, _, steps = jax.lax.while_loop(going, one, start)
        return score, steps

    keys = jax.random.split(jax.random.PRNGKey(10_000), 100)
    return tuple(np.asarray(each) for each in jax.jit(jax.vmap(game))(keys))


def measured(recipe: Recipe, world: FunctionalEnvironment, path: Path) -> dict[str, Any]:
    """Return what greedy and sampled games of the file that ships come to."""
    evaluation = {}
    for way in ("greedy", "sampled"):
        scores, lengths = play(recipe, world, path, greedy=way == "greedy")
        evaluation[way] = {
            "games": len(scores),
            "mean": round(float(scores.mean()), 2),
            "sd": round(float(scores.std(ddof=1)), 2),
            "min": round(float(scores.min()), 2),
            "max": round(float(scores.max()), 2),
            "steps_per_game": round(float(lengths.mean()), 1),
        }
        print(way, evaluation[way])
    return evaluation


def card_of(
    name: str,
    world: FunctionalEnvironment,
    path: Path,
    evaluation: dict[str, Any],
    curve: list[tuple[int, float]],
    seconds: float,
) -> dict[str, Any]:
    """Return all that `safemargin zoo show` prints about an agent."""
    recipe, content = RECIPES[name], path.read_bytes()
    space: Any = world.observation_space
    chosen = np.unique(np.linspace(0, len(curve) - 1, CURVE_POINTS).round().astype(int))
    points = [curve[number] for number in chosen]
    greedy = evaluation["greedy"]
    return {
        "name": name,
        "environment": recipe.environment,
        "algorithm": "PPO",
        "network": f"{'-'.join(map(str, recipe.hidden))} {recipe.activation.lower()}, "
        "policy and value heads on one trunk",
        "observation": f"{space.dtype} {list(space.shape)}",
        "actions": list(recipe.actions),
        "kind": "logits" if discrete(world) else "gaussian",
        "mean_score": greedy["mean"],
        "score_sd": greedy["sd"],
        "games": greedy["games"],
        "score_note": recipe.score_note,
        "evaluation": evaluation,
        "command": f"python reproduction/train_jax.py {name}",
        "seed": recipe.seed,
        "steps": points[-1][0],
        "wall_seconds": round(seconds),
        "machine": MACHINE,
        "size_bytes": len(content),
        "identity": "sha256:" + hashlib.sha256(content).hexdigest(),
        "curve": {
            "steps": [step for step, _ in points],
            "score": [round(score, 2) for _, score in points],
            "resumed_at": [],
        },
    }


def main() -> None:
    """Read the command line, train and ship."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("--output", type=Path, help="default: the bundled file")
    parser.add_argument("--check", action="store_true", help="measure the agent, train nothing")
    arguments = parser.parse_args()
    recipe = RECIPES[arguments.name]
    path = arguments.output or ZOO / f"{arguments.name}.onnx"
    world = functional_environment(recipe.environment.removeprefix("jax:"))
    if arguments.check:
        measured(recipe, world, path)
        return
    began, curve = time.perf_counter(), []
    for steps, params, score in train(recipe, world):  # noqa: B007
        seconds = time.perf_counter() - began
        curve.append((steps, score))
        print(f"{steps:>10,} steps  {seconds:6.0f} s  score {score:.2f}", flush=True)
    export(recipe, params, world, path)
    card = card_of(arguments.name, world, path, measured(recipe, world, path), curve, seconds)
    write_card(card, path.with_suffix(".json"))


if __name__ == "__main__":
    main()
