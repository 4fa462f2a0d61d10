"""Records what a study was made with, and refuses to mix anything else into it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from safemargin.core.settings import Settings
from safemargin.engines.proof import Proof
from safemargin.environments import EnvironmentSpec, environment_identity
from safemargin.environments.simulator import Env
from safemargin.errors import StudyMismatch
from safemargin.policies.action_spaces import joint_actions
from safemargin.policies.base import Policy
from safemargin.policies.loading import LOADERS, NORMALIZED, normalized
from safemargin.policies.proxies import CRITIC_PROXIES
from safemargin.study.store import Store

PROOF = "proof"
"""The entry with the digest of the trial runs, made when a study is first collected."""


def describe_policy(policy: Policy, given: Any) -> dict[str, Any]:
    """Return the policy's entry in a study; `given` is what the user named it by."""
    return {
        "description": policy.description,
        "identity": policy.identity,
        "kind": policy.kind,
        "source": source_text(given) if isinstance(given, str | Path) else None,
    }


def source_text(given: str | Path) -> str:
    """Return what to load a policy or proxy from again: the text, with files by full path."""
    text = str(given)
    if text.startswith(f"{NORMALIZED}:"):
        _, statistics, policy = text.split(":", 2)
        file = Path(statistics)
        return str(
            normalized(source_text(policy), file.resolve() if file.is_file() else statistics)
        )
    left, colon, right = text.rpartition(":")
    # agent.onnx, file.py:name, sb3:ppo:model.zip
    for before, path, after in (
        ("", text, ""),
        ("", left, colon + right),
        (left + colon, right, ""),
    ):
        where, part = path, ""
        if before[:-1] in LOADERS:  # a folder, or a part of one: rllib:CHECKPOINT#MODULE
            where, mark, name = path.partition("#")
            where, part = str(Path(where).expanduser()), mark + name
        folder = before[:-1] in LOADERS and Path(where).is_dir()
        if path and (folder or Path(where).is_file()):
            return before + str(Path(where).resolve()) + part + after
    return text


def describe_environment(spec: EnvironmentSpec, policy: Policy) -> dict[str, Any]:
    """Return the environment's entry in a study.

    `first_action` is the number of the action that the first score belongs to; `joint_actions` are
    those that the scores belong to where an action has parts; `masked` is there where not all
    actions are always legal.
    """
    with spec.opened() as env:
        policy.check(env)
        space = env.action_space
        joint = joint_actions(space) if policy.kind in ("q", "logits") else None
        return (
            {
                "name": spec.name,
                "arguments": dict(spec.arguments),
                "spec": spec.to_json(),
                "identity": environment_identity(spec, env),
                "first_action": int(space.start) if isinstance(space, gym.spaces.Discrete) else 0,
            }
            | ({"joint_actions": joint} if joint else {})
            | ({"masked": True} if _has_masks(env) else {})
        )


def _has_masks(env: Env) -> bool:
    if env.has_wrapper_attr("action_masks"):
        return True
    _, info = env.reset(seed=0)
    return isinstance(info, dict) and info.get("action_mask") is not None


def refuse_mixing(store: Store, meta: Mapping[str, Any]) -> None:
    """Raise StudyMismatch if a study was made with parts other than those given now."""
    for part in ("environment", "policy"):
        theirs = store.meta(part)
        if theirs["identity"] != meta[part]["identity"]:
            raise StudyMismatch(
                f"the study in {store.folder} was made with another {part} "
                f"({theirs.get('name') or theirs.get('description')}, {theirs['identity'][:19]}…, "
                f"not {meta[part]['identity'][:19]}…); collect into another folder"
            )
    asked = meta.get("diagnosis", {}).get("asked_way")
    diagnosis = store.meta("diagnosis")
    if asked is not None and asked != diagnosis.get("asked_way"):
        raise StudyMismatch(
            f"the study in {store.folder} was not made with --way {asked} (it measures by "
            f"{diagnosis['way']}); leave --way as it was, or collect into another folder"
        )
    if "settings" in meta:
        made_with = Settings.from_mapping(store.meta("settings"))
        differences = made_with.differences(Settings.from_mapping(meta["settings"]))
        if differences:
            raise StudyMismatch(
                f"the study in {store.folder} was made with other settings "
                f"({'; '.join(differences)}); use the same, or collect into another folder"
            )
        recorded = store.meta("proxies")
        # A study made before the proxies of critics existed continues without them.
        known = [name for name in meta["proxies"] if name in recorded or name not in CRITIC_PROXIES]
        if known != recorded:
            raise StudyMismatch(
                f"the study in {store.folder} records the proxies {recorded}, not "
                f"{meta['proxies']}; use the same, or collect into another folder"
            )


def refuse_other_perturbation(store: Store, identity: str | None) -> None:
    """Raise StudyMismatch if the policy or function behind the mistakes is not the study's."""
    made_with = (store.meta("perturbation") or {}).get("identity")
    if identity != made_with:
        raise StudyMismatch(
            f"the study in {store.folder} was made with another perturbation: what "
            f"{store.settings().perturb!r} names has changed since; restore it, or collect into "
            "another folder"
        )


def refuse_other_reference(store: Store, identity: str | None) -> None:
    """Raise StudyMismatch if the policy that acts after the mistakes is not the study's."""
    if identity != (store.meta("reference") or {}).get("identity"):
        raise StudyMismatch(
            f"the study in {store.folder} was made with another reference: the policy that "
            f"{store.settings().reference!r} names has changed since; restore it, or collect into "
            "another folder"
        )


def keep_proof(store: Store, proof: Proof) -> None:
    """Store the proof, or raise StudyMismatch if the stored one differs."""
    ours, comparable = proof.digest(first_signal(store)), refuse_other_proof(store, proof)
    stored = store.meta(PROOF)
    if comparable:
        ours = {**stored, "signals": {**stored.get("signals", {}), **ours["signals"]}}
    if ours != stored and (not comparable or ours["signals"]):
        store.set_meta(PROOF, ours)


def first_signal(store: Store) -> str:
    """Return the signal that a study was made with, whichever one it is read about."""
    return store.measured_pairs()[0][1]


def refuse_other_proof(store: Store, proof: Proof) -> bool:
    """Raise StudyMismatch if the proof differs from the one that the study holds.

    Return whether it holds a comparable one: studies of earlier versions do not.
    """
    ours, theirs = proof.digest(first_signal(store)), store.meta(PROOF)
    if theirs is None or theirs["version"] != ours["version"]:
        return False
    common = ours["proxies"].keys() & theirs["proxies"].keys()  # a script may give others now
    differing = sorted(name for name in common if ours["proxies"][name] != theirs["proxies"][name])
    others = theirs.get("signals", {})
    changed = [
        name for name, hashed in ours["signals"].items() if others.get(name, hashed) != hashed
    ]
    if ours["runs"] != theirs["runs"] or differing or changed:
        what = "the environment or the policy"
        if ours["runs"] == theirs["runs"]:
            kind = "proxy" if differing else "signal"
            what = f"the {kind} {', '.join(map(repr, differing or changed))}"
        raise StudyMismatch(
            f"{what} behaves differently now than when the study in {store.folder} was made; check "
            "environment variables, the working folder, files and the versions of libraries, or "
            "collect into another folder"
        )
    return True
