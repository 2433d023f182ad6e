"""Faults of the values in prepared data, and of what is made again after an edit."""

from fault import Fault, S, at

PICTURES, TEXT, CONFIG = f"{S}data/pictures.py", f"{S}data/text.py", f"{S}data/model_config.py"
OF_PICTURES, OF_TEXTS = "unit/test_pictures_and_labels", "unit/test_texts"

FAULTS = [
    Fault(
        "pictures of 16 bits keep their high byte",
        PICTURES,
        "(values + 128) // 257",
        "values // 256",
        at(OF_PICTURES, "test_16_bits_are_scaled"),
    ),
    Fault(
        "what is transparent is black",
        PICTURES,
        "Image.alpha_composite(below, layer)",
        'layer.convert("RGB")',
        at(OF_PICTURES, "test_what_is_transparent_shows_the_background"),
    ),
    Fault(
        "labels lose their fraction",
        PICTURES,
        " or number != int(number)",
        "",
        at(OF_PICTURES, "test_what_is_no_label"),
    ),
    Fault(
        "special tokens written in a text become their ids",
        TEXT,
        "encoder.encode_special_tokens = True",
        "encoder.encode_special_tokens = False",
        at(OF_TEXTS, "test_special_tokens_written_in_a_text_are_text"),
    ),
    Fault(
        "special tokens are pieces of a Unigram vocabulary",
        TEXT,
        "piece[1] = NEVER",
        "pass",
        at(OF_TEXTS, "test_special_tokens_that_are_pieces_of_a_unigram_vocabulary"),
    ),
    Fault(
        "a token's id is the model's vocab_size",
        TEXT,
        "and most >= self.vocab_size",
        "and most > self.vocab_size",
        at(OF_TEXTS, "test_a_causal_model_that_does_not_take_the_tokens"),
    ),
    Fault(
        "a text has one token more than the model positions",
        CONFIG,
        "if options[option] > (positions",
        "if options[option] - 1 > (positions",
        at(OF_TEXTS, "test_models_take_the_lengths_that_are_accepted_and_no_others"),
    ),
    Fault(
        "a changed job whose ancient input is made again does not run",
        f"{S}patches/snakemake_dag.py",
        "depending, self.depending = self.depending, _Following(self.depending)",
        "depending = self.depending",
        at("workflow/test_edits", "test_one_call_after_an_edit_of_data_model_or_tokenizer"),
    ),
]
