"""Memory and precision."""
