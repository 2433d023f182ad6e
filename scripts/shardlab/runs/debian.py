"""Debian mirror of this machine. Standard library only: the test cluster uses it before anything is installed."""

import subprocess

from shardlab.errors import UserError


def mirror() -> str:
    """Return the address of the Debian mirror in this machine's apt settings.

    Raises:
        UserError: there is none, for example because this is not a Debian machine.
    """
    targets = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Label: Debian"]
    try:
        sites = subprocess.run(targets, text=True, capture_output=True).stdout.split()
    except FileNotFoundError:
        sites = []
    if not sites:
        raise UserError(
            "this machine's apt settings name no Debian mirror; set container.mirror in the site's file to one, "
            "or container.base to docker."
        )
    return sites[0]
