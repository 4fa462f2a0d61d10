"""Put a trained Atari agent into the package: python ship.py runs/agents/pong-a3c pong-a3c.

Writes the agent's ONNX file and its card into src/safemargin/policies/zoo, and its training curve
into docs/images. Before that, `evaluate.py` must have played its games. Needs what the trainers
need, and safemargin with its extra `atari`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from atari_training import (
    CURVE_FILE,
    FRAME_SKIP,
    WEIGHTS_FILE,
    ActorCritic,
    DuelingQ,
    load_network,
)
from cards import write_card
from export import export_onnx

from safemargin.environments.atari import make_atari
from safemargin.policies import Policy, load_policy

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "src/safemargin/policies/zoo"
PICTURES = ROOT / "docs/images"
EVALUATION_FILE = "evaluation.json"
CURVE_POINTS = 100
ALGORITHMS = {
    "logits": "actor-critic, GAE, clipped updates (A3C family)",
    "q": "double dueling Q, prioritised replay (APE-X)",
}
NETWORKS = {
    "logits": "Nature CNN: 3 convolutions, 512 hidden units",
    "q": "Nature CNN with dueling streams: 3 convolutions, twice 512 hidden units",
}
PLAY_IN_TRAINING = {
    "logits": "sampled actions",
    "q": "every game with its own share of random actions, 0.07 % to 40 %",
}
TRAINERS = {"logits": "train_a3c.py", "q": "train_apex.py"}
MACHINE = "one H200 GPU, 16 cores"


# -- the half-precision weights against the float32 network ------------------------------------


def compare_with_float32(
    network: ActorCritic | DuelingQ, policy: Policy, game: str, *, observations: int, seed: int
) -> dict[str, Any]:
    """Play with the shipped policy and ask the float32 network at every step what it would do.

    Games are played greedily and, every other one, with sampled actions (for Q values: with a
    random action at one step of 20), so that the observations are many different ones.
    """
    env = make_atari(game)
    generator = np.random.default_rng(seed)
    seen, ours = [], []
    others: list[float] = []
    change = 0.0
    number = steps = 0
    observation, _ = env.reset(seed=seed)
    while steps < observations:
        scores = policy.scores(observation[None])[0][0]
        seen.append(observation)
        ours.append(scores)
        steps += 1
        if len(seen) == 250 or steps == observations:
            with torch.no_grad():
                exact = network(torch.from_numpy(np.array(seen))).numpy()  # [250, actions]
            mine = np.array(ours).argmax(axis=1)
            gaps = exact.max(axis=1) - exact[np.arange(len(mine)), mine]
            others += gaps[exact.argmax(axis=1) != mine].tolist()
            change = max(change, float(np.abs(np.array(ours) - exact).max()))
            seen, ours = [], []
        action = int(scores.argmax())
        if number % 2 and policy.kind == "logits":
            action = int((scores + generator.gumbel(size=scores.shape)).argmax())
        elif number % 2 and generator.random() < 0.05:
            action = int(generator.integers(len(scores)))
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            goes_on = env.get_wrapper_attr("game_goes_on")
            number += not goes_on
            observation, _ = env.reset(seed=None if goes_on else seed + number)
    return {
        "observations": steps,
        "other_greedy_actions": len(others),
        "largest_gap_of_these": _rounded(max(others, default=0.0)),
        "largest_change_of_a_score": _rounded(change),
    }


# -- the card ----------------------------------------------------------------------------------


def read_curve(path: Path) -> dict[str, list[Any]]:
    """Return score and clipped return per life by step (at most 100 points), and resumptions."""
    with path.open(newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    known = [row for row in rows if not math.isnan(row["return_per_life"])]
    # A resumed run has seen no end of a life yet: that is how it shows in the file.
    resumed = [
        int(row["steps"])
        for before, row in itertools.pairwise(rows)
        if math.isnan(row["return_per_life"]) and not math.isnan(before["return_per_life"])
    ]
    chosen = np.unique(np.linspace(0, len(known) - 1, CURVE_POINTS).round().astype(int))
    points = [known[number] for number in chosen] if known else []
    return {
        "steps": [int(row["steps"]) for row in points],
        "score": [None if math.isnan(row["game_score"]) else row["game_score"] for row in points],
        "return_per_life": [row["return_per_life"] for row in points],
        "resumed_at": resumed,
    }


def read_evaluation(path: Path) -> dict[str, dict[str, Any]]:
    """Return what `evaluate.py` wrote, by the way actions were chosen."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: evaluate.py GAME WEIGHTS --json {path} writes it")
    return {
        result["choose"]: {
            "games": result["games"],
            "distinct_games": result.get("distinct_games"),
            "mean": round(result["score_mean"], 2),
            "sd": round(result["score_sd"], 2),
            "min": result["score_min"],
            "max": result["score_max"],
            "clipped_return_per_life": round(result["clipped_return_per_life"], 2),
            "steps_per_game": round(result["steps_per_game"], 1),
        }
        for result in json.loads(path.read_text())
    }


def make_card(
    name: str,
    progress: dict[str, Any],
    policy: Policy,
    file: Path,
    *,
    evaluation: dict[str, dict[str, Any]],
    curve: dict[str, list[Any]],
    comparison: dict[str, Any],
    command: str,
    machine: str,
    notes: list[str],
) -> dict[str, Any]:
    """Return all that is known about an agent, as `safemargin zoo show` prints it."""
    env = make_atari(progress["game"])
    greedy = evaluation["greedy"]
    distinct = greedy["distinct_games"] or "at most 30"
    content = file.read_bytes()
    return {
        "name": name,
        "environment": f"atari:{progress['game']}",
        "algorithm": ALGORITHMS[policy.kind],
        "network": NETWORKS[policy.kind],
        "observation": "uint8 [4, 84, 84]",
        "actions": env.unwrapped.get_action_meanings(),
        "kind": policy.kind,
        "mean_score": greedy["mean"],
        "score_sd": greedy["sd"],
        "games": greedy["games"],
        "score_note": "the score of whole games in the game's own points, greedy; only the 1 to "
        f"30 no-ops at the start vary, so these games are {distinct} distinct ones",
        "evaluation": evaluation,
        "command": command,
        "pieces": [
            {"first_step": piece["first_step"], "command": piece["command"]}
            for piece in progress.get("pieces", [])
        ],
        "seed": progress["seed"],
        "steps": progress["steps"],
        "frames": progress["steps"] * FRAME_SKIP,
        "wall_seconds": round(progress["seconds"]),
        "machine": machine,
        "weights": "half precision on disk, computed in float32",
        "half_precision": comparison,
        "size_bytes": len(content),
        "identity": "sha256:" + hashlib.sha256(content).hexdigest(),
        "notes": notes,
        "curve": curve,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


# -- the picture -------------------------------------------------------------------------------


def draw_curve(card: dict[str, Any], path: Path) -> None:
    """The training curve of a card: game score, and return per life where it is another number."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    curve = card["curve"]
    # Where training was resumed the means begin anew: the line is broken there.
    places = np.searchsorted(curve["steps"], curve["resumed_at"])
    millions = np.insert(np.array(curve["steps"], dtype=float), places, np.nan) / 1e6
    scores = np.insert(np.array(curve["score"], dtype=float), places, np.nan)
    lives = np.insert(np.array(curve["return_per_life"], dtype=float), places, np.nan)
    panels = [("game score (points)", scores, card["mean_score"])]
    if not np.allclose(scores, lives, atol=0.2, equal_nan=True):
        greedy = card["evaluation"]["greedy"]["clipped_return_per_life"]
        panels.append(("clipped return per life", lives, greedy))
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(7, 1 + 2.7 * len(panels)), sharex=True, squeeze=False
    )
    for axis, (label, values, final) in zip(axes[:, 0], panels, strict=True):
        axis.plot(millions, values, marker=".", markersize=4, linewidth=1, label="in training")
        axis.axhline(
            final,
            color="tab:green",
            linewidth=1,
            linestyle="--",
            label=f"{card['games']} greedy games at the end",
        )
        axis.set_ylabel(label)
        axis.margins(y=0.1)
        axis.grid(alpha=0.3)
        for number, step in enumerate(curve["resumed_at"]):
            axis.axvline(
                step / 1e6,
                color="grey",
                linewidth=1,
                linestyle=":",
                label=None if number else "resumed",
            )
    top, bottom = axes[0, 0], axes[-1, 0]
    top.legend(loc="best", fontsize=8)
    top.set_title(f"Training of {card['name']} on {card['environment']}", fontsize=10)
    bottom.set_xlabel(f"steps of the agent (millions; 1 step = {FRAME_SKIP} frames)")
    way = PLAY_IN_TRAINING[card["kind"]]
    footnote = f"In training: {way};\nmean over the games or lives that ended last"
    if curve["resumed_at"]:
        footnote += "; after a resume it begins anew, with the shortest ones"
    figure.text(
        0.012,
        0.01,
        footnote + ".",
        fontsize=8,
        color="dimgrey",
    )
    figure.tight_layout(rect=(0, 0.045 + 0.045 / len(panels), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


# -- all together ------------------------------------------------------------------------------


def ship(
    directory: Path,
    name: str,
    *,
    evaluation: Path,
    notes: list[str],
    observations: int,
    machine: str = MACHINE,
    zoo: Path = ZOO,
    pictures: Path = PICTURES,
) -> dict[str, Any]:
    """Export, compare, describe and draw one agent; gives its card."""
    results = read_evaluation(evaluation)
    network, progress = load_network(directory / WEIGHTS_FILE)
    file = zoo / f"{name}.onnx"
    export_onnx(network, file)
    policy = load_policy(file)
    if "mean_of" in progress:
        states = " and ".join(f"{steps:,}" for steps in progress["mean_of"])
        notes = [f"The weights are the mean of the states at steps {states}.", *notes]
    pieces = progress.get("pieces")
    command = (
        pieces[-1]["command"]
        if pieces
        else f"python reproduction/{TRAINERS[network.kind]} {progress['game']} --out {directory} "
        f"--steps {progress['planned_steps']} --seed {progress['seed']}"
    )
    card = make_card(
        name,
        progress,
        policy,
        file,
        evaluation=results,
        curve=read_curve(directory / CURVE_FILE),
        comparison=compare_with_float32(
            network, policy, progress["game"], observations=observations, seed=7
        ),
        command=command,
        machine=machine,
        notes=notes,
    )
    write_card(card, zoo / f"{name}.json")
    draw_curve(card, pictures / f"training-{name}.png")
    return card


def main() -> None:
    """Read the command line and ship."""
    parser = argparse.ArgumentParser(description="Put a trained Atari agent into the package.")
    parser.add_argument("directory", type=Path, help="folder of the checkpoint")
    parser.add_argument("name", help="of the agent, for example pong-apex")
    parser.add_argument("--evaluation", type=Path, help="default: evaluation.json in the folder")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the card")
    parser.add_argument("--machine", default=MACHINE, help=f"that trained it (default {MACHINE})")
    parser.add_argument(
        "--observations", type=int, default=20_000, help="to compare with float32 (default 20000)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    card = ship(
        arguments.directory,
        arguments.name,
        evaluation=arguments.evaluation or arguments.directory / EVALUATION_FILE,
        notes=arguments.note,
        observations=arguments.observations,
        machine=arguments.machine,
    )
    print(json.dumps({name: value for name, value in card.items() if name != "curve"}, indent=2))


if __name__ == "__main__":
    main()
