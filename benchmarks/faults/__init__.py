"""The fault campaign: bad input, kills, full disks and races of every command.

``campaign`` runs cases and counts outcomes, ``commands`` lists the commands, ``world`` makes what
they read, ``damage`` and ``parts`` break files, ``options`` breaks options, ``inputs`` judges a bad
input, ``kills`` judges kills, full disks and races, and ``runner`` starts processes.
"""
