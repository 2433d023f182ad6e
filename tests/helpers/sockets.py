"""Sockets on which processes listen, from proc(5)."""

from pathlib import Path


def listening(pids):
    """Return the addresses, as in /proc/net/tcp but without ports, on which any of these processes listens."""
    found = set()
    for pid in pids:
        place = Path(f"/proc/{pid}")
        try:
            rows = [
                line.split() for name in ("tcp", "tcp6") for line in (place / f"net/{name}").read_text().splitlines()
            ]
            own = {str(each.readlink()) for each in (place / "fd").iterdir()}
        except OSError:  # it has ended, or one of its files is closed
            continue
        # Column 3 is the state, 0A: it listens; column 9 the number that its descriptor names.
        found |= {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    return found


LOOPBACK = "0100007F"
"""127.0.0.1, as the kernel of a little-endian machine writes it."""
