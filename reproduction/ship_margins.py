"""Put learned margins beside the bundled agents: python reproduction/ship_margins.py [AGENT …]

The proxy is learned from the lessons beside the stored studies (lessons.npz), and the bound is
fitted to its values at moments whose plays the models have not seen; `safemargin learn` and
`safemargin fit` make the same of any study. Run learned.py first: the cards quote its results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cards import write_card
from learned import CONFIDENCE, FILE, JUDGES, LESSONS_FILE, STUDIES, TOLERANCES, Stored, part_widths
from ship import ZOO
from stored import Refused, StoredStudy, read_json

import safemargin as sm
from safemargin.core.version import __version__
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.fitting import margins_from_sample
from safemargin.margins.learned.choosing import choose, make_probe
from safemargin.margins.learned.probe import LEARNED
from safemargin.policies.features import LAGS

COMMAND = "python reproduction/ship_margins.py"


def ship(agent: str) -> Path:
    """Write an agent's margins, and what they are into its card."""
    stored = Stored.of(agent)
    about = StoredStudy(STUDIES / agent).about
    card_file = ZOO / f"{agent}.json"
    card = json.loads(card_file.read_text(encoding="utf-8"))
    policy = about["policy"]
    if policy["identity"] != card["identity"]:
        raise Refused(f"the stored study of {agent} is about another network than the bundled one")
    lessons, natural = stored.lessons, stored.natural
    own = ~lessons.labels
    choice = choose(lessons, natural, stored.n_values, JUDGES[0])
    counts = {
        "natural": int(natural.sum()),
        "spread": int((own & ~natural).sum()),
        "labels": int(lessons.labels.sum()),
    }
    probe = make_probe(
        choice.recipe,
        choice.model,
        choice.distances[natural],
        kind=policy["kind"],
        policy=policy["identity"],
        hidden_width=part_widths(agent, lessons.inputs.shape[1])["hidden"] // len(LAGS),
        **counts,
    )
    environment = about["environment"]
    margins = margins_from_sample(
        Sample.from_arrays(
            choice.values[own],
            lessons.losses[own],
            stored.n_values,
            natural=natural[own],
            groups=lessons.groups[own],
        ),
        CONFIDENCE,
        natural_proxies=choice.values[natural],
        about={
            "proxy": LEARNED,
            "environment": {name: environment[name] for name in ("name", "identity", "arguments")},
            "policy": {name: policy[name] for name in ("description", "identity", "kind")},
            "settings": about["settings"],
            "counts": counts,
            "probe": probe,
            "created_by": f"{COMMAND} {agent}, safemargin {__version__}",
        },
    )
    path = ZOO / "margins" / f"{agent}.json"
    path.parent.mkdir(exist_ok=True)
    margins.save(path)
    judged = read_json(STUDIES / agent / FILE, "results", "perfect")
    rows = judged["results"]["learned, bound"]
    card["margins"] = {
        "proxy": f"learned ({choice.recipe})",
        "confidence": CONFIDENCE,
        "moments": counts,
        "mean_margin": {  # at each tolerance, on unseen plays, and that of perfect knowledge
            f"{tolerance:g}": [row["mean_margin"], perfect]
            for tolerance, row, perfect in zip(TOLERANCES, rows, judged["perfect"], strict=True)
        },
        "command": f"{COMMAND} {agent}",
    }
    write_card(card, card_file)
    return path


def main() -> int:
    """Ship the margins of the agents that are named, or of all whose lessons are stored."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("agents", nargs="*", help="default: all whose lessons are stored")
    options = parser.parse_args()
    stored = sorted(path.parent.name for path in STUDIES.glob(f"*/{LESSONS_FILE}"))
    try:
        for agent in options.agents or stored:
            path = ship(agent)
            print(f"{path}  {path.stat().st_size:,} bytes")
    except (Refused, sm.SafemarginError) as error:
        print(f"ship_margins.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
