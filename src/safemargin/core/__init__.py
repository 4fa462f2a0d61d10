"""Records, settings, random streams and other basics that every other package uses."""
