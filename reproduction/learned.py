"""What learned proxies grant the paper's agents, by nested cross-validation by play.

    python reproduction/learned.py                    # all agents: tables, and learned.json each
    python reproduction/learned.py pong-a3c --gather runs/pong-a3c

The lessons (what the agent's network made of each moment, and the losses there) lie beside the
stored studies as lessons.npz; --gather takes them from a study on disk, with its labels if it has
any. Model, recipe and bound are then fitted without each fifth of the plays in turn, and judged on
that fifth.
"""

from __future__ import annotations

import argparse
import dataclasses
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from stored import Refused, StoredStudy

import safemargin as sm
from safemargin.core.records import Floats
from safemargin.margins.bounds.sample import Sample
from safemargin.margins.learned.choosing import mean_margin, values_for_fold
from safemargin.margins.learned.crossfit import Lessons
from safemargin.study.lessons import read_material
from safemargin.validation.heldout import HeldOut, hold_out

STUDIES = Path(__file__).parent / "studies"
LESSONS_FILE, FILE = "lessons.npz", "learned.json"
TOLERANCES = (0.25, 0.5, 1.0)
CONFIDENCE = 0.95


def gather(study_folder: Path, target: Path) -> None:
    """Write the lessons of a study on disk, whose moments have features."""
    with sm.Study.open(study_folder) as study:
        material = read_material(study.store, study.settings)
        lessons = material.lessons
        proxy = np.full(len(lessons), np.nan)
        proxy[material.own] = study.tuples().proxies
        keys = [(*each.game_keys, each.life) for each in material.keys]
        found = Stored(lessons, material.natural, proxy, material.n_values)
        found.write(target, np.column_stack([keys, study.tuples().steps]))


def pack(inputs: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Round inputs [moments, inputs] to four bits after the leading one, and compress them."""
    bits = inputs.astype(np.float16).view(np.uint16).astype(np.uint32)
    short = ((bits + 32) >> 6).astype(np.uint16)
    return np.frombuffer(lzma.compress(np.ascontiguousarray(short.T).tobytes(), preset=1), np.uint8)


def unpack(packed: npt.NDArray[np.uint8], moments: int) -> npt.NDArray[np.float32]:
    """Return inputs, [moments, inputs]."""
    short = np.frombuffer(lzma.decompress(packed.tobytes()), np.uint16)
    return (short << 6).reshape(-1, moments).T.view(np.float16).astype(np.float32, order="C")


@dataclasses.dataclass(frozen=True, eq=False)
class Stored:
    """The lessons of one agent."""

    lessons: Lessons
    natural: np.ndarray  # [lessons] of booleans
    proxy: Floats  # [lessons] the paper's; NaN for labels
    n_values: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> Stored:
        """Read lessons.npz; Refused if it is missing or damaged."""
        try:
            with np.load(path) as stored:
                inputs = unpack(stored["inputs"], len(stored["losses"]))
                lessons = Lessons(inputs, stored["losses"], stored["groups"], stored["kin"])
                n_values = tuple(stored["n_values"].tolist())
                return cls(lessons, stored["natural"], stored["proxy"], n_values)
        except (OSError, KeyError, ValueError, lzma.LZMAError) as error:
            raise Refused(
                f"{path} is missing or damaged ({error}); make it with --gather"
            ) from error

    def write(self, path: Path, keys: npt.NDArray[np.int64]) -> None:
        """Write lessons.npz; the keys are phase, game, life and step of the study's moments."""
        lessons = self.lessons
        np.savez_compressed(
            path,
            inputs=pack(lessons.inputs),
            losses=lessons.losses,
            groups=lessons.groups,
            kin=lessons.kin,
            natural=self.natural,
            proxy=self.proxy,
            n_values=np.array(self.n_values),
            keys=keys,
        )

    def judge(self) -> dict[str, Any]:
        """Judge both promises with the paper's proxy and with a learned one."""
        lessons, natural = self.lessons, self.natural
        own = np.flatnonzero(natural)
        known: dict[bytes, Floats] = {}

        def relearn(seen: np.ndarray) -> Floats:
            """Return the natural moments' values by models that know only those seen."""
            if seen.tobytes() not in known:
                whole = ~lessons.labels
                whole[own[~seen]] = False
                whole &= lessons.apart_from(np.isin(np.arange(len(whole)), own[~seen]))
                values = values_for_fold(
                    lessons, natural, self.n_values, whole, tolerances=TOLERANCES
                )
                known[seen.tobytes()] = values[natural]
            return known[seen.tobytes()]

        sample = Sample.from_arrays(
            self.proxy[natural],
            lessons.losses[natural],
            self.n_values,
            groups=lessons.groups[natural],
        )
        results: dict[str, list[dict[str, Any]]] = {}
        for name, learner in (("paper", None), ("learned", relearn)):
            options: dict[str, Any] = {"confidence": CONFIDENCE, "relearn": learner}
            bound = hold_out(sample, method="calibrated", **options)
            results[f"{name}, bound"] = [_row(bound, each) for each in TOLERANCES]
            results[f"{name}, margin"] = [
                _row(hold_out(sample, method="granted", tolerances=(each,), **options), each)
                for each in TOLERANCES
            ]
        return {
            "natural_moments": int(natural.sum()),
            "other_moments": int((~natural & ~lessons.labels).sum()),
            "labels": int(lessons.labels.sum()),
            "plays": len(np.unique(lessons.groups[natural])),
            "confidence": CONFIDENCE,
            "tolerances": list(TOLERANCES),
            "perfect": [mean_margin(sample.losses, self.n_values, each) for each in TOLERANCES],
            "results": results,
        }


def _row(judged: HeldOut, tolerance: float) -> dict[str, Any]:
    """Return the mean margin and what failed at one tolerance, in all and by granted value."""
    margins, failed = judged.margins(tolerance), judged.chain_failures(tolerance)
    return {
        "mean_margin": float(margins.mean()),
        "failed": int(failed.sum()),
        "granted": int((margins > 0).sum()),
        "by_value": {
            str(n): [int(failed[margins == n].sum()), int((margins == n).sum())]
            for n in judged.sample.n_values
        },
    }


def show(agent: str, found: dict[str, Any]) -> None:
    """Print the table of one agent."""
    print(
        f"\n{agent}: {found['natural_moments']} natural moments on {found['plays']} plays, "
        f"{found['other_moments']} others and {found['labels']} labels to learn from"
    )
    columns = "".join(f"  ζ = {tolerance:<18g}" for tolerance in found["tolerances"])
    print(f"{'mean margin (failed of granted)':34}{columns}")
    for name, rows in found["results"].items():
        cells = [
            f"{row['mean_margin']:5.1f} ({row['failed']:3} of {row['granted']:3}, "
            f"{row['failed'] / max(row['granted'], 1):4.1%})"
            for row in rows
        ]
        print(f"{name:34}" + "".join(f"  {cell:22}" for cell in cells))
    perfect = "".join(f"  {each:5.1f}{'':17}" for each in found["perfect"])
    print(f"{'perfect knowledge':34}{perfect}")


def main() -> int:
    """Judge the agents that are named, or all whose lessons are stored."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("agents", nargs="*", help="default: all whose lessons are stored")
    parser.add_argument("--gather", type=Path, metavar="STUDY", help="take the lessons of a study")
    options = parser.parse_args()
    stored = sorted(path.parent.name for path in STUDIES.glob(f"*/{LESSONS_FILE}"))
    agents = options.agents or stored
    try:
        if options.gather is not None:
            if len(agents) != 1:
                raise Refused("--gather takes the lessons of one agent; name it")
            gather(options.gather, STUDIES / agents[0] / LESSONS_FILE)
        for agent in agents:
            found = Stored.read(STUDIES / agent / LESSONS_FILE).judge()
            StoredStudy(STUDIES / agent).put_beside(FILE, found)
            show(agent, found)
    except (Refused, sm.SafemarginError) as error:
        print(f"learned.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
