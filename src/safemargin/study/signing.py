"""Code runs only if the user named it: what a study names is signed with the user's own key.

A study travels, and its table `meta` says how to make its environment, policy and proxies again. So
everything that could run code is signed when the study is made, as notebooks are. On other
machines, and after any change, none of it runs until somebody says that they trust it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from safemargin.core.measured import RANDOM, parse_perturbation, parse_reference
from safemargin.environments import EnvironmentSpec
from safemargin.policies.proxies import PROXIES
from safemargin.study.store import Store

SIGNATURE = "signature"
"""The entry of the table `meta` that holds the signature."""

SIGNED = ("environment", "policy", "extra_proxies")
"""The entries that say how to make a study's parts again."""

MORE = "more"
"""The entry with the other mistakes and losses that a study measures."""

KEY_BYTES = 32


def code_named(
    environment: EnvironmentSpec | None = None,
    policy: Any = None,
    proxies: Iterable[Any] = (),
    perturb: str = RANDOM,
) -> list[str]:
    """Return the code that making these parts would run; empty if they are plain.

    Gymnasium ids without a module and 'atari:GAME' are plain if all their arguments are numbers or
    booleans: a text may name a file (`xml_file`) or worse. 'zoo:NAME' and ONNX files (data) are
    plain. Whatever a loader imports by name or path, or unpickles, is code.
    """
    found: list[str] = []
    text = None if environment is None else environment.text
    if environment is not None and text:
        plain = ":" not in text or text.startswith("atari:")
        if not plain or not all(map(_is_number, environment.arguments.values())):
            given = ", ".join(f"{name}={value!r}" for name, value in environment.arguments.items())
            found.append(f"{text}({given})")
    mistakes = parse_perturbation(perturb)
    for one in (policy, mistakes.argument if mistakes.kind == "policy" else None):
        if isinstance(one, str) and not one.startswith("zoo:"):
            onnx = Path(one).suffix.lower() == ".onnx" and not one.startswith("sb3:")
            found += [] if onnx else [one]
    found += [perturb] if mistakes.kind == "own" else []
    named = [proxy for proxy in proxies if isinstance(proxy, str) and ":" in proxy]
    found += [proxy for proxy in named if proxy not in PROXIES]
    # Control characters must not hide anything from whoever reads this on a terminal.
    return [text if text.isprintable() else repr(text) for text in found]


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def code_in(meta: Mapping[str, Any]) -> list[str]:
    """Return the code that a study's entries name."""
    spec = meta["environment"]["spec"]
    environment = None if spec is None else EnvironmentSpec.from_json(spec)
    found = code_named(environment, meta["policy"]["source"], meta["extra_proxies"])
    found += code_named(policy=reference_code(meta["settings"]))
    for perturb in _perturbations(meta):
        found += [code for code in code_named(perturb=perturb) if code not in found]
    return found


def reference_code(settings: Mapping[str, Any]) -> str | None:
    """Return the policy that settings name as reference; None if there is none."""
    text = settings.get("reference")
    return text if text is not None and parse_reference(str(text)).kind == "policy" else None


def _perturbations(meta: Mapping[str, Any]) -> list[str]:
    first = str(meta["settings"].get("perturb", RANDOM))
    return [first, *(each["perturb"] for each in meta.get(MORE) or ())]


def signature(meta: Mapping[str, Any]) -> str | None:
    """Return this user's signature of a study's entries; None if they name no code, or no key."""
    return _signed_with(user_key(make=True), meta) if code_in(meta) else None


def is_signed(store: Store) -> bool:
    """Return whether this user made the study, and nothing that could run code has changed."""
    ours, theirs = _signed_with(user_key(), _entries(store)), store.meta(SIGNATURE)
    if ours is None or not isinstance(theirs, str):
        return False
    return hmac.compare_digest(ours.encode(), theirs.encode())


def sign_again(store: Store, meta: Mapping[str, Any]) -> None:
    """Replace code that the study names without a valid signature by what the user named now."""
    if code_in(_entries(store)) and not is_signed(store):
        for name in SIGNED:
            store.set_meta(name, meta[name])
        store.set_meta(SIGNATURE, signature(meta))


@contextlib.contextmanager
def kept_signed(store: Store) -> Iterator[None]:
    """Sign what the user adds to a study within the block, if all before it was theirs or plain."""
    theirs = is_signed(store) or not code_in(_entries(store))
    yield
    if theirs:
        store.set_meta(SIGNATURE, signature(_entries(store)))


def _entries(store: Store) -> dict[str, Any]:
    pairs = store.measured_pairs()
    settings = {**store.meta("settings"), "perturb": pairs[0][0]}
    more = [{"perturb": perturb, "signal": signal} for perturb, signal in pairs[1:]]
    return {**{name: store.meta(name) for name in SIGNED}, "settings": settings, MORE: more}


def _signed_with(key: bytes | None, meta: Mapping[str, Any]) -> str | None:
    if key is None:
        return None
    named = [meta["environment"]["spec"], meta["policy"]["source"], meta["extra_proxies"]]
    # Other perturbations name no code.
    named += [perturb for perturb in _perturbations(meta) if code_named(perturb=perturb)]
    reference = reference_code(meta["settings"])
    named += [{"reference": reference}] if code_named(policy=reference) else []
    return hmac.new(key, json.dumps(named).encode(), hashlib.sha256).hexdigest()


def user_key(*, make: bool = False) -> bytes | None:
    """Return the user's key; None if there is none, or none can be made."""
    try:
        # A folder that still begins with ~ has no home to be in: expanduser raises RuntimeError.
        path = user_data_path("safemargin", appauthor=False).expanduser() / "key"
        if make and not path.exists():
            _make_key(path)
        key = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    return key if len(key) == KEY_BYTES else None  # anybody can sign with an empty one


def _make_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"key.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        # Unlike renaming, linking never replaces a key that another process made.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
