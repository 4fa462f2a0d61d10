"""A simulator that knows nothing of safemargin or Gymnasium, and speaks the bridge's protocol.

    safemargin doctor "bridge:python examples/bridge/ferry.py"

A ferry crosses a river 12 fields wide; a current drives it down, at times by two fields. At the
right field of the far bank it earns 10, elsewhere nothing, and each step costs 0.1. In any
other language it looks the same: read two lengths and that many bytes, answer likewise.
"""

import json
import random
import struct
import sys

WIDE, HARBOUR = 12, 5


class Ferry:
    """The simulator itself."""

    def __init__(self):
        self.random = random.Random()
        self.across, self.along = 0, HARBOUR

    def hello(self):
        return {
            "protocol": 1,
            "name": "ferry",
            "action_space": {"space": "Discrete", "n": 3},  # upstream, straight ahead, downstream
            "observation_space": {"space": "Box", "low": [0, -50], "high": [WIDE, 50]},
            "random": True,
        }

    def reset(self, seed):
        self.random.seed(seed)
        self.across, self.along = 0, HARBOUR + self.random.randrange(-2, 3)
        return {"observation": [self.across, self.along]}

    def step(self, action):
        self.across += 1
        self.along += action - 1 + (1 if self.random.random() < 0.2 else 0)
        there = self.across == WIDE
        reward = (10 if there and self.along == HARBOUR else 0) - 0.1
        return {
            "observation": [self.across, self.along],
            "reward": reward,
            "terminated": there,
            "truncated": False,
        }

    def save(self):
        version, numbers, rest = self.random.getstate()
        return {"state": [self.across, self.along, version, list(numbers), rest]}

    def restore(self, state):
        self.across, self.along, version, numbers, rest = state
        self.random.setstate((version, tuple(numbers), rest))
        return {}

    def digest(self):  # a text that only equal states share
        return {"digest": repr(self.save())}

    def random_state(self):
        return {"random": repr(self.random.getstate())}

    def reseed(self, seed):
        self.random.seed(seed)
        return {}


def main():
    ferry = Ferry()
    answers = {
        "hello": ferry.hello,
        "reset": ferry.reset,
        "step": ferry.step,
        "save": ferry.save,
        "restore": ferry.restore,
        "digest": ferry.digest,
        "random": ferry.random_state,
        "reseed": ferry.reseed,
    }
    while True:
        lengths = sys.stdin.buffer.read(8)
        if len(lengths) < 8:
            return
        header, binary = struct.unpack(">II", lengths)
        request = json.loads(sys.stdin.buffer.read(header))
        sys.stdin.buffer.read(binary)
        do = request.pop("do")
        answer = answers[do](**request) if do in answers else {"error": "cannot " + do}
        text = json.dumps(answer).encode()
        sys.stdout.buffer.write(struct.pack(">II", len(text), 0) + text)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
