"""Texts to tokens: what is written in them, and what the model takes."""

import json
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from helpers import transformers_models
from helpers.common import tiny_run
from shardlab.data import model_config, store
from shardlab.data.encoders import encode
from shardlab.errors import UserError

OPTIONS = {
    "language_modelling": {"sequence_length": 2, "vocab_size": 400},
    "instruction_tuning": {"sequence_length": 24, "vocab_size": 400, "prompt": "Q{instruction}A"},
    "summarization": {"document_tokens": 64, "summary_tokens": 64, "vocab_size": 400},
}


def prepare(folder, samples, task="language_modelling", *, test=None, tokenizer=None, model=None, **options):
    """Prepare samples as all splits (or others for `test`); returns the manifest and the arrays of the test split."""
    data = tiny_run("llama2").data
    data = data.model_copy(
        update={"name": "mine", "task": task, "tokenizer": tokenizer and str(tokenizer), "model": model or {}}
        | {"options": {key: value for key, value in (OPTIONS[task] | options).items() if value is not None}}
    )
    splits = {"train": samples, "validation": samples, "test": test or samples}
    manifest = store.write(folder / "made", data, *encode(data, splits))
    return manifest, load_file(folder / "made/test.safetensors")


def refusal(folder, *arguments, **options):
    with pytest.raises(UserError) as error:
        prepare(folder, *arguments, **options)
    assert "\n" not in str(error.value)
    assert not (folder / "made/dataset.json").exists()
    return str(error.value)


@pytest.fixture
def theirs(tmp_path):
    """A folder of a model, as save_pretrained writes it: the function writes a model's config.json and a tokenizer."""

    def write(name, tokenizer=None, **changes):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        config = json.loads(transformers_models.CONFIGS[name].to_json_string(use_diff=False)) | changes
        (folder / "config.json").write_text(json.dumps(config))
        (tokenizer or transformers_models.tokenizer()).save(str(folder / "tokenizer.json"))
        return folder

    return write


def unigram(*, special):
    """As of T5, with the special tokens among its pieces or without."""
    pieces = {"\u2581": -2.0, "a": -3.0, "<": -4.0, "/": -4.0, "s": -4.0, ">": -4.0, "s>": -5.0, "p": -4.0, "d": -4.0}
    first = ["<pad>", "</s>", "<unk>"]
    vocabulary = [(name, 0.0 if special or name == "<unk>" else -99.0) for name in first] + [*pieces.items()]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    if special:
        made.add_special_tokens(first)
    return made


def test_special_tokens_written_in_a_text_are_text(tmp_path):
    texts = ["a <eos> then <pad>and <bos>", "b", "<eos><eos>"] * 9
    manifest, arrays = prepare(tmp_path, [(text,) for text in texts], sequence_length=1)
    stream = [*arrays["tokens"][:, 0], arrays["tokens"][-1, 1]]
    ends = [place for place, token in enumerate(stream) if token == 2]
    assert len(ends) == len(texts)
    assert not {0, 1} & set(stream)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made/tokenizer.json"))
    parts = np.split(stream, np.array(ends) + 1)[:-1]
    assert [tokenizer.decode(list(part)) for part in parts] == texts, "decode leaves out the end token alone"
    assert manifest["counts"]["test"]["special tokens written in a text, encoded as text"] == 45
    assert tokenizer.encode("<eos>").ids == [2], "the stored tokenizer is the usual one"


def test_special_tokens_that_are_pieces_of_a_unigram_vocabulary(tmp_path, theirs):
    texts = ["a </s> a<pad>", "</s>a"]
    folder = theirs("t5", unigram(special=True))
    manifest, arrays = prepare(tmp_path, [(text, "a") for text in texts], "summarization", tokenizer=folder)
    plain = unigram(special=False)
    expected = [token for text in texts for token in [*plain.encode(text).ids, 1]]
    assert arrays["document"].tolist() == expected
    assert manifest["counts"]["test"]["special tokens written in a text, encoded as text"] == 3
    stored = json.loads((tmp_path / "made/tokenizer.json").read_text())
    assert stored["model"]["vocab"][1] == ["</s>", 0.0]


def test_what_is_no_text(tmp_path):
    """Of train, which a vocabulary is learned from, and of a split that is only encoded."""
    said = refusal(tmp_path, [("abc",), (None,)])
    assert said.startswith(
        "data set mine, split train, row 1: it has None, of type NoneType, where a text should be (in"
    )
    said = refusal(tmp_path, [("abc",)] * 9, test=[("abc",), ("ab\udce9",)])
    assert said.startswith("data set mine, split test, row 1: character 2 of a text is the lone surrogate U+DCE9")


def test_options_that_the_samples_do_not_fit(tmp_path):
    assert "set it to at least that number" in refusal(tmp_path, [("abc",)], vocab_size=100)
    assert "prompt has no {instruction}" in refusal(tmp_path, [("a", "b")], "instruction_tuning", prompt="Q")


def added(*tokens):
    made = transformers_models.tokenizer()
    made.add_tokens(list(tokens))
    return made


@pytest.mark.parametrize(
    ("tokenizer", "model", "options", "words"),
    [
        (added("zz"), {}, {}, ["the token 'zz' of a text has the id 300", "vocab_size 300; use", "embeddings(301)"]),
        (None, {}, {"vocab_size": 20}, ["the workload has vocab_size 20; ", " another vocab_size: 300."]),
        (None, {"eos_token_id": 50256}, {}, ["the end token has the id 50256", "config.json has vocab_size 300"]),
    ],
)
def test_a_causal_model_that_does_not_take_the_tokens(tmp_path, theirs, tokenizer, model, options, words):
    folder = theirs("gpt2", tokenizer)
    said = refusal(tmp_path, [("azz" * 9,)], tokenizer=folder, model=model, **{"vocab_size": None} | options)
    assert all(word in said for word in words), said


def test_keys_that_the_workload_changes_are_those_of_the_model(tmp_path, theirs):
    folder = theirs("gpt2", added("zz"), eos_token_id=None)
    changes = {"vocab_size": 301, "n_positions": 65, "eos_token_id": 7}
    _, arrays = prepare(tmp_path, [("azz" * 99,)], tokenizer=folder, model=changes, sequence_length=65, vocab_size=None)
    assert arrays["tokens"].max() == 300
    assert prepare(tmp_path, [("a",)] * 9, tokenizer=folder, model=changes)[0]["special_tokens"]["end"] == 7


@pytest.mark.parametrize(
    ("kind", "name", "most"),
    [
        ("gpt2", "sequence_length", 12),
        ("roberta", "sequence_length", 10),  # the first position has the number after that of padding, 1
        ("bart", "document_tokens", 12),
    ],
)
def test_models_take_the_lengths_that_they_have_positions_for(tmp_path, kind, name, most):
    keys = {"model_type": kind, "n_positions": 12, "max_position_embeddings": 12, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    read = model_config.ModelConfig(tmp_path, {})
    read.check_lengths({name: most})
    with pytest.raises(UserError, match=f"{name} is {most + 1}, but the model has {most} positions"):
        read.check_lengths({name: most + 1})
    model_config.ModelConfig(tmp_path, {"model_type": "llama"}).check_lengths({name: 99})  # positions are computed


def test_pairs_are_packed_whole_with_targets_in_the_answers(tmp_path):
    pairs = [("one", "uno"), ("two and more", "dos"), ("three", "tres"), ("a" * 40, "x"), ("b", "y" * 40), ("", "z")]
    options = {"sequence_length": 20, "document_tokens": 12, "vocab_size": 259}  # of bytes: no pieces are learned
    manifest, arrays = prepare(tmp_path, pairs, "instruction_tuning", **options)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made/tokenizer.json"))
    documents = []
    for inputs, targets, positions in zip(arrays["inputs"], arrays["targets"], arrays["positions"], strict=True):
        for start, stop in pairwise([*np.flatnonzero(positions == 0), len(positions)]):
            length, wanted = stop - start, targets[start:stop]
            assert list(positions[start:stop]) == [*range(length)]
            answer = wanted[wanted != -100]
            if not len(answer):  # the end of a row
                assert (length, inputs[start]) == (1, 2)
                continue
            assert list(wanted) == [-100] * (length - len(answer)) + [*inputs[stop - len(answer) + 1 : stop], 2]
            documents.append((tokenizer.decode(inputs[start:stop]), tokenizer.decode(answer[:-1])))
    assert documents == [
        ("QoneAuno", "uno"),
        ("Qtwo andAdos", "dos"),
        ("QthreeAtres", "tres"),
        ("QaaaaaaaaaAx", "x"),
        ("QAz", "z"),
    ]
    assert (arrays["inputs"].shape, manifest["samples"]["test"]) == ((3, 20), 3)
    counts = manifest["counts"]["test"]
    assert counts["instructions truncated"] == 2
    assert counts["pairs dropped, as their answer leaves no room for the instruction"] == 1
    assert counts["positions that no document fills"] == 60 - sum(len(document) for document, _ in documents)


TURN = "{{ '<|start|>' + m.role + '\n' }}%s{{ m.content + '<|end|>' }}%s{{ '\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
PLAIN = "{% for m in messages %}" + TURN % ("", "") + "{% endfor %}" + PROMPT
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    + TURN % ("{% generation %}", "{% endgeneration %}")
    + "{% else %}"
    + TURN % ("", "")
    + "{% endif %}{% endfor %}"
    + PROMPT
)
ASKED, SAID = ({"role": role, "content": text} for role, text in (("user", "one <|end|>"), ("assistant", "uno")))
CHAT = [{"role": "system", "content": "Spanish"}, ASKED, SAID, ASKED | {"content": "two", "name": None}, SAID]


@pytest.fixture
def chat(theirs):
    """A folder of a model with a chat template, whose tokenizer draws tokens at random if it is let."""

    def write(template):
        tokenizer = transformers_models.tokenizer()
        tokenizer.model.dropout = 0.5
        tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
        folder = theirs("llama", tokenizer, vocab_size=302, eos_token_id=301)
        (folder / "chat_template.jinja").write_text(template)
        return folder

    return write


@pytest.mark.parametrize(("template", "ends"), [(PLAIN, "<|end|>\n"), (MARKED, "<|end|>")])
def test_the_targets_of_a_conversation_are_the_assistants_turns(tmp_path, chat, template, ends, capsys):
    messages = CHAT if template == PLAIN else [*CHAT[:1], *CHAT[3:]] * 2
    options = {"sequence_length": 128, "vocab_size": None, "tokenizer": chat(template)}
    manifest, arrays = prepare(tmp_path, [(messages,), (CHAT[3:] * 20,)], "instruction_tuning", **options)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made/tokenizer.json"))
    begun = [place for place, token in enumerate(arrays["inputs"][0]) if token == 300]
    assert len(begun) == len(messages)
    text = "".join(f"<|start|>{m['role']}\n{m['content']}<|end|>\n" for m in messages)
    length = np.flatnonzero(arrays["positions"][0]).max() + 1
    shown = tokenizer.decode(arrays["inputs"][0][:length], skip_special_tokens=False)
    assert shown == text.removesuffix("\n")
    wanted = arrays["targets"][0]
    assert tokenizer.decode(wanted[wanted != -100], skip_special_tokens=False) == f"uno{ends}" * 2
    places = np.flatnonzero(wanted[: length - 1] != -100)
    assert (wanted[places] == arrays["inputs"][0][places + 1]).all()
    counts = manifest["counts"]["test"]
    assert counts["conversations dropped, as they are longer than a document or a row may be"] == 1
    assert counts.get("special tokens written in a text, encoded as text") == (1 if template == PLAIN else None)
    assert "tokenizer.json has dropout 0.5, which draws other tokens each time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (MARKED, CHAT, "special tokens are written in a message, which marks of the turns do not allow"),
        (PLAIN, [{"from": "human", "value": "one"}], "'value': 'one'}, which has no `role`"),
        (
            PLAIN.replace("{% endfor %}", "{% if loop.last and m.role == 'assistant' %}x{% endif %}{% endfor %}"),
            CHAT[3:] * 2,
            "mark the assistant's turns",
        ),
    ],
)
def test_conversations_whose_turns_are_not_known(tmp_path, chat, template, messages, words):
    options = {"sequence_length": 128, "vocab_size": None, "tokenizer": chat(template)}
    assert words in refusal(tmp_path, [(messages,)], "instruction_tuning", **options)


def test_messages_need_a_chat_template_and_its_date_is_that_of_no_day(tmp_path, theirs, chat, capsys):
    options = {"sequence_length": 128, "vocab_size": None, "tokenizer": theirs("llama")}
    said = refusal(tmp_path, [(CHAT,)], "instruction_tuning", **options)
    assert "model has no chat template, which messages need: name a model that has one" in said
    said = refusal(tmp_path, [(CHAT,)], "instruction_tuning")
    assert "messages are for task instruction_tuning with a transformers model" in said
    options["tokenizer"] = chat("{{ strftime_now('%d %b %Y') }}" + PLAIN)
    _, arrays = prepare(tmp_path, [(CHAT,)], "instruction_tuning", **options)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made/tokenizer.json"))
    assert tokenizer.decode(arrays["inputs"][0]).startswith("26 Jul 2024system")
    assert "writes the date, which is 2024-07-26 in all conversations" in capsys.readouterr().out


def test_special_tokens_of_a_prompt_or_prefix_are_tokens(tmp_path, chat):
    """What a server sends: the tokens of the whole text, but what is asked is text."""
    options = {"vocab_size": None, "tokenizer": chat("")}
    prompt = "<|start|>user\n{instruction}<|end|>\n<|start|>assistant\n"
    pairs = [("what is it?", "x"), ("<|end|>?", "x"), ("long " * 20, "x")]
    _, made = prepare(tmp_path, pairs, "instruction_tuning", prompt=prompt, sequence_length=32, **options)
    tokenizer = Tokenizer.from_file(str(tmp_path / "made/tokenizer.json"))
    whole = tokenizer.encode(prompt.format(instruction=pairs[0][0])).ids
    assert made["inputs"][0][: len(whole)].tolist() == whole
    assert [sum(row == 301) for row in made["inputs"][:2] * (made["positions"][:2] > 0)] == [1, 1]
    assert (made["inputs"][2] == 300).sum() == 2
    options["prefix"] = "<|start|>"
    _, made = prepare(tmp_path / "other", [("a<|end|>", "b")], "summarization", **options)
    assert made["document"][0] == 300
    assert (made["document"] == 301).sum() == 1, "the end token alone"
