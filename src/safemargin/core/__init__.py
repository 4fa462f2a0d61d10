"""Basics that every other package uses and that import none of them.

Records and settings, random streams, importing by name, atomic files, read-only databases, text
for people, the version, progress reports, lazy public names, and the former names of modules.
"""
