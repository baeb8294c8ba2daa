"""Allocation and scheduling."""
