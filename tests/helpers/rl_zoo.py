"""The files of a training run of rl-zoo3."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def write_run(
    folder: Path,
    environment: str,
    model: Any,
    *,
    statistics: Any = None,
    arguments: Mapping[str, Any] | None = None,
    hub: bool = False,
    **config: Any,
) -> Path:
    """Write the files that rl-zoo writes after a training, or those it shares on the Hub."""
    name = environment.replace("/", "-")
    records = folder if hub else folder / name
    records.mkdir(parents=True)
    model.save(folder / (f"ppo-{name}.zip" if hub else f"{name}.zip"))
    (records / "config.yml").write_text(yaml.dump(OrderedDict(sorted(config.items()))))
    called = OrderedDict(algo="ppo", env=environment, env_kwargs=arguments, gym_packages=[])
    (records / "args.yml").write_text(yaml.dump(called))
    if hub:
        (records / "env_kwargs.yml").write_text("{}\n")
    if statistics is not None:
        statistics.save(str(records / ("vec_normalize.pkl" if hub else "vecnormalize.pkl")))
    return folder
