"""The sections of the HTML report, each a function of a Diagnosis.

``whyidle.render.html`` joins them with the style and the scripts that lie beside them.
"""
