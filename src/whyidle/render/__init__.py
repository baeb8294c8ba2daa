"""Reports: each module draws one view of a Diagnosis, and looks at nothing else.

``terminal``, ``markdown``, ``json`` and ``html`` return text; ``perfetto`` writes a file.
``phrases`` holds the wording and ``numerals`` the figures that they share, ``slices`` the parts
of the bar and ``colours`` what they look like.
"""
