"""Policies in ONNX files, run by onnxruntime in a single thread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from safemargin.errors import InvalidInput, PolicyFault, did_you_mean
from safemargin.policies.base import Features, Memory, Observations, ScoreKind
from safemargin.policies.batching import BatchedPolicy, batch_size, checked_fixed_batch
from safemargin.policies.checks import check_by_probe, check_observation_space
from safemargin.policies.identity import file_identity
from safemargin.policies.onnx_graph import hidden_tensors, with_outputs

KIND_KEY = "safemargin.kind"
"""The metadata entry of an ONNX file that says what its scores mean."""

MEMORY_SUFFIX = "_out"
"""An input `x` whose new value comes out as `x_out` is a recurrent state."""

OUTPUT_NAMES: dict[str, ScoreKind] = {
    "q": "q",
    "q_value": "q",
    "q_values": "q",
    "qvalues": "q",
    "action_values": "q",
    "logits": "logits",
    "action_logits": "logits",
    "policy_logits": "logits",
    "log_probs": "logits",
    "log_probabilities": "logits",
    "gaussian": "gaussian",
    "mean": "gaussian",
}

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
    """Scores from the graph's output `q_values`, `logits`, `gaussian`, or `mean` and `log_std`."""

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
            self._model = path.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"policy {path}: the file cannot be read ({error.strerror})"
            ) from error
        self._external = _external_files(path, self._model)
        self._path = path.resolve()
        self.description = description or str(path)
        self.identity = identity or file_identity(
            [self._model, *(file.read_bytes() for file in self._external)]
        )
        self._open()
        metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._read_inputs()
        self.kind, self._outputs = self._choose_outputs(kind, metadata)
        outputs = [each.name for each in self._session.get_outputs()]
        self._value_name = next((name for name in outputs if name.lower() in VALUE_NAMES), None)
        # A graph made for one batch size accepts no other.
        self.fixed_batch = self._static_batch or checked_fixed_batch(fixed_batch)

    def _open(self) -> None:
        model: str | bytes = str(self._path) if self._external else self._model
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
        try:
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise InvalidInput(
                f"policy {self.description}: not an ONNX model that onnxruntime can run "
                f"({_first_line(error)})"
            ) from error

    def _read_inputs(self) -> None:
        """Sort the graph's inputs into observations and memory."""
        outputs = {output.name for output in self._session.get_outputs()}
        inputs = self._session.get_inputs()
        memory = [each for each in inputs if each.name + MEMORY_SUFFIX in outputs]
        self._memory_names = [each.name for each in memory]
        self._memory_shapes = [tuple(each.shape[1:]) for each in memory]
        self._memory_dtypes = [np.dtype(DTYPES.get(each.type, np.float32)) for each in memory]
        for name, shape in zip(self._memory_names, self._memory_shapes, strict=True):
            if not all(isinstance(size, int) for size in shape):
                raise InvalidInput(
                    f"policy {self.description}: the memory input {name!r} needs fixed sizes "
                    f"after its batch axis, got {list(shape)}"
                )
        observed = [each for each in inputs if each.name not in self._memory_names]
        if not observed:
            raise InvalidInput(f"policy {self.description}: the graph takes no observations")
        self._input_shapes: dict[str, tuple[int | None, ...]] = {}
        self._input_dtypes: dict[str, np.dtype[Any]] = {}
        batches = set()
        for each in observed:
            if each.type not in DTYPES or not each.shape:
                raise InvalidInput(
                    f"policy {self.description}: the input {each.name!r} must be a tensor of "
                    f"numbers [batch, ...], got {each.type} of shape {each.shape}"
                )
            sizes = [size if isinstance(size, int) and size > 0 else None for size in each.shape]
            batches.add(sizes[0])
            self._input_shapes[each.name] = tuple(sizes[1:])
            self._input_dtypes[each.name] = np.dtype(DTYPES[each.type])
        self._static_batch = next((size for size in batches if size is not None), None)

    def _choose_outputs(
        self, kind: ScoreKind | None, metadata: Mapping[str, str]
    ) -> tuple[ScoreKind, list[str]]:
        """Return what the scores mean, and which outputs hold them."""
        memory = {name + MEMORY_SUFFIX for name in self._memory_names}
        names = [each.name for each in self._session.get_outputs() if each.name not in memory]
        known = {name: OUTPUT_NAMES[name.lower()] for name in names if name.lower() in OUTPUT_NAMES}
        if kind is None and KIND_KEY in metadata:
            text = metadata[KIND_KEY]
            if text not in get_args(ScoreKind):
                raise InvalidInput(
                    f"policy {self.description}: its metadata {KIND_KEY} is {text!r}; "
                    + did_you_mean(text, get_args(ScoreKind))
                )
            kind = next(each for each in get_args(ScoreKind) if each == text)
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
        if not self._memory_names:
            return None
        return tuple(
            np.zeros((batch, *shape), dtype)
            for shape, dtype in zip(self._memory_shapes, self._memory_dtypes, strict=True)
        )

    @cached_property
    def hidden_names(self) -> list[str]:
        """The tensors before the last layer; none where weights lie in files beside the graph."""
        return [] if self._external else hidden_tensors(self._model, self._outputs)

    def evaluate_features(self, observations: Observations, memory: Memory) -> Features:
        if not self.hidden_names and self._value_name is None:
            return super().evaluate_features(observations, memory)
        if self._with_hidden is None:
            self._with_hidden = self._session_of(with_outputs(self._model, self.hidden_names))
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
        feed: dict[str, npt.NDArray[Any]] = {}
        for name, dtype in self._input_dtypes.items():
            if isinstance(observations, dict):
                if name not in observations:
                    raise PolicyFault(
                        f"policy {self.description}: expected an observation {name!r}, "
                        f"got {', '.join(observations)}"
                    )
                array = observations[name]
            else:
                array = observations
            feed[name] = np.ascontiguousarray(array, dtype=dtype)
        if memory is not None:
            feed.update(zip(self._memory_names, memory, strict=True))
        wanted = [*self._outputs, *(name + MEMORY_SUFFIX for name in self._memory_names)]
        try:
            results = session.run([*wanted, *extra], feed)
        except Exception as error:
            raise PolicyFault(
                f"policy {self.description}: onnxruntime could not score observations of shape "
                f"{[list(array.shape) for array in feed.values()]} ({_first_line(error)})"
            ) from error
        scores = results[: len(self._outputs)]
        after = tuple(results[len(self._outputs) : len(wanted)]) if self._memory_names else None
        if len(scores) == 2:
            mean, log_std = scores
            both = np.stack([mean, np.broadcast_to(log_std, mean.shape)], axis=1)
            return both, after, results[len(wanted) :]
        return scores[0], after, results[len(wanted) :]

    def widen(self, space: gym.Space[Any], rows: int) -> int:
        return 1 if self._static_batch else super().widen(space, rows)

    def check(self, env: gym.Env[Any, Any]) -> None:
        space = env.observation_space
        parts = dict(space.spaces) if isinstance(space, gym.spaces.Dict) else None
        if parts is None and len(self._input_shapes) > 1:
            raise PolicyFault(
                f"policy {self.description}: expected Dict observations with "
                f"{', '.join(self._input_shapes)}, got {space} from the environment"
            )
        for name, shape in self._input_shapes.items():
            if parts is not None and name not in parts:
                raise PolicyFault(
                    f"policy {self.description}: expected an observation {name!r}, "
                    f"got {', '.join(parts)} from the environment"
                )
            check_observation_space(
                self.description,
                space if parts is None else parts[name],
                shape=shape,
                dtype=self._input_dtypes[name],
            )
        check_by_probe(self, env)

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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
