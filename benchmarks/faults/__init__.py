"""The fault campaign: bad input, kills, full disks, races and hostile clients.

``campaign`` runs cases and counts outcomes, ``commands`` lists the commands, ``world`` makes what
they read, and ``runner`` starts processes. The kinds of cases: ``inputs`` breaks files (by
``damage`` and ``parts``) and ``options``, ``kills`` kills commands, fills disks and provokes races,
``corners`` breaks folders and caches and writes outputs into inputs, ``settings`` has hostile
settings of models, ``places`` odd streams, folders and environments, ``calls`` wrong types and
copies in Python, ``clients`` attacks the page of ``page_server``, and ``sessions`` kills it.
"""
