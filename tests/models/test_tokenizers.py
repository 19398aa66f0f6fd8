"""Loading a tokenizer from its tokenizer.json, whatever the files beside it contain."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from baton.tasks.core.job import StageError
from baton.tasks.models.tokenizer_files import chat_templates
from baton.tasks.models.tokenizers import alone, beginning, begun, check, elsewhere, load, parsed, plain, write
from tests.tokenizer_folders import BEGIN, CHATML, DIGITS, END, PAD, TEXT, TURNS, byte_level, folder, metaspace

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
OTHERS: list[tuple[str | None, str, Tokenizer]] = [  # tokenizers that AutoTokenizer changes
    ("llama", "LlamaTokenizerFast", byte_level()),  # DeepSeek-coder, Yi
    ("llama", "LlamaTokenizer", byte_level(pattern=GPT2)),
    (None, "LlamaTokenizerFast", byte_level()),
    ("qwen2", "Qwen2Tokenizer", byte_level(pattern=GPT2)),
    ("qwen2", "PreTrainedTokenizerFast", byte_level(pattern=GPT2)),
    ("qwen3", "Qwen2Tokenizer", byte_level()),  # this class adds <|endoftext|>
    ("gemma2", "GemmaTokenizer", byte_level()),  # this class refuses the vocabulary
    ("gpt2", "GPT2Tokenizer", byte_level()),
]


@pytest.mark.parametrize(("model_type", "kind", "tokenizer"), OTHERS)
def test_it_is_loaded_as_tokenizer_json_says_not_as_its_class_does(
    model_type: str | None, kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    place = folder(tmp_path, tokenizer, model_type=model_type, tokenizer_class=kind)

    loaded = load(place)  # compares it with tokenizer.json on a sample

    assert len(loaded) == tokenizer.get_vocab_size()
    assert (loaded.eos_token, loaded.pad_token) == (END, PAD)
    text = "The river was  calm in 2023,\n    and don't."
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids and loaded.decode(loaded(text)["input_ids"]) == text
    assert elsewhere(place)  # if this fails with a newer Transformers, the workaround can be removed
    with pytest.raises(Exception, match=r"tokenize|vocabulary"):
        check(AutoTokenizer.from_pretrained(place), place)


@given(text=st.text() | st.lists(st.sampled_from([END, PAD, *TURNS, BEGIN, " ", "a", "\n", "é"])).map("".join))
@settings(max_examples=200)
def test_every_text_has_the_ids_of_tokenizer_json(text: str, family: tuple[Any, Tokenizer]) -> None:
    loaded, tokenizer = family
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert loaded.decode(loaded(text)["input_ids"]) == tokenizer.decode(tokenizer.encode(text).ids, False)


@pytest.fixture(scope="module", params=["byte level", "metaspace"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Tokenizer]:
    tokenizer = byte_level(END, PAD, BEGIN, *TURNS, begin=BEGIN) if request.param == "byte level" else metaspace()
    config = {} if request.param == "byte level" else {"eos_token": "</s>", "pad_token": None}
    place = folder(tmp_path_factory.mktemp("family"), tokenizer, tokenizer_class="LlamaTokenizerFast", **config)
    return load(place), tokenizer


@pytest.mark.parametrize(
    "setting",
    [
        {"split_special_tokens": True},
        {"add_prefix_space": True},
        {"fix_mistral_regex": True},
        {"do_lower_case": True},
        {"add_bos_token": True, "bos_token": END},
        {"auto_map": {"AutoTokenizer": ["remote.Code", None]}},
        {"added_tokens_decoder": {"0": {"content": END, "lstrip": True, "rstrip": True, "special": True}}},
    ],
)
def test_a_setting_beside_it_does_not_change_its_tokens(setting: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = byte_level()
    loaded = load(folder(tmp_path, tokenizer, **setting))
    text = f" A {END} b"
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids


@pytest.mark.parametrize(
    ("setting", "begin", "message"),
    [
        ({"add_bos_token": True, "bos_token": END}, None, "tokenizer_config.json says add_bos_token: true, but"),
        ({"add_bos_token": False}, BEGIN, "says add_bos_token: false, but tokenizer.json, which Baton follows"),
        (
            {"add_eos_token": True, "split_special_tokens": True},
            None,
            "add_eos_token: true, split_special_tokens: true",
        ),
        ({"add_bos_token": True, "add_eos_token": False}, BEGIN, ""),
        ({"add_bos_token": False}, None, ""),
    ],
)
def test_a_setting_that_tokenizer_json_contradicts_is_named(
    setting: dict[str, Any], begin: str | None, message: str, tmp_path: Path
) -> None:
    tokenizer = byte_level(END, PAD, BEGIN, begin=begin) if begin else byte_level()
    (tmp_path / "written").mkdir()
    notices = write(folder(tmp_path / "given", tokenizer, **setting), tmp_path / "written")
    assert [each for each in notices if "which Baton follows" in each] == [
        each for each in notices if message and message in each
    ]
    assert any(message in each for each in notices) == bool(message)


def test_no_space_is_lost_when_tokens_are_decoded(tmp_path: Path) -> None:
    """Llama 3's tokenizer_config.json removes spaces before punctuation; vLLM ignores that setting."""
    loaded = load(folder(tmp_path, byte_level(), clean_up_tokenization_spaces=True))
    assert loaded.decode(loaded("f( 1 , 2 ) is n't !")["input_ids"]) == "f( 1 , 2 ) is n't !"


def test_nothing_is_cut_off_or_padded(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9, pad_token=PAD, pad_id=1)
    place = folder(tmp_path, tokenizer)
    for text in ("a", "The river was calm. " * 9):
        ids = plain(place).encode(text).ids
        assert len(ids) == (1 if text == "a" else 54) and load(place)(text)["input_ids"] == ids


def test_the_token_for_what_is_unknown_may_stand_for_its_own_name(tmp_path: Path) -> None:
    """BERT's normalizer removes private-use characters, so the test for an unknown token uses a letter."""
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "river": 1}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]"])
    place = folder(tmp_path, tokenizer, eos_token=None, pad_token=None, unk_token="[UNK]")
    assert plain(place).encode("river [UNK]").ids == [1, 0, 0, 0]


def test_random_tokens_are_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.model.dropout = 0.1
    with pytest.raises(StageError, match=r"has dropout 0\.1, which makes tokens random"):
        plain(folder(tmp_path, tokenizer))
    tokenizer.model.dropout = 0.0
    assert load(folder(tmp_path, tokenizer))


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=99, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(special_tokens=["[UNK]"], show_progress=False))
    return tokenizer


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(TEXT, trainers.WordLevelTrainer(special_tokens=special, show_progress=False))
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "lost"),
    [
        (unigram(), "78 of 116 characters that were tried, such as 5 6 7"),
        (words(), "60 of 116"),
        (Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])), "114 of 116"),  # unknown characters are dropped
        (byte_level(), None),
        (metaspace(), None),
    ],
)
def test_letters_that_a_tokenizer_loses_are_reported(tokenizer: Tokenizer, lost: str | None, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    notices = write(folder(tmp_path / "it", tokenizer, eos_token=None, pad_token=None), tmp_path / "copy")
    assert (lost or "") in "".join(notices[:1]) and (lost or not notices)


@pytest.mark.parametrize(
    ("normalizer", "notices"),
    [
        (normalizers.NFC(), []),
        (normalizers.Lowercase(), ["upper case ('Ab' becomes 'ab')"]),
        (normalizers.NFKC(), ["ligatures ('ﬁ' becomes 'fi')", "full-width letters", "superscripts"]),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), ["accents ('é' becomes 'e')"]),
        (normalizers.Strip(), ["white space around a text ('\\n\\ta \\n' becomes 'a')"]),
        (normalizers.Replace(Regex("🙂"), ""), ["emoji ('🙂' becomes '')"]),
        (normalizers.Replace(Regex(r"[0-9]"), "0"), ["digits ('12' becomes '00')"]),
        (normalizers.Replace(Regex(r"\s+"), " "), ["several spaces", "tabs", "line ends ('a\\nb' becomes 'a b')"]),
    ],
)
def test_what_a_tokenizer_changes_is_reported(normalizer: Any, notices: list[str], tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    (tmp_path / "copy").mkdir()
    notice = "".join(write(folder(tmp_path / "it", tokenizer), tmp_path / "copy"))
    assert all(each in notice for each in notices) and bool(notices) == bool(notice)


def test_an_end_that_a_tokenizer_puts_behind_prompts_is_reported(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (notice,) = write(folder(tmp_path / "it", byte_level(end=END)), tmp_path / "copy")
    assert f"appends {END} to every text" in notice


def test_a_token_that_tokenizer_json_lacks_is_left_out_and_reported(tmp_path: Path) -> None:
    """Transformers adds the token at an id that the model's embedding lacks."""
    place = folder(tmp_path / "it", byte_level(), pad_token="[PAD]", additional_special_tokens=["<extra>", END])
    (tmp_path / "copy").mkdir()

    assert write(place, tmp_path / "copy") == [
        "[PAD] (pad_token), <extra>: left out, since tokenizer.json has no such token"
    ]

    loaded = load(place)
    assert (loaded.pad_token, len(loaded)) == (END, byte_level().get_vocab_size())
    assert (
        len(AutoTokenizer.from_pretrained(tmp_path / "copy"))
        == len(loaded)
        == len(AutoTokenizer.from_pretrained(place)) - 2
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"400": {"content": "<extra>", "special": True}}}),
        ("added_tokens.json", {"<extra>": 400}),
        ("added_tokens.json", {END: 7}),
    ],
)
def test_files_that_disagree_about_a_token_s_id_are_refused(name: str, content: dict[str, Any], tmp_path: Path) -> None:
    place = folder(tmp_path, byte_level())
    (place / name).write_text(json.dumps(content))
    with pytest.raises(StageError, match=rf"{name} has tokens that tokenizer.json lacks or gives another id: <"):
        load(place)


def test_an_added_token_with_a_gap_below_its_id_is_refused(tmp_path: Path) -> None:
    """The tokenizers library gives the token the next id, which is another row of the model's embedding."""
    tokenizer = byte_level()
    place = folder(tmp_path, tokenizer)
    content = json.loads((place / "tokenizer.json").read_text())
    size = tokenizer.get_vocab_size()
    content["added_tokens"].append(content["added_tokens"][0] | {"id": size + 3, "content": "<far>"})
    (place / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(StageError, match=rf"other ids than the file: <far> {size + 3} \(becomes {size}\)"):
        load(place)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", None])
def test_without_tokenizer_json_it_is_refused(name: str | None, tmp_path: Path) -> None:
    """A sentencepiece model that Transformers converts has other ids for texts that begin with a space (5.17)."""
    if name:
        (tmp_path / name).write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    with pytest.raises(StageError, match=r"has no tokenizer\.json.*use a revision that has one"):
        load(tmp_path)


def test_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path, byte_level())
    (place / "tokenizer.json").write_text("{}")
    with pytest.raises(StageError, match=r"tokenizer\.json: cannot be read"):
        load(place)
    folder(place, byte_level())
    (place / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(StageError, match=r"chat_template\.jinja: cannot be read"):
        load(place)
    (place / "tokenizer_config.json").write_text("[]")
    with pytest.raises(StageError, match=r"tokenizer_config\.json: an object expected"):
        load(place)


@pytest.mark.parametrize(
    "config",
    [
        {"padding_side": "middle"},
        {"model_max_length": "long"},
        {"chat_template": 5},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": {"default": None}},
        {"added_tokens_decoder": [END]},
        {"added_tokens_decoder": {"first": {"content": END}}},
    ],
)
def test_a_value_of_the_wrong_type_is_named(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"tokenizer_config\.json"):
        load(folder(tmp_path, byte_level(), **config))


# Copies


@pytest.mark.parametrize(("model_type", "kind", "tokenizer"), OTHERS)
def test_a_copy_is_right_for_everyone_who_loads_it(
    model_type: str | None, kind: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """tokenizer.json is copied byte for byte. With a config.json of Qwen2's type, AutoTokenizer uses its own class,
    whatever tokenizer_config.json specifies. A notice reports this, and engines get a folder that contains only the
    tokenizer."""
    place = folder(tmp_path / "it", tokenizer, model_type=model_type, tokenizer_class=kind, chat_template=CHATML)
    copy = tmp_path / "copy"
    copy.mkdir()
    if model_type:
        shutil.copy(place / "config.json", copy)

    write(place, copy)

    assert (copy / "tokenizer.json").read_bytes() == (place / "tokenizer.json").read_bytes()
    assert bool(elsewhere(copy)) == (model_type == "qwen2")
    of_engines = AutoTokenizer.from_pretrained(alone(copy))
    check(of_engines, place)
    assert of_engines.chat_template == CHATML
    assert alone(copy) == alone(place)  # the folder is made only once


def test_engines_print_no_warning_for_a_large_vocabulary(tmp_path: Path) -> None:
    """Transformers mistakes a tokenizer with more than 100,000 tokens for one of Mistral's."""
    content = json.loads(byte_level().to_str())
    size = len(content["model"]["vocab"])
    content["model"]["vocab"] |= {f"entry{number}": size + number for number in range(100_001)}
    place = alone(folder(tmp_path, Tokenizer.from_str(json.dumps(content))))
    program = "import sys; from transformers import AutoTokenizer; AutoTokenizer.from_pretrained(sys.argv[1])"
    ended = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, check=True)
    assert "fix_mistral_regex" not in ended.stdout + ended.stderr


def test_a_copy_of_a_copy_is_the_same(tmp_path: Path) -> None:
    place = folder(
        tmp_path / "it", byte_level(), chat_template=[{"name": name, "template": name} for name in ("a", "default")]
    )
    copies = [tmp_path / name for name in ("one", "two")]
    for source, copy in zip([place, *copies], copies, strict=False):
        copy.mkdir()
        write(source, copy)
    one, two = ({path.name: path.read_bytes() for path in copy.iterdir()} for copy in copies)
    assert one == two


# Chat templates: the rule that selects the template


@pytest.mark.parametrize(
    ("config", "files", "used"),
    [
        ({}, {}, {}),
        ({"chat_template": "C"}, {}, {"default": "C"}),
        ({"chat_template": "C"}, {"chat_template.jinja": "J"}, {"default": "J"}),
        ({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}, {},
         {"default": "D", "tool_use": "T"}),
        ({"chat_template": [{"name": "chat", "template": "D"}]}, {}, {"default": "D"}),
        ({}, {"chat_template.jinja": "J", "additional_chat_templates/tool_use.jinja": "T"},
         {"default": "J", "tool_use": "T"}),
        ({"chat_template": "C"}, {"additional_chat_templates/tool_use.jinja": "T"}, {"default": "C", "tool_use": "T"}),
        ({}, {"additional_chat_templates/rag.jinja": "R"}, {"default": "R"}),
        ({}, {"chat_template.json": '{"chat_template": "P"}'}, {"default": "P"}),
        ({"chat_template": "C"}, {"chat_template.json": '{"chat_template": "P"}'}, {"default": "C"}),
    ],
)  # fmt: skip
def test_the_chat_template_that_is_used(
    config: dict[str, Any], files: dict[str, str], used: dict[str, str], tmp_path: Path
) -> None:
    place = folder(tmp_path, byte_level(), **config)
    for name, content in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)
    assert chat_templates(place) == used
    assert load(place).chat_template == (used.get("default") if len(used) < 2 else used)


def test_of_several_without_a_default_one_must_be_chosen(tmp_path: Path) -> None:
    named = [{"name": name, "template": name.upper()} for name in ("rag", "tool_use")]
    place = folder(tmp_path, byte_level(), chat_template=named)
    with pytest.raises(StageError, match="chat templates rag, tool_use, and none is called default: choose one"):
        load(place)
    assert load(place, "rag").chat_template == "RAG"
    with pytest.raises(StageError, match="no chat template 'chat'; there are rag, tool_use"):
        load(place, "chat")


def test_several_templates_with_one_name_are_refused(tmp_path: Path) -> None:
    place = folder(tmp_path, byte_level(), chat_template=[{"name": "default", "template": text} for text in "AB"])
    with pytest.raises(StageError, match="several of default have one name: keep one of each"):
        load(place)


# The beginning of a text


@pytest.mark.parametrize(("begin", "end", "begins"), [("", "", []), (BEGIN, "", [2]), (BEGIN, END, [2]), ("", END, [])])
def test_a_prompt_begins_as_the_tokenizer_says_once_and_does_not_end(
    begin: str, end: str, begins: list[int], tmp_path: Path
) -> None:
    tokenizer = byte_level(END, PAD, BEGIN, begin=begin, end=end)
    loaded = load(folder(tmp_path, tokenizer, bos_token=BEGIN))
    ids = tokenizer.encode("a b", add_special_tokens=False).ids
    assert beginning(tokenizer) == begins
    assert begun(begins, parsed(loaded, "a b")) == [*begins, *ids]
    assert begun(begins, parsed(loaded, f"{BEGIN}a b")) == [2, *ids]
    assert begun(begins, []) == begins


def test_what_a_corpus_says_is_text(tmp_path: Path) -> None:
    place = folder(tmp_path, byte_level(END, PAD, pattern=DIGITS))
    assert not {0, 1} & set(plain(place).encode(f"a{END}b{PAD}", add_special_tokens=False).ids)
    assert parsed(load(place), f"a{END}")[-1] == 0


@pytest.mark.parametrize("made", [unigram, word_level])
def test_what_a_corpus_says_is_text_also_if_the_vocabulary_has_it_as_a_word(
    made: Callable[[], Tokenizer], tmp_path: Path
) -> None:
    """Unigram's trainer gives special tokens the best score; in WordLevel they are words."""
    tokenizer = made()
    place = folder(tmp_path, tokenizer, eos_token="</s>", pad_token=None, bos_token="<s>")
    special = {tokenizer.token_to_id(token) for token in ("<s>", "</s>")}
    text = plain(place)
    assert not special & set(text.encode("a </s> b</s>c <s>", add_special_tokens=False).ids)
    assert text.encode("The river").ids == tokenizer.encode("The river").ids
    assert special < set(parsed(load(place), "a </s> <s>"))


def test_a_tokenizer_that_would_make_a_special_token_of_text_is_refused(tmp_path: Path) -> None:
    vocabulary = {letter: number for number, letter in enumerate(["a", "b", " ", "<", "e", ">", "<e", "<e>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("<", "e"), ("<e", ">")]))
    tokenizer.add_special_tokens(["<e>"])
    with pytest.raises(StageError, match="text that has '<e>' would become this token"):
        plain(folder(tmp_path, tokenizer, eos_token="<e>", pad_token=None))


def test_a_tokenizer_that_makes_a_special_token_of_a_whole_text_is_refused(tmp_path: Path) -> None:
    """With `ignore_merges`, a piece that is in the vocabulary is one token, whatever the merges are."""
    tokenizer = metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.model.ignore_merges = True
    with pytest.raises(StageError, match="would become this token"):
        plain(folder(tmp_path, tokenizer, eos_token="</s>", pad_token=None))


def test_a_corpus_ends_no_document_and_begins_no_turn_whether_or_not_the_file_calls_a_token_special(
    tmp_path: Path,
) -> None:
    """Qwen's <tool_call> and Gemma's first <start_of_turn> are not special, and neither are runs of spaces, which are
    text."""
    tokenizer = byte_level(pattern=DIGITS)
    tokenizer.add_tokens(["<turn>", "<table>", "user", "    "])
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token | {"special": False} for token in content["added_tokens"]]
    template = "{% for message in messages %}\n    <turn>user {{ message.content }}{% endfor %}"
    place = folder(tmp_path, Tokenizer.from_str(json.dumps(content)), chat_template=template)
    text = f"a{END}b{PAD}<turn><table>user    c"

    tokens = plain(place).encode(text).tokens

    assert [token for token in tokens if len(token) > 3] == ["<table>", "user", "    "]
    assert {END, PAD, "<turn>"} < set(load(place).convert_ids_to_tokens(parsed(load(place), text)))
