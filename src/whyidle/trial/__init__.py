"""Trials: real runs of a user's command, interleaved, measured and judged.

Nothing here is imported before a verb that runs something is used.
"""
