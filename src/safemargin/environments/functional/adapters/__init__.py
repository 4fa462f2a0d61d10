"""Environments of JAX libraries as functional ones, one module for each library.

`pgx`, `gymnax`, `brax` (with MJX), `craftax` and `jaxtari` are imported when an environment
'jax:LIBRARY:NAME' is asked for; `libraries` imports what they adapt, or says how to install it, and
`shapes` turns spaces, keys and numbers of a library into ours.

To add a library, write a module with a function `make(name, **arguments)` that returns a
`FunctionalEnvironment`, and list it in `ADAPTERS` of `naming`.
"""
