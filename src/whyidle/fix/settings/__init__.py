"""Settings of training frameworks whose keys are known: in files, calls and on command lines.

``table.py`` holds one row for each key and value; everything else here finds values and where
they stand, so that only their own characters change.
"""
