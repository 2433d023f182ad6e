# Where this workflow's programs are: beside the Snakefile; of a module from a hosting provider, a copy of its repository.
import io
import os
import tarfile
from pathlib import Path


def repository(rules):
    """Folder of the repository, as seen from the working directory. ``rules``: where this file is, as Snakemake says."""
    if rules.is_local:
        root = Path(rules.get_path_or_uri(secret_free=True)).parents[1]
        relative = os.path.relpath(root)
        return root if relative.startswith("..") else Path(relative)
    # Snakemake fetches the files that rules name, one by one; programs that import each other it does not know of.
    commit = rules.hosted_repo.repo.commit(rules.ref).hexsha
    folder = Path(".snakemake/shardlab") / commit
    if not folder.exists():
        content = io.BytesIO()
        rules.hosted_repo.repo.archive(content, treeish=commit)
        content.seek(0)
        part = folder.with_name(f"{commit}.{os.getpid()}")
        with tarfile.open(fileobj=content) as archive:
            # git made it; Python before 3.11.4, which Debian 12 has, takes no filter.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(part, **safe)
        os.rename(part, folder)
    return folder


HERE = repository(workflow.current_basedir)
SCRIPTS = HERE / "scripts"
