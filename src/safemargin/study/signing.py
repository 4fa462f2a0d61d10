"""Code runs only if the user named it: what a study names, signed with a key of the user's own.

A study travels, and its table `meta` says how to make its environment, policy and proxies again. So
what could run code is signed when the study is made, as notebooks are: on other machines, and after
any change to it, nothing of it runs until somebody says that they trust it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safemargin.environments import EnvironmentSpec
from safemargin.policies.proxies import PROXIES
from safemargin.study.store import Store

SIGNATURE = "signature"
"""The entry of the table `meta`."""

SIGNED = ("environment", "policy", "extra_proxies")
"""The entries that say how to make a study's parts again."""

KEY_BYTES = 32


def code_named(
    environment: EnvironmentSpec | None = None, policy: Any = None, proxies: Iterable[Any] = ()
) -> list[str]:
    """The code that making these parts would run; empty where they are plain.

    Plain are Gymnasium ids without a module, 'atari:GAME', 'zoo:NAME' and ONNX files (data).
    Whatever a loader takes for the name of a module or file, or unpickles, is code.
    """
    found: list[str] = []
    text = None if environment is None else environment.text
    if environment is not None and text and ":" in text and not text.startswith("atari:"):
        given = ", ".join(f"{name}={value!r}" for name, value in environment.arguments.items())
        found.append(f"{text}({given})")
    if isinstance(policy, str) and not policy.startswith("zoo:"):
        onnx = Path(policy).suffix.lower() == ".onnx" and not policy.startswith("sb3:")
        found += [] if onnx else [policy]
    named = [proxy for proxy in proxies if isinstance(proxy, str) and ":" in proxy]
    found += [proxy for proxy in named if proxy not in PROXIES]
    # Nothing may hide from whoever reads this on a terminal.
    return [text if text.isprintable() else repr(text) for text in found]


def code_in(meta: Mapping[str, Any]) -> list[str]:
    """The code that a study's entries name."""
    spec = meta["environment"]["spec"]
    environment = None if spec is None else EnvironmentSpec.from_json(spec)
    return code_named(environment, meta["policy"]["source"], meta["extra_proxies"])


def signature(meta: Mapping[str, Any]) -> str | None:
    """This user's signature under a study's entries; None where no code is named, or no key."""
    return _signed_with(_key(make=True), meta) if code_in(meta) else None


def is_signed(store: Store) -> bool:
    """Whether this user made the study, and nothing that could run code was changed since."""
    ours, theirs = _signed_with(_key(), _entries(store)), store.meta(SIGNATURE)
    if ours is None or not isinstance(theirs, str):
        return False
    return hmac.compare_digest(ours.encode(), theirs.encode())


def sign_again(store: Store, meta: Mapping[str, Any]) -> None:
    """What the user names now takes the place of code that the study names and nobody signed."""
    if code_in(_entries(store)) and not is_signed(store):
        for name in SIGNED:
            store.set_meta(name, meta[name])
        store.set_meta(SIGNATURE, signature(meta))


def _entries(store: Store) -> dict[str, Any]:
    return {name: store.meta(name) for name in SIGNED}


def _signed_with(key: bytes | None, meta: Mapping[str, Any]) -> str | None:
    if key is None:
        return None
    named = [meta["environment"]["spec"], meta["policy"]["source"], meta["extra_proxies"]]
    return hmac.new(key, json.dumps(named).encode(), hashlib.sha256).hexdigest()


def _key(*, make: bool = False) -> bytes | None:
    """The user's key; None where there is none, and none can be made."""
    try:
        path = _data_folder() / "safemargin" / "key"
        if make and not path.exists():
            _make_key(path)
        key = path.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: nobody knows the user's home
        return None
    return key if len(key) == KEY_BYTES else None  # anybody can sign with an empty one


def _make_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"key.{secrets.token_hex(8)}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        # Unlike a renamed file, a link never takes the place of a key that another process made.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _data_folder() -> Path:
    """Where programs keep what belongs to the user."""
    if os.environ.get("XDG_DATA_HOME"):
        return Path(os.environ["XDG_DATA_HOME"])
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path.home() / ".local" / "share"
