"""The tables of a study's database."""

from __future__ import annotations

FORMAT = 2
"""The version of the schema, stored as the entry `format` of the table `meta`."""

FEATURES_TABLE = """
CREATE TABLE moment_features (          -- for learned proxies; see policies.features
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    hidden BLOB NOT NULL,               -- [lags, width]
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
"""
"""The table for learned proxies; studies made by earlier versions get it when it is needed."""

SCHEMA = (
    FEATURES_TABLE
    + """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL                 -- JSON
) WITHOUT ROWID;
CREATE TABLE episodes (
    phase TEXT NOT NULL,                -- 'natural' or 'spread'
    episode INTEGER NOT NULL,           -- number within the phase
    life INTEGER NOT NULL,              -- within the game; 0 where there are no lives
    seed INTEGER NOT NULL,
    opening INTEGER NOT NULL,           -- leading random actions
    steps INTEGER NOT NULL,
    total_reward REAL NOT NULL,
    ended TEXT NOT NULL,                -- 'terminated', 'truncated' or 'cut'
    fingerprint TEXT NOT NULL,          -- equal for copies of one another
    actions BLOB NOT NULL,
    rewards BLOB NOT NULL,
    scores BLOB NOT NULL,
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
CREATE TABLE episode_proxies (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    proxy TEXT NOT NULL,
    proxies BLOB NOT NULL,              -- one value per step
    PRIMARY KEY (phase, episode, life, proxy)
) WITHOUT ROWID;
CREATE TABLE moments (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    step INTEGER NOT NULL,
    PRIMARY KEY (phase, episode, life)
) WITHOUT ROWID;
CREATE TABLE moment_proxies (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    proxy TEXT NOT NULL,
    n INTEGER NOT NULL,                 -- 0: the proxy does not depend on n
    value REAL NOT NULL,
    PRIMARY KEY (phase, episode, life, proxy, n)
) WITHOUT ROWID;
CREATE TABLE estimates (
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    n INTEGER NOT NULL,
    criticality REAL NOT NULL,
    half_width REAL NOT NULL,
    trials INTEGER NOT NULL,
    exact INTEGER NOT NULL,
    capped INTEGER NOT NULL,
    unperturbed REAL NOT NULL,
    perturbed_returns BLOB NOT NULL,
    unperturbed_returns BLOB NOT NULL,
    PRIMARY KEY (phase, episode, life, n)
) WITHOUT ROWID;
CREATE TABLE costs (                    -- the only table that differs from run to run
    phase TEXT NOT NULL,
    episode INTEGER NOT NULL,
    life INTEGER NOT NULL,
    n INTEGER NOT NULL,                 -- 0: the episode itself
    steps INTEGER NOT NULL,             -- simulator steps
    seconds REAL NOT NULL,              -- of a single worker
    wasted INTEGER NOT NULL,            -- steps of speculative trials that were discarded
    remembered INTEGER NOT NULL,        -- states kept to detect where the moment's rollouts merge
    PRIMARY KEY (phase, episode, life, n)
) WITHOUT ROWID;
CREATE VIEW tuples AS
    SELECT phase, episode, life, step, proxy, value AS proxy_value, estimates.n AS n,
           criticality, half_width, trials, exact, capped, unperturbed
    FROM estimates
    JOIN moments USING (phase, episode, life)
    JOIN moment_proxies USING (phase, episode, life)
    WHERE moment_proxies.n = 0 OR moment_proxies.n = estimates.n;
"""
)
