"""Play full games with a trained agent: python evaluate.py beam_rider weights.pt --games 100.

Weights of a checkpoint are rounded to half precision first: what is measured is what will ship.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from atari_training import Games, load_network
from export import export_onnx, round_to_half

Policy = Callable[[np.ndarray], np.ndarray]


def load_policy(path: Path, device: str = "cpu") -> tuple[Policy, str]:
    """Return the function from observations to logits or action values, and which it gives."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the games keep the other cores busy
        session = onnxruntime.InferenceSession(str(path), options)
        kind = session.get_modelmeta().custom_metadata_map["safemargin.kind"]
        return lambda images: session.run(None, {"observation": images})[0], kind
    network, _ = load_network(path)
    round_to_half(network)
    network = network.to(device)
    torch.backends.cudnn.allow_tf32 = False

    def policy(images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return network(torch.from_numpy(images).to(device)).float().cpu().numpy()

    return policy, network.kind


def play(
    game: str,
    policy: Policy,
    games: int,
    seed: int,
    choose: str,
    most_steps: int = 27_000,
    opening: int = 0,
) -> dict[str, object]:
    """Play the first game of each of `games` environments and sum up the scores.

    Games that begin with the same number of no-ops and take the same actions are the same game:
    "distinct_games" counts the different ones, at most 30 for a greedy agent.

    `choose` is "greedy", "sampled" (from the logits) or "epsilon" (greedy, 1 % random actions).
    Before that come 0 to `opening` random actions; they count, the lives they cost too.
    """
    group = Games(game, games, seed)
    generator = np.random.default_rng(seed)
    scores, lengths, life_return = np.zeros(games), np.zeros(games), np.zeros(games)
    playing = np.ones(games, bool)
    openings = generator.integers(opening + 1, size=games) if opening else np.zeros(games, int)
    traces = group.episode_frames.astype(np.uint64)
    life_returns: list[float] = []
    for step_number in range(most_steps):
        outputs = policy(group.observation)
        if choose == "sampled":
            outputs = outputs + generator.gumbel(size=outputs.shape)
        actions = outputs.argmax(1)
        if choose == "epsilon":
            random = generator.random(games) < 0.01
            actions[random] = generator.integers(0, outputs.shape[1], int(random.sum()))
        if step_number < opening:
            drawn = generator.integers(0, outputs.shape[1], games)
            actions = np.where(step_number < openings, drawn, actions)
        group.send(actions)
        step = group.receive()
        playing &= ~step.restarted
        scores += step.points * playing
        lengths += playing
        traces[playing] = traces[playing] * np.uint64(1_000_003) + actions[playing].astype(
            np.uint64
        )
        life_return += step.reward * playing
        ended = step.ended & playing
        life_returns.extend(life_return[ended].tolist())
        life_return[ended] = 0.0
        if not playing.any():
            break
    group.close()
    return {
        "game": game,
        "choose": choose,
        "games": games,
        "distinct_games": len(set(traces.tolist())),
        "unfinished": int(playing.sum()),
        "score_mean": float(scores.mean()),
        "score_sd": float(scores.std(ddof=1)) if games > 1 else 0.0,
        "score_min": float(scores.min()),
        "score_max": float(scores.max()),
        "clipped_return_per_life": float(np.mean(life_returns)) if life_returns else None,
        "steps_per_game": float(lengths.mean()),
    }


def main() -> None:
    """Read the command line, play and print; optionally export the network first."""
    parser = argparse.ArgumentParser(description="Play full games with a trained agent.")
    parser.add_argument("game")
    parser.add_argument("weights", type=Path, help="weights.pt of a checkpoint, or an ONNX file")
    parser.add_argument("--games", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most-steps", type=int, default=27_000)
    parser.add_argument(
        "--opening", type=int, default=0, help="up to this many random actions first (default 0)"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--export", type=Path, help="first write the network to this ONNX file")
    arguments = parser.parse_args()
    if arguments.export:
        network, _ = load_network(arguments.weights)
        export_onnx(network, arguments.export)
    results: list[dict[str, object]] = []
    if arguments.games:
        policy, kind = load_policy(arguments.weights, arguments.device)
        for choose in ("greedy", "sampled" if kind == "logits" else "epsilon"):
            results.append(
                play(
                    arguments.game,
                    policy,
                    arguments.games,
                    arguments.seed,
                    choose,
                    arguments.most_steps,
                    arguments.opening,
                )
            )
            print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
