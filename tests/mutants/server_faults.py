"""What reaches a job from the fork server and from the job before, and what a run is known by."""

from fault import LOOP, Fault, S, at

SERVER, IDENTITY = f"{S}runs/forkserver.py", f"{S}settings/run_identity.py"
NOTHING = at("unit/test_forkserver", "test_a_job_has_nothing_of_the_server_but_what_imports_set_for_themselves")
WATCHED = at("unit/test_forkserver", "test_every_file_of_the_code_is_watched")
NEW = at("unit/test_forkserver", "test_where_nothing_can_be_forked_jobs_are_new_processes")
KEYS = at("unit/test_run_identity", "test_an_edit_trains_a_finished_run_again_if_the_key_determines_numbers")
PLACE = at("unit/test_run_identity", "test_a_run_s_numbers_do_not_depend_on_its_place")
DIGESTS = at("unit/test_run_identity", "test_digests_and_differences_of_settings")

FAULTS = [
    # What the server leaves to its jobs.
    Fault("jobs have the server's environment, too", SERVER, "    os.environ.clear()\n", "", NOTHING),
    Fault(
        "the server's environment wins over the job's",
        SERVER,
        'added | request["environment"]',
        'request["environment"] | added',
        NOTHING,
    ),
    Fault(
        "jobs do not have what imports set for themselves",
        SERVER,
        'os.environ.update(added | request["environment"])',
        'os.environ.update(request["environment"])',
        NOTHING,
    ),
    Fault("jobs have the server's temporary folder", SERVER, "    tempfile.tempdir = None  #", "    #", NOTHING),
    Fault("jobs work in the server's folder", SERVER, '    os.chdir(request["folder"])\n', "", NOTHING),
    Fault(
        "jobs believe that they were imported with their own environment",
        SERVER,
        "forks.served = environment",
        'forks.served = request["environment"]',
        NOTHING,
    ),
    # Whose code it runs.
    Fault("edits of modules are not seen", SERVER, '.rglob("*.py")', '.glob("*.py")', WATCHED),
    Fault(
        "edits of programs are not seen",
        SERVER,
        '(ROOT / "scripts").rglob',
        '(ROOT / "scripts/shardlab").rglob',
        WATCHED,
    ),
    Fault(
        "edits during the imports are not seen",
        SERVER,
        "                code, before = _code(), dict(os.environ)\n                prepare()\n",
        "                before = dict(os.environ)\n                prepare()\n                code = _code()\n",
        NEW,
    ),
    Fault(
        "jobs of another Python are forked",
        SERVER,
        'if request["code"] != [str(ROOT), sys.executable]:',
        'if request["code"][:1] != [str(ROOT)]:',
        NEW,
    ),
    Fault(
        "a training does not look at the code that it imported",
        LOOP,
        "    code_fingerprint.check_unchanged(run.sources, run.model.sources)\n",
        "",
        at("unit/test_code_fingerprint", "test_a_training_of_edited_code_ends_before_its_first_step"),
    ),
    # What a run is known by.
    Fault("runs of any length have the same numbers", IDENTITY, "adapter epochs", "adapter", PLACE),
    Fault("runs of any seed have the same numbers", IDENTITY, "SIZE = (", 'SIZE = ("seed", ', PLACE),
    Fault("runs of any code have the same numbers", IDENTITY, "SIZE = (", 'SIZE = ("sources", ', PLACE),
    Fault("numbers depend on the number of nodes", IDENTITY, '"nodes", "ranks_per_node"', '"ranks_per_node"', PLACE),
    Fault("another site trains all again", IDENTITY, '("site_name", "seal")', '("seal",)', KEYS),
    Fault("a warning trains all again", IDENTITY, '"numbers": "device"', '"numbers": "device warning"', KEYS),
    Fault(
        "numbers do not depend on DeepSpeed's settings",
        IDENTITY,
        'kept["engine_config"] = {',
        'kept["engine_config"] = {} and {',
        PLACE,
    ),
    Fault("the order of keys is part of a digest", IDENTITY, "sort_keys=True, ", "", DIGESTS),
    Fault(
        "a key that a run no longer has is no difference",
        IDENTITY,
        "for key in (*ours, *other)",
        "for key in (*ours,)",
        DIGESTS,
    ),
]
