"""Tokenizers: text comes back from its tokens, and the bytes of tokens add up to those of the text."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from adapos.bench import tokenizer as module
from adapos.bench.tokenizer import Tokenizer, pieces, tokenizer

TEXTS = ("", "plain words\n", "käse und 日本語 🙂🙂\n\n  indented\ttabs  ", " \n ", "a" * 300 + " " * 300 + "b")


def saved(folder: Path, made: object, **config: object) -> str:
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))  # type: ignore[attr-defined]
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def pairs_of_bytes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Byte pairs: characters beyond ASCII are several tokens. It was saved so as to cut texts to four tokens."""
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["plain words in words, in plain and indented lines\n"] * 20, trainer)
    made.add_special_tokens(["<start>"])
    made.post_processor = library.processors.TemplateProcessing(
        single="<start> $A", special_tokens=[("<start>", made.token_to_id("<start>"))]
    )
    made.enable_truncation(4)
    return saved(tmp_path_factory.mktemp("bpe") / "pairs", made)


@pytest.fixture(scope="module")
def whole_words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Words: spaces are between tokens, and unknown words are one token of any width."""
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.WordLevel({"[UNK]": 0, "plain": 1, "words": 2, "far": 999}, "[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    return saved(tmp_path_factory.mktemp("words") / "words", made, unk_token="[UNK]")


@pytest.fixture(params=["bytes", "pairs_of_bytes", "whole_words"])
def reader(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer("bytes" if request.param == "bytes" else request.getfixturevalue(request.param))


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_add_up_to_those_of_the_text(reader: Tokenizer, text: str) -> None:
    ids, widths = reader.encode(text), reader.widths(text)
    assert ids.dtype == widths.dtype == np.int64
    assert len(ids) == len(widths)
    assert (widths >= 0).all()
    assert ((ids >= 0) & (ids < reader.vocabulary)).all()
    assert widths.sum() == (len(text.encode()) if len(ids) else 0)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["bytes", "pairs_of_bytes"])
def test_text_comes_back_from_its_tokens(request: pytest.FixtureRequest, name: str, text: str) -> None:
    reader = tokenizer("bytes" if name == "bytes" else request.getfixturevalue(name))
    assert reader.decode(reader.encode(text)) == text


def test_bytes_are_tokens_of_one_byte() -> None:
    reader = tokenizer("bytes")
    assert (reader.name, reader.vocabulary) == ("bytes", 256)
    assert reader.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert reader.widths("aé").tolist() == [1, 1, 1]
    assert reader.decode(np.array([97, 0xC3])) == "a\ufffd"


def test_widths_follow_the_offsets(pairs_of_bytes: str, whole_words: str) -> None:
    # the euro sign is three tokens, and the first has its three bytes
    assert tokenizer(pairs_of_bytes).widths("a€").tolist() == [1, 3, 0, 0]
    # spaces before a word are its own, those after the last word the last word's
    assert tokenizer(whole_words).widths("  plain  Käse words \n").tolist() == [7, 7, 8]


def test_nothing_is_added_and_nothing_cut(pairs_of_bytes: str) -> None:
    reader = tokenizer(pairs_of_bytes)
    ids = reader.encode("plain words in plain words in plain words")
    assert len(ids) > 4
    assert reader.encode("<start>plain")[0] == reader.vocabulary - 1 not in ids
    assert reader.decode(reader.encode("<start>plain")) == "<start>plain"


def test_the_vocabulary_holds_the_greatest_token(whole_words: str) -> None:
    assert tokenizer(whole_words).vocabulary == 1000


def test_the_fingerprint_is_of_the_contents(pairs_of_bytes: str, whole_words: str, tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer.from_file(f"{whole_words}/tokenizer.json")
    same = tokenizer(saved(tmp_path / "same", made, unk_token="[UNK]"))
    made.add_tokens(["more"])
    other = tokenizer(saved(tmp_path / "other", made, unk_token="[UNK]"))
    before = tokenizer(whole_words).fingerprint
    assert same.fingerprint == before
    assert len({before, other.fingerprint, tokenizer(pairs_of_bytes).fingerprint, tokenizer("bytes").fingerprint}) == 4


def test_long_text_is_cut_at_lines_and_never_inside_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 10)
    for text in ("", "short", "one\ntwo\nthree\nfour\n", "x" * 35, "é€🙂" * 9, "a\n" + "€" * 12 + "\nb", "\n" * 25):
        found = list(pieces(text.encode()))
        assert "".join(piece.decode() for piece in found) == text
        assert all(0 < len(piece) <= 10 for piece in found) or text == ""
    assert list(pieces(b"one\ntwo\nthree\nfour\n")) == [b"one\ntwo\n", b"three\n", b"four\n"]


def test_a_document_is_read_piece_by_piece(reader: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 16)
    text = "plain words\nKäse and words\n" * 5
    read = list(reader.read(text.encode()))
    assert len(read) > 5
    assert sum(int(widths.sum()) for _, widths in read) == len(text.encode())
    expected = [reader.encode(piece.decode()) for piece in pieces(text.encode())]
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in read]), np.concatenate(expected))


def test_a_name_near_bytes_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"^tokenizer must be 'bytes' or a .*, not 'byte'; did you mean 'bytes'\?$"):
        tokenizer("byte")


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("nonsense")
    with pytest.raises(ValueError, match=r"^tokenizer must be 'bytes' or .* and '\S+' cannot be loaded: .") as caught:
        tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_code_from_elsewhere_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('was run')")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own"}))
    with pytest.raises(ValueError, match="cannot be loaded"):
        tokenizer(str(tmp_path))


def test_a_slow_tokenizer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")

    class Slow:
        is_fast = False

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Slow())
    with pytest.raises(
        ValueError, match=r"^the tokenizer 'slow' has no fast form, which alone tells the bytes of each"
    ):
        tokenizer("slow")


def test_transformers_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"^the tokenizer 'gpt2' needs transformers: pip install 'adapos\[hf\]'$"):
        tokenizer("gpt2")
