"""Basics that every other package uses and that import none of them.

`records` and `settings` are what the stages of a study pass on, `measured` reads which mistakes are
made and what they cost; `seeding` makes every random generator. `importing` finds objects by name,
`lazy` loads public names when they are first used, `files` writes whole files, `read_only` opens
databases, `plain` and `text` prepare values for JSON and for people, `notebook` makes tables in
HTML, `progress` reports progress, `budget` reads how much attention people can give, `jax_library`
imports JAX when it is needed, `version` names versions, and `former_names` the names that modules
had when identities were recorded.
"""
