"""Recorded episodes, replayed: pictures, what-if trials, highlights."""
