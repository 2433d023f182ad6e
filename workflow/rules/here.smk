# Folder of this workflow's code: next to the Snakefile; for a hosted module, a copy of its repository.
import io
import os
import shlex
import tarfile
from pathlib import Path


def repository(rules):
    """Return the repository's folder, relative to the working directory. ``rules``: Snakemake's folder of this file."""
    if rules.is_local:
        root = Path(rules.get_path_or_uri(secret_free=True)).parents[1]
        relative = os.path.relpath(root)
        return root if relative.startswith("..") else Path(relative)
    # Snakemake only fetches the files that rules name, one by one, but programs also import other files.
    commit = rules.hosted_repo.repo.commit(rules.ref).hexsha
    folder = Path(".snakemake/shardlab") / commit
    if not folder.exists():
        content = io.BytesIO()
        rules.hosted_repo.repo.archive(content, treeish=commit)
        content.seek(0)
        part = folder.with_name(f"{commit}.{os.getpid()}")
        with tarfile.open(fileobj=content) as archive:
            # The archive is from git; Python before 3.11.4, as in Debian 12, does not support filters.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(part, **safe)
        os.rename(part, folder)
    return folder


HERE = repository(workflow.current_basedir)
SCRIPTS = HERE / "scripts"
# The command as words of a shell command, which Snakemake formats: in a module it does not know this workflow's names.
SHARDLAB = "python " + shlex.quote(str(SCRIPTS / "shardlab")).replace(
    "{", "{{"
).replace("}", "}}")
