"""Data loading and preprocessing."""
