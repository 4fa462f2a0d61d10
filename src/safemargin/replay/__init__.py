"""Recorded episodes, replayed: pictures, clips and what-if trials.

`recordings` finds an episode by name, `summaries` describes each in a line, and `critical_moments`
ranks what was measured. `pictures` replays an episode in an environment that draws, on which
`films` (all steps, for the explorer), `stills` (single steps, for the report) and `highlights`
(clips, with `captions`, `situations` and `video`) build; `trials` and `whatif` play perturbed
trials. Web pages that show any of this live in `safemargin.web`.
"""
