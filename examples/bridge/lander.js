// A simulator in JavaScript that speaks the bridge's protocol, with pictures and a seeded wind.
//
//     safemargin doctor "bridge:node examples/bridge/lander.js"
//
// A lander falls from a height of 20 and may burn its engine. It earns 10 for touching down softly
// and loses 10 for a crash; each burn costs 0.2.
"use strict";

const SIZE = 32; // of a picture
let state = { height: 0, speed: 0, random: 0 };

function uniform() { // one step of mulberry32, whose whole state is one whole number
  state.random = (state.random + 0x6d2b79f5) >>> 0;
  let mixed = state.random;
  mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
}

const seen = () => ({ observation: [state.height, state.speed] });

function picture() {
  const pixels = Buffer.alloc(SIZE * SIZE * 3, 20);
  const row = Math.max(0, SIZE - 2 - Math.round(state.height)), column = SIZE / 2;
  const left = (row * SIZE + column - 1) * 3;
  pixels.fill(255, left, left + 9);
  return pixels;
}

const answers = {
  hello: () => ({
    protocol: 1,
    name: "lander",
    action_space: { space: "Discrete", n: 2 }, // fall, burn
    observation_space: { space: "Box", low: [-5, -20], high: [50, 20], dtype: "<f8" },
    random: true,
  }),
  reset: ({ seed }) => {
    state = { height: 20, speed: 0, random: seed >>> 0 };
    state.speed = uniform() - 0.5;
    return seen();
  },
  step: ({ action }) => {
    state.speed += (action === 1 ? 0.15 : -0.1) + 0.1 * (uniform() - 0.5);
    state.height += state.speed;
    const down = state.height <= 0;
    const landed = down ? (state.speed > -1 ? 10 : -10) : 0;
    const gone = state.height > 40;
    const reward = landed - (action === 1 ? 0.2 : 0);
    return { ...seen(), reward, terminated: down, truncated: gone };
  },
  save: () => ({ state: { ...state } }),
  restore: (request) => ((state = { ...request.state }), {}),
  digest: () => ({ digest: JSON.stringify(state) }),
  random: () => ({ random: String(state.random) }),
  reseed: ({ seed }) => ((state.random = seed >>> 0), {}),
  render: () => ({ picture: { array: "|u1", shape: [SIZE, SIZE, 3], at: 0 }, raw: picture() }),
};

let waiting = Buffer.alloc(0);
process.stdin.on("data", (data) => {
  waiting = Buffer.concat([waiting, data]);
  while (waiting.length >= 8) {
    const header = waiting.readUInt32BE(0), length = 8 + header + waiting.readUInt32BE(4);
    if (waiting.length < length) return;
    const request = JSON.parse(waiting.subarray(8, 8 + header).toString());
    waiting = waiting.subarray(length);
    const answered = answers[request.do] || (() => ({ error: `cannot ${request.do}` }));
    const { raw = Buffer.alloc(0), ...answer } = answered(request);
    const text = Buffer.from(JSON.stringify(answer)), lengths = Buffer.alloc(8);
    lengths.writeUInt32BE(text.length, 0);
    lengths.writeUInt32BE(raw.length, 4);
    process.stdout.write(Buffer.concat([lengths, text, raw]));
  }
});
