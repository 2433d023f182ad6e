"""Print what completes the command's words in Bash: source <(shardlab completion)

or, for completion itself, the names of strategies or workloads.
"""

import argparse

from shardlab.cli import VERBS
from shardlab.settings import load

BASH = """_shardlab() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words
  case ${{COMP_WORDS[COMP_CWORD - 1]}} in
    --strategy) words=$(shardlab completion strategies) ;;
    --workload) words=$(shardlab completion workloads) ;;
    *) if ((COMP_CWORD > 1)); then COMPREPLY=($(compgen -f -- "$current")); return; fi
       words="{verbs}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _shardlab shardlab"""


def main() -> None:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["bash", "strategies", "workloads"], default="bash")
    what = parser.parse_args().what
    if what == "bash":
        print(BASH.format(verbs=" ".join(verb for group in VERBS.values() for verb in group)))
    elif what == "strategies":
        print(*load.read_yaml(load.CONFIG / "strategies.yaml"))
    else:
        print(*sorted(path.stem for path in (load.CONFIG / "workloads").glob("*.yaml")))
