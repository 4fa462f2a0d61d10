"""CleanRL's `.cleanrl_model` files, which hold weights, with the networks that its scripts make.

The network is recognised by the names and shapes of the weights: `ppo`, `ppo_atari`, `dqn` and
`dqn_atari` of the PyTorch scripts, `dqn_jax`, `dqn_atari_jax` and `ppo_atari_envpool_xla_jax` of
the Flax scripts. Nothing in these files is unpickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safemargin.errors import InvalidInput
from safemargin.policies.base import Policy
from safemargin.policies.checks import same_kind

CHANGED = (
    "if the script was changed, write a function that builds its network, loads the weights "
    "(torch.load(…, weights_only=True)) and returns it, and name it as 'file.py:function'"
)


def load_cleanrl(text: str, **options: Any) -> Policy:
    """Return the policy in a file that a script of CleanRL saved with `--save-model`."""
    if "normalize" in options:
        raise InvalidInput(
            f"policy cleanrl:{text}: VecNormalize statistics belong to Stable-Baselines3 models; "
            "put the normalisation into the environment"
        )
    path = Path(text).expanduser()
    if not path.is_file():
        raise InvalidInput(f"policy cleanrl:{text}: there is no such file")
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    if zipped:
        from safemargin.policies.libraries.cleanrl_torch import read_torch
        from safemargin.policies.torch import TorchPolicy

        script, kind, network = read_torch(path)
        asked = options.pop("kind", None)
        options["kind"] = same_kind(kind, asked, f"cleanrl:{path}")
        return TorchPolicy(network, **options, description=f"cleanrl:{path} ({script})")
    from safemargin.policies.libraries.cleanrl_flax import read_flax

    return read_flax(path, **options)


def refuse_weights(path: Path, names: Any) -> InvalidInput:
    """Return the error for weights that belong to none of the known networks."""
    shown = ", ".join(list(map(str, names))[:6])
    if any(str(name).startswith("actor_mean") for name in names):
        return InvalidInput(
            f"policy cleanrl:{path}: an agent of ppo_continuous_action saw observations normalised "
            "by statistics that CleanRL does not save, so that it cannot be played as in training; "
            "write a function that makes its environment and one that makes its network"
        )
    return InvalidInput(
        f"policy cleanrl:{path}: the weights ({shown}, …) do not fit the network of ppo, "
        f"ppo_atari, dqn, dqn_atari or their Flax scripts; {CHANGED}"
    )
