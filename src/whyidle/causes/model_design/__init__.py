"""Architecture and settings."""
