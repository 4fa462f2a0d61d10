"""Recorded episodes, replayed: pictures, clips and what-if trials.

`recordings` finds an episode by name and `summaries` describes each in a line; `pictures` replays
one in an environment that draws, on which `films` (all steps, for the explorer), `stills` (single
steps, for the report) and `highlights` (clips) build; `trials` and `whatif` play perturbed trials.
Web pages that show any of this live in `safemargin.web`.
"""
