"""The parts that all benchmarks share, so that a script contains its claim and little else.

``script`` has the options, the origin and the results file of a script, ``page`` the tables of the
documentation, ``measure`` time, memory and processes, ``texts`` texts in any number, and ``study``
models that are trained over seeds and judged on targets.
"""
