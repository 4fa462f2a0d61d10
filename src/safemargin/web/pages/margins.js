"use strict";
// Looks a margin up exactly as safemargin.Margins does; the tables come from the server.

class MarginTables {
  constructor(data) {
    Object.assign(this, data);
    for (const table of this.tables) {
      table.middles = table.grid.map(row => row.slice(1).map((value, i) => (row[i] + value) / 2));
      table.limits = table.upper.map(row => row.map(value => value === null ? Infinity : value));
    }
  }

  get usable() { return this.tables.some(table => table.enough); }

  // Why a table says nothing at its confidence; empty where it does.
  tooLittle(table) {
    if (table.enough) return "";
    if (this.natural_moments >= table.needed) return table.notes[0] || "the data allow no bound";
    return `too little data for a confidence of ${table.confidence}: it takes ${table.needed} `
      + `natural moments, and there are ${this.natural_moments}`;
  }

  // The confidence that a page opens at, and why.
  get choice() {
    const next = this.tables.find(table => table.confidence > this.confidence);
    if (!next || next.enough) return `opened at a confidence of ${this.confidence}`;
    return `opened at a confidence of ${this.confidence}, the highest that ${this.natural_moments} `
      + `natural moments suffice for; ${next.confidence} takes ${next.needed}`;
  }

  // The margin for one proxy value, or for a list with one value for each n.
  at(table, proxy, tolerance) {
    let margin = 0, bin = 0, looked = -1;
    for (let i = 0; i < this.n_values.length; i++) {
      const row = table.grid.length > 1 ? i : 0;
      const value = Array.isArray(proxy) ? proxy[i] : proxy;
      const grid = table.grid[row];
      if (value > grid[grid.length - 1]) return margin;
      if (looked !== row || Array.isArray(proxy)) {
        bin = countUpTo(table.middles[row], value);
        looked = row;
      }
      const limit = table.limits[i][bin];
      if (!(limit <= tolerance) || limit === Infinity) return margin;
      margin = this.n_values[i];
    }
    return margin;
  }

  // How the margin at one proxy changes with the tolerance: [{margin, from, to}, …]; a margin is
  // granted at tolerances from `from` until below `to`.
  plateaus(table, proxy) {
    const row = table.middles[0], bin = countUpTo(row, proxy), found = [];
    let margin = 0, from = 0;
    for (let i = 0; i < this.n_values.length; i++) {
      const limit = Math.max(from, table.limits[i][bin]);
      if (limit > from) found.push({margin, from, to: limit});
      margin = this.n_values[i];
      from = limit;
    }
    return from < Infinity ? [...found, {margin, from, to: Infinity}] : found;
  }

  // Whether a proxy lies above every measured one: the margin is then 0 because nothing is known.
  unknown(table, proxy) {
    const grid = table.grid[0];
    return (Array.isArray(proxy) ? proxy[0] : proxy) > grid[grid.length - 1];
  }
}

// How many of the increasing numbers are at most the value.
function countUpTo(numbers, value) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1; else high = middle;
  }
  return low;
}

// Tolerances lie closer together near 0, where margins change most.
function toleranceAt(position, tables) {
  if (position === positionOf(tables.tolerance, tables)) return tables.tolerance;
  const share = position / 200;
  return roundTo(tables.highest_tolerance * 1.05 * share * share, 2);
}

function positionOf(tolerance, tables) {
  return Math.round(200 * Math.sqrt(tolerance / (tables.highest_tolerance * 1.05)));
}

function roundTo(value, digits) { return Number(value.toPrecision(digits)); }

function show(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

// Warm and dark where few mistakes are affordable, pale where many are.
function marginColour(margin, n_values, colours) {
  const place = [0, ...n_values].indexOf(margin) / n_values.length;
  return place <= 0.5 ? mix(colours.low, colours.middle, place * 2)
    : mix(colours.middle, colours.high, place * 2 - 1);
}

function mix(first, second, share) {
  const parts = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
  const [a, b] = [parts(first), parts(second)];
  return "rgb(" + a.map((value, i) => Math.round(value + (b[i] - value) * share)).join(",") + ")";
}
