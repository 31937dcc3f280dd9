"""Numbers as people read them: 12,345 and 3.2 GB and 4.1 %."""


def number_text(value: float) -> str:
    """With thousands separated, and no more digits than matter.

    >>> number_text(12345), number_text(3.14159), number_text(640.0)
    ('12,345', '3.1', '640')
    """
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"


def bytes_text(value: int) -> str:
    """A number of bytes in units of a thousand.

    >>> bytes_text(49_758_443)
    '49.8 MB'
    """
    size, units = float(value), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.3g} {units[0]}"


def share_text(part: float, whole: float) -> str:
    """A share in per cent; what is not nothing is not shown as 0 %.

    >>> share_text(1, 3), share_text(1, 100_000), share_text(0, 0)
    ('33 %', '<0.1 %', '0 %')
    """
    share = 100 * part / whole if whole else 0
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:.0f} %" if share >= 10 or share == int(share) else f"{share:.1f} %"
