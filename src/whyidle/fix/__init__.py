"""``whyidle fix``: source changes as a reversible diff, one file here per kind of change.

A file such as ``anomaly_mode.py`` is a change's documentation, status and code: a sentence WHY,
the causes it answers, whether it is safe, and ``find``, which reads a parsed file and tells what
it would edit and what it saw and left alone. Needs LibCST: ``pip install 'whyidle[fix]'``.
"""
