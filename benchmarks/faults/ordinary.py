"""The permissions of an ordinary user, for a process that root started.

Root reads and writes what nobody may. A process without two of its capabilities does not: it meets
the permissions of files as their owner does, and still reads what its own imports need.
"""

from __future__ import annotations

import ctypes
import os

# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of Linux, as bits of the first of two words.
_PERMISSIONS = 1 << 1 | 1 << 2

_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def become_ordinary() -> None:
    """Give up the right to read and write everything, if this thread is root's; Linux only."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = _Header(_VERSION_3, 0)
    words = (_Sets * 2)()
    if libc.capget(ctypes.byref(header), words):
        raise OSError(ctypes.get_errno(), "capget")
    words[0].effective &= ~_PERMISSIONS
    words[0].permitted &= ~_PERMISSIONS
    words[0].inheritable &= ~_PERMISSIONS
    if libc.capset(ctypes.byref(header), words):
        raise OSError(ctypes.get_errno(), "capset")
