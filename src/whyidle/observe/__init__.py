"""Observing a real job from beside it: start it, let the hook in, and keep what it recorded.

What runs *inside* the job lies in ``whyidle/record/hook`` and knows nothing of this package.
"""
