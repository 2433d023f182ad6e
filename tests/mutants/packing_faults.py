"""Rows of several documents: positions, attention and targets of each, whole or split."""

from fault import MODELS, TASKS, Fault, S, at, parity, reference

CONTEXT, RING = f"{S}parallel/context.py", f"{S}parallel/ring.py"
LAYERS, ENCODER = f"{MODELS}/_layers.py", f"{S}data/encoders/instruction_tuning.py"
LIBRARY_CONTEXT, LIBRARY = f"{S}parallel/library_context.py", f"{MODELS}/_transformers.py"
PAIRS = at("unit/test_texts", "test_pairs_are_packed_whole_with_targets_in_the_answers")


def proof(case: str) -> tuple[str, ...]:
    """The proof of a strategy at tiny sizes, with rows of several documents."""
    return at("parity/test_proofs", f"test_a_fault_is_found_and_named[packed_{case}-equal-]")


FAULTS = [
    Fault(
        "attention across the documents of a row",
        LAYERS,
        "if documents is not None:",
        "if False:",
        reference("instruct"),
    ),
    Fault(
        "positions go on from one document of a row to the next",
        LAYERS,
        "own = self.sequence.part(positions, 1)",
        "own = self.sequence.part(torch.arange(positions.shape[1]).expand_as(positions), 1)",
        at("unit/test_models", "test_rows_of_documents_turn_by_positions_in_each"),
    ),
    Fault(
        "the loss is on the instruction, too",
        ENCODER,
        "[False] * len(prompt) + [True]",
        "[True] * len(prompt) + [True]",
        PAIRS,
    ),
    Fault(
        "an answer without the end token as its last target",
        ENCODER,
        "[*prompt, *answer, end]",
        "[*prompt, *answer, answer[-1] if answer else end]",
        PAIRS,
    ),
    Fault(
        "the loss divided by all tokens of a batch instead of those of answers",
        f"{TASKS}/instruction_tuning.py",
        'int((self.arrays(split)["targets"][indices] != IGNORE).sum())',
        'int(self.arrays(split)["targets"][indices].size)',
        reference("instruct"),
    ),
    Fault(
        "documents numbered anew in each part of a row",
        CONTEXT,
        "        if documents is not None:\n",
        "        if documents is not None:\n"
        "            documents = torch.cat([part - part[:, :1] for part in documents.chunk(split.count, 1)], 1)\n",
        parity("cp-instruct-float64"),
    ),
    Fault(
        "each rank turns its part of a row by the first part's positions",
        LAYERS,
        "own = self.sequence.part(positions, 1)",
        "own = positions[:, : positions.shape[1] // self.sequence.ranks]",
        parity("cp-instruct-float64"),
    ),
    Fault(
        "a ring's documents of the own part for those of others",
        RING,
        "parts[source][:, block.keys]",
        "parts[split.rank][:, block.keys]",
        at("parity/test_context", "test_split_sequences_equal_one_process[2-ring]"),
    ),
    Fault(
        "a library's model is not told where documents begin",
        LIBRARY,
        'named["position_ids"] = positions',
        "pass",
        proof("single"),
    ),
    Fault(
        "a library's split sequences attend across the documents of a row",
        LIBRARY_CONTEXT,
        "            allowed = allowed & same_document(documents[:, queries], documents)\n",
        "",
        proof("cp"),
    ),
    Fault(
        "a library's ring attends across the documents of a row",
        LIBRARY_CONTEXT,
        "return None if positions is None else documents_of(positions)[:, None, None, :]",
        "return None",
        proof("cp_ring"),
    ),
    Fault(
        "a plan of a library's packed rows leaves out their masks",
        f"{S}plan/simulate.py",
        "if run.model.folder and not task.packed:",
        "if run.model.folder:",
        at("parity/test_transformers", "test_equals_one_device[fsdp-gpt2_packed]"),
    ),
]
