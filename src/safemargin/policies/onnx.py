"""Policies in ONNX files, run by onnxruntime in a single thread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, PolicyFault, describe_error, errors_as
from safemargin.policies.base import Features, Memory, Observations, ScoreKind, checked_kind
from safemargin.policies.batching import BatchedPolicy, batch_size, checked_fixed_batch
from safemargin.policies.checks import check_by_probe, check_observation_space
from safemargin.policies.identity import file_identity
from safemargin.policies.onnx_graph import hidden_tensors, with_outputs

KIND_KEY = "safemargin.kind"
"""The metadata entry of an ONNX file that says what its scores mean."""

MEMORY_SUFFIX = "_out"
"""An input `x` whose new value comes out as `x_out` is a recurrent state."""

_OUTPUTS_BY_KIND: dict[ScoreKind, tuple[str, ...]] = {
    "q": ("q", "q_value", "q_values", "qvalues", "action_values"),
    "logits": ("logits", "action_logits", "policy_logits", "log_probs", "log_probabilities"),
    "gaussian": ("gaussian", "mean"),
}
OUTPUT_NAMES = {name: kind for kind, names in _OUTPUTS_BY_KIND.items() for name in names}
"""What the scores mean that come out under this name."""

VALUE_NAMES = ("value", "values", "state_value", "vf")
"""Outputs that hold a critic's estimate of the return, a number per observation."""

DTYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


class OnnxPolicy(BatchedPolicy):
    """Takes scores from the output `q_values`, `logits`, `gaussian`, or `mean` and `log_std`."""

    def __init__(
        self,
        path: str | Path,
        *,
        kind: ScoreKind | None = None,
        fixed_batch: int | None = 1,
        identity: str | None = None,
        description: str | None = None,
    ) -> None:
        path = Path(path)
        try:
            self.model = path.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"policy {path}: the file cannot be read ({error.strerror})"
            ) from error
        self.external = _external_files(path, self.model)
        self._path = path.resolve()
        self.description = description or str(path)
        self.identity = identity or file_identity(
            [self.model, *(file.read_bytes() for file in self.external)]
        )
        self._open()
        self._read_inputs()
        self.kind, self.outputs = self._choose_outputs(kind)
        outputs = [each.name for each in self._session.get_outputs()]
        self._value_name = next((name for name in outputs if name.lower() in VALUE_NAMES), None)
        # A graph made for one batch size accepts no other.
        self.fixed_batch = self.static_batch or checked_fixed_batch(fixed_batch)

    def _open(self) -> None:
        model: str | bytes = str(self._path) if self.external else self.model
        self._session = self._session_of(model)
        self._with_hidden: Any = None
        """The same graph with its last hidden layer as an output; opened when first asked for."""

    def _session_of(self, model: str | bytes) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise InvalidInput(
                "reading an .onnx policy needs onnxruntime: pip install onnxruntime"
            ) from error
        options = onnxruntime.SessionOptions()
        # One thread: workers are processes anyway, and sums keep their order.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        failure = f"policy {self.description}: not an ONNX model that onnxruntime can run:"
        with errors_as(InvalidInput, failure):
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def _read_inputs(self) -> None:
        """Sort the graph's inputs into observations and memory."""
        outputs = {output.name for output in self._session.get_outputs()}
        self.memory: dict[str, npt.NDArray[Any]] = {}  # name → zeros [1, ...]
        self.inputs: dict[str, tuple[tuple[int | None, ...], np.dtype[Any]]] = {}
        self.static_batch: int | None = None
        for each in self._session.get_inputs():
            if each.name + MEMORY_SUFFIX in outputs:
                if not all(isinstance(size, int) for size in each.shape[1:]):
                    raise InvalidInput(
                        f"policy {self.description}: the memory input {each.name!r} needs fixed "
                        f"sizes after its batch axis, got {each.shape[1:]}"
                    )
                dtype = DTYPES.get(each.type, np.float32)
                self.memory[each.name] = np.zeros((1, *each.shape[1:]), dtype)
                continue
            if each.type not in DTYPES or not each.shape:
                raise InvalidInput(
                    f"policy {self.description}: the input {each.name!r} must be a tensor of "
                    f"numbers [batch, ...], got {each.type} of shape {each.shape}"
                )
            sizes = [size if isinstance(size, int) and size > 0 else None for size in each.shape]
            self.static_batch = self.static_batch or sizes[0]
            self.inputs[each.name] = tuple(sizes[1:]), np.dtype(DTYPES[each.type])
        if not self.inputs:
            raise InvalidInput(f"policy {self.description}: the graph takes no observations")

    def _choose_outputs(self, kind: ScoreKind | None) -> tuple[ScoreKind, list[str]]:
        """Return what the scores mean, and which outputs hold them."""
        memory = {name + MEMORY_SUFFIX for name in self.memory}
        names = [each.name for each in self._session.get_outputs() if each.name not in memory]
        known = {name: OUTPUT_NAMES[name.lower()] for name in names if name.lower() in OUTPUT_NAMES}
        text = self._session.get_modelmeta().custom_metadata_map.get(KIND_KEY)
        if kind is None and text is not None:
            kind = checked_kind(
                text, f"policy {self.description}: its metadata {KIND_KEY} is {text!r}"
            )
        if kind is None and len(set(known.values())) == 1:
            kind = next(iter(known.values()))
        if kind is None:
            raise InvalidInput(
                f"policy {self.description}: the outputs {', '.join(names)} do not say what the "
                "scores mean; pass --scores q or --scores logits (kind= in Python)"
            )
        if kind == "gaussian" and {"mean", "log_std"} <= set(names):
            return kind, ["mean", "log_std"]
        if len(names) == 1:
            return kind, names
        chosen = [name for name in names if known.get(name) == kind]
        if len(chosen) != 1:
            raise InvalidInput(
                f"policy {self.description}: which of the outputs {', '.join(names)} holds the "
                f"{kind} scores? Export it under the name "
                f"{'q_values' if kind == 'q' else kind!s}"
            )
        return kind, chosen

    def initial_memory(self, batch: int) -> Memory:
        return tuple(np.repeat(start, batch, axis=0) for start in self.memory.values()) or None

    @cached_property
    def hidden_names(self) -> list[str]:
        """The tensors before the last layer; none where weights lie in files beside the graph."""
        return [] if self.external else hidden_tensors(self.model, self.outputs)

    def evaluate_features(self, observations: Observations, memory: Memory) -> Features:
        if not self.hidden_names and self._value_name is None:
            return super().evaluate_features(observations, memory)
        if self._with_hidden is None:
            self._with_hidden = self._session_of(with_outputs(self.model, self.hidden_names))
        value = [] if self._value_name is None else [self._value_name]
        extra = [*self.hidden_names, *value]
        scores, after, found = self._run(self._with_hidden, observations, memory, extra)
        rows = batch_size(observations)
        hidden = [each.reshape(rows, -1) for each in found[: len(self.hidden_names)]]
        return Features(
            scores,
            after,
            np.concatenate([np.zeros((rows, 0), np.float32), *hidden], axis=1),
            found[-1].reshape(rows) if value else None,
        )

    def evaluate(self, observations: Observations, memory: Memory) -> tuple[Any, Memory]:
        scores, after, _ = self._run(self._session, observations, memory)
        return scores, after

    def _run(
        self, session: Any, observations: Observations, memory: Memory, extra: Sequence[str] = ()
    ) -> tuple[Any, Memory, list[Any]]:
        """Return raw scores, the memory after them, and these further tensors."""
        parts = self._by_input(observations)
        feed = {
            name: np.ascontiguousarray(parts[name], dtype=dtype)
            for name, (_, dtype) in self.inputs.items()
        }
        if memory is not None:
            feed.update(zip(self.memory, memory, strict=True))
        wanted = [*self.outputs, *(name + MEMORY_SUFFIX for name in self.memory)]
        try:
            results = session.run([*wanted, *extra], feed)
        except Exception as error:
            raise PolicyFault(
                f"policy {self.description}: onnxruntime could not score observations of shape "
                f"{[list(array.shape) for array in feed.values()]}: {describe_error(error)}"
            ) from error
        scores = results[: len(self.outputs)]
        after = tuple(results[len(self.outputs) : len(wanted)]) if self.memory else None
        if len(scores) == 2:
            mean, log_std = scores
            both = np.stack([mean, np.broadcast_to(log_std, mean.shape)], axis=1)
            return both, after, results[len(wanted) :]
        return scores[0], after, results[len(wanted) :]

    def widen(self, space: gym.Space[Any], rows: int) -> int:
        return 1 if self.static_batch else super().widen(space, rows)

    def check(self, env: gym.Env[Any, Any]) -> None:
        space = env.observation_space
        in_parts = isinstance(space, gym.spaces.Tuple) and len(space) == len(self.inputs)
        if not isinstance(space, gym.spaces.Dict) and not in_parts and len(self.inputs) > 1:
            raise PolicyFault(
                f"policy {self.description}: expected Dict observations with "
                f"{', '.join(self.inputs)} (or a Tuple of as many, in this order), got {space} "
                "from the environment"
            )
        parts = self._by_input(space)
        for name, (shape, dtype) in self.inputs.items():
            check_observation_space(self.description, parts[name], shape=shape, dtype=dtype)
        check_by_probe(self, env)

    def _by_input(self, given: Any) -> Mapping[str, Any]:
        """Return observations, or their space, by the names of the inputs that take them."""
        if isinstance(given, tuple | gym.spaces.Tuple) and len(given) == len(self.inputs):
            return dict(zip(self.inputs, given, strict=True))
        parts = given if isinstance(given, Mapping) else dict.fromkeys(self.inputs, given)
        for name in self.inputs:
            if name not in parts:
                raise PolicyFault(
                    f"policy {self.description}: expected an observation {name!r}, "
                    f"got {', '.join(parts)} from the environment"
                )
        return parts

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session, which cannot be pickled; it is reopened from the bytes."""
        sessions = ("_session", "_with_hidden")
        return {name: value for name, value in self.__dict__.items() if name not in sessions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _external_files(path: Path, model: bytes) -> list[Path]:
    """Return the files beside the model that hold its larger weights (ONNX 'external data').

    Their names are read from the protocol buffer's entries with the key "location", which does not
    need the onnx library.
    """
    names = set()
    for match in re.finditer(rb"\x0a\x08location\x12([\x01-\x7f])", model):
        name = model[match.end() : match.end() + match.group(1)[0]]
        names.add(name.decode("utf-8", errors="replace"))
    files = [path.parent / name for name in sorted(names)]
    for file in files:
        if not file.is_file():
            raise InvalidInput(
                f"policy {path}: its weights lie in {file.name}, which is not beside it; "
                "keep both files in one folder, or export with external_data=False"
            )
    return files
