"""Memory of pixels, kept for the next batch."""

import ctypes
import platform
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_LARGEST_IMAGE_BYTES = 32 << 20  # The most that glibc admits.
_KEPT_BYTES = 512 << 20
_GROWTH_BYTES = 16 << 20


@cache
def keep_freed_memory() -> None:
    """Ask the C library to keep freed pixels rather than give them back to the kernel after every batch.

    Fresh pages have to be mapped and zeroed: a third of the time of decoding a JPEG of 640 x 640. Holds for the whole
    process, which is why it is asked for when a loader starts and not on import; only glibc has to be asked.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_IMAGE_BYTES)
    libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    libc.mallopt(_TOP_PAD, _GROWTH_BYTES)
