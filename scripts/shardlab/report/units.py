"""Figures for people: bytes in a unit that leaves a short number. Files keep the raw values."""

BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def byte_unit(largest: float) -> tuple[str, int]:
    """The largest unit that leaves a number of at least 1: its name and its bytes."""
    return next((unit for unit in BINARY if largest >= unit[1]), BINARY[-1])


def readable_bytes(size: float) -> str:
    """A size with its unit and three digits, as in 152 B or 1.21 MiB."""
    name, unit = byte_unit(size)
    return f"{short_number(size / unit)} {name}"


def short_number(number: float) -> str:
    """Three digits, or all digits before the decimal point: never an exponent for a large number."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
