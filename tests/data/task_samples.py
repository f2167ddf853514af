"""A handful of rows for every task, in the layout and under the names in which its data is published."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np


def lines(*rows: Any) -> str:
    """Rows of fields as tsv, dictionaries as jsonl."""
    return "".join(
        (json.dumps(r) if isinstance(r, dict) else "\t".join(r) if isinstance(r, tuple) else r) + "\n" for r in rows
    )


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def png(shade: int) -> bytes:
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), shade, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    """Write the files; a name ending in .gz or .xz is compressed."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(raw))
    return root


SPLITS = ("train", "dev", "test")
SUPER = ("train", "val", "test")


def superglue(folder: str, *rows: dict[str, Any]) -> dict[str, str | bytes]:
    """Labelled train and val; a test file without the labels."""
    hidden = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    return {f"superglue/{folder}/{s}.jsonl": lines(*(hidden if s == "test" else rows)) for s in SUPER}


def glue(folder: str, header: tuple[str, ...], *rows: tuple[str, ...]) -> dict[str, str | bytes]:
    hidden = [row[:-1] for row in (header, *rows)]
    return {f"glue/{folder}/{s}.tsv": lines(*(hidden if s == "test" else (header, *rows))) for s in SPLITS}


NLI = [
    {"premise": "A man eats.", "hypothesis": "A man sleeps.", "label": "contradiction"},
    {"premise": "A man eats.", "hypothesis": "Someone eats.", "label": "entailment"},
    {"premise": "A man eats.", "hypothesis": "A man is hungry.", "label": "neutral"},
]
MNLI_HEADER = (
    "index",
    "promptID",
    "pairID",
    "genre",
    "s1b",
    "s2b",
    "s1p",
    "s2p",
    "sentence1",
    "sentence2",
    "label1",
    "gold_label",
)
MNLI_ROWS = [("0", *"abcdefg", row["premise"], row["hypothesis"], row["label"], row["label"]) for row in NLI]
PASSAGE = {
    "text": "<b>Sent 1: </b>Carl is a robot.<br><b>Sent 2: </b>He is sad.",
    "questions": [
        {
            "question": "What is Carl?",
            "idx": 0,
            "answers": [{"text": "A robot", "idx": 0, "label": 1}, {"text": "A fox", "idx": 1, "label": 0}],
        }
    ],
}
RECORD = "Ann met Bob in Rome.\n@highlight\nBob was late\n@highlight\nAnn left"
SQUAD = {
    "context": "Ada Lovelace wrote the first program in 1843.",
    "qas": [{"id": "q1", "question": "Who wrote it?", "answers": [{"text": "Ada Lovelace", "answer_start": 0}]}],
}
EMPTY = {"id": "q2", "question": "Who read it?", "answers": [], "is_impossible": True}
SAMSUM = 'id,dialogue,summary\n1,"Amy: Hi  there\r\nBob: Hello, ""Amy""\r\nAmy: Bye",Amy greets Bob.\n'
DIALOGUE = {"fname": "t_0", "dialogue": "#Person1#: Hi.\n#Person2#: Hello."}
PERSONA = lines(
    "1 your persona: i like cats.",
    "2 hello\thi , i have a cat\t\tno|yes",
    "3 nice\tthanks\t\tno|yes",
    "1 your persona: i run.",
    "2 yo\they\t\tx",
)
STORY = "It rained. \n\nThen it stopped.\n\n@highlight\n\nIt rained\n\n@highlight\n\nIt stopped\n"
SGM = '<srcset><doc><seg id="1"> {} </seg>\n<seg id="2">b &amp; c</seg></doc></srcset>'
IMAGES = np.arange(10_010 * 4, dtype=np.uint32).astype(np.uint8).reshape(10_010, 2, 2)
CIFAR = np.concatenate([np.array([3], np.uint8), np.arange(3072).astype(np.uint8)])


def sgm(stem: str, target: str) -> dict[str, str | bytes]:
    return {f"{stem}-src.en.sgm": SGM.format("a"), f"{stem}-ref.{target}.sgm": SGM.format("x")}


def wmt(folder: str, target: str, corpora: tuple[str, ...], validation: str, test: str) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    for stem in corpora:
        files |= {f"{folder}/{stem}.en": "a\nb\n", f"{folder}/{stem}.{target}": "x\ny\n"}
    for stem in (validation, test):
        if "-" in stem:
            files |= sgm(f"{folder}/{stem}", target)
        else:
            files |= {f"{folder}/{stem}.en": "a\n", f"{folder}/{stem}.{target}": "x\n"}
    return files


ANLI = {
    f"anli_v1.0/R{n}/{s}.jsonl.gz": lines({"context": "p", "hypothesis": "h", "label": "n", "uid": "u"})
    for n in (1, 2, 3)
    for s in SPLITS
}
STS = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score")
MRPC = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")

SAMPLES: dict[str, dict[str, str | bytes]] = {
    "cogs": {f"cogs/{s}.tsv.xz": lines(("A dog ran .", "dog ( x _ 1 )", "in_distribution")) for s in (*SPLITS, "gen")},
    # GLUE
    "cola": {
        "glue/CoLA/train.tsv": lines(("gj04", "1", "", 'He said "so".'), ("gj04", "0", "*", "Him go.")),
        "glue/CoLA/dev.tsv.gz": lines(("gj04", "0", "*", "Him go.")),
        "glue/CoLA/test.tsv": lines(("index", "sentence"), ("0", "Bill left.")),
    },
    "sst2": glue("SST-2", ("sentence", "label"), ("a fine film ", "1"), ("dull ", "0"))
    | {"glue/SST-2/test.tsv": lines(("index", "sentence"), ("0", "odd ."))},
    "mrpc": {
        "glue/MRPC/train.tsv": lines(MRPC, ("1", "1", "2", 'He " said', "He spoke")),
        "glue/MRPC/dev.tsv": "\ufeff" + lines(MRPC, ("0", "1", "2", "A", "B")),
        "glue/MRPC/msr_paraphrase_test.txt": "\ufeff" + lines(MRPC, ("1", "1", "2", "A", "B")),
    },
    "qqp": glue(
        "QQP", ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), ("0", "1", "2", "Why?", "How?", "0")
    )
    | {"glue/QQP/test.tsv": lines(("id", "question1", "question2"), ("0", "Why?", "How?"))},
    "stsb": glue("STS-B", STS, ("0", "m", "f", "2012", "1", "n", "n", "A plane.", "An air plane.", "3.7"))
    | {"glue/STS-B/sts-test-labelled.tsv": lines(("m", "f", "2012", "1", "2.5", "A girl.", "A woman."))},
    "mnli": {f"glue/MNLI/{s}.tsv": lines(MNLI_HEADER, *MNLI_ROWS) for s in ("train", "dev_matched", "dev_mismatched")}
    | {f"glue/MNLI/test_{s}.tsv": lines(MNLI_HEADER[:10], MNLI_ROWS[0][:10]) for s in ("matched", "mismatched")},
    "qnli": glue("QNLI", ("index", "question", "sentence", "label"), ("0", "Who?", "He did.", "not_entailment")),
    "glue_rte": glue("RTE", ("index", "sentence1", "sentence2", "label"), ("0", "A.", "B.", "entailment")),
    "wnli": glue("WNLI", ("index", "sentence1", "sentence2", "label"), ("0", "A.", "B.", "1")),
    "ax": {
        "glue/diagnostic/diagnostic.tsv": lines(("index", "sentence1", "sentence2"), ("0", "The cat sat.", "It sat."))
    },
    # SuperGLUE
    "boolq": superglue("BoolQ", {"question": "is it", "passage": "It is.", "idx": 0, "label": True}),
    "cb": superglue("CB", {"premise": "P.", "hypothesis": "H", "label": "neutral", "idx": 0}),
    "copa": superglue(
        "COPA",
        {"premise": "It fell.", "choice1": "Wind.", "choice2": "Rain.", "question": "cause", "label": 1, "idx": 0},
    ),
    "multirc": superglue("MultiRC", {"idx": 7, "version": 1.1, "passage": PASSAGE}),
    "record": superglue(
        "ReCoRD",
        {
            "source": "x",
            "idx": 3,
            "passage": {
                "text": RECORD,
                "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 15, "end": 18}],
            },
            "qas": [
                {
                    "id": "a",
                    "idx": 4,
                    "query": "@placeholder was late",
                    "answers": [{"start": 8, "end": 10, "text": "Bob"}],
                }
            ],
        },
    ),
    "rte": superglue("RTE", {"premise": "A.", "hypothesis": "B.", "label": "not_entailment", "idx": 0}),
    "wic": superglue(
        "WiC",
        {"word": "place", "sentence1": "My place.", "sentence2": "No place.", "idx": 0, "label": False, "start1": 3},
    ),
    "wsc": superglue(
        "WSC",
        {
            "text": "Mark told Pete lies, which Pete believed. He was gullible.",
            "target": {"span1_index": 2, "span1_text": "Pete", "span2_index": 7, "span2_text": "He"},
            "idx": 0,
            "label": True,
        },
        {
            "text": "Mark told Pete lies, which Pete believed. He was gullible.",
            "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 7, "span2_text": "He"},
            "idx": 1,
            "label": False,
        },
    ),
    "axb": {
        "superglue/AX-b/AX-b.jsonl": lines(
            {"idx": "0", "label": "not_entailment", "sentence1": "A.", "sentence2": "B."}
        )
    },
    "axg": {
        "superglue/AX-g/AX-g.jsonl": lines(
            *({"idx": i, "label": "entailment", "premise": "A.", "hypothesis": "B.", "pair_id": 5 + i} for i in (0, 1))
        )
    },
    # entailment
    "snli": {
        f"snli_1.0/snli_1.0_{s}.jsonl": lines(
            {"gold_label": "neutral", "sentence1": "P", "sentence2": "H"},
            {"gold_label": "-", "sentence1": "P", "sentence2": "H"},
        )
        for s in SPLITS
    },
    "anli": ANLI,
    "anli_r1": ANLI,
    "anli_r2": ANLI,
    "anli_r3": ANLI,
    "conjnli": {
        "conjnli/adversarial_train_15k.tsv": "\ufeff"
        + lines(("Premise", "Hypothesis", "Label"), ("P", "H", "neutral")),
        "conjnli/conj_dev.tsv": "\ufeff" + lines(("Premise", "Hypothesis", "Label"), ("P", "H", "entailment")),
        "conjnli/conj_test.tsv": "\ufeff" + lines(("Premise", "Hypothesis"), ("P", "H")),
    },
    "anli_abductive": {
        f"art/{s}.jsonl": lines({"story_id": "1", "obs1": "a", "obs2": "b", "hyp1": "c", "hyp2": "d"}) for s in SPLITS
    }
    | {f"art/{s}-labels.lst": "2\n" for s in SPLITS},
    # questions
    "squad": {
        f"squad/{s}-v1.1.json": json.dumps({"data": [{"title": "Ada", "paragraphs": [SQUAD]}]}) for s in SPLITS[:2]
    },
    "squad_v2": {
        f"squad/{s}-v2.0.json": json.dumps(
            {"version": "v2.0", "data": [{"title": "Ada", "paragraphs": [{**SQUAD, "qas": [*SQUAD["qas"], EMPTY]}]}]}
        )
        for s in SPLITS[:2]
    },
    # documents
    "ag_news": {
        f"ag_news/{s}.csv": '"3","Oil up","Prices ""rose"" again."\n"4","Moon","A probe."\n' for s in ("train", "test")
    },
    "imdb": {
        f"aclImdb/{s}/{label}/{n}_7.txt": f"A {label} film.<br />Really."
        for s in ("train", "test")
        for label in ("neg", "pos")
        for n in (0, 1)
    },
    # translation
    **{
        f"multi30k_en_{t}": {
            f"multi30k/raw/{stem}.{x}.gz": f"{x} one\n{x} two\n"
            for stem in ("train", "val", "test_2016_flickr", "test_2018_flickr")
            for x in ("en", t)
        }
        for t in ("de", "fr", "cs")
    },
    "wmt14_en_de": wmt(
        "wmt14",
        "de",
        ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en"),
        "newstest2013",
        "newstest2014-deen",
    ),
    "wmt14_en_fr": wmt(
        "wmt14/fr-en",
        "fr",
        (
            "europarl-v7.fr-en",
            "commoncrawl.fr-en",
            "undoc.2000.fr-en",
            "news-commentary-v9.fr-en",
            "giga-fren.release2.fixed",
        ),
        "newstest2013",
        "newstest2014-fren",
    ),
    "wmt16_en_ro": wmt("wmt16", "ro", ("europarl-v8.ro-en", "SETIMES.en-ro"), "newsdev2016-enro", "newstest2016-enro"),
    # generation
    "cnn_dailymail": {f"cnn_dailymail/all_{s}.txt": f"http://x/{s}\n" for s in SUPER}
    | {f"cnn_dailymail/cnn/stories/{hashlib.sha1(f'http://x/{s}'.encode()).hexdigest()}.story": STORY for s in SUPER},
    "samsum": {f"samsum/{s}.csv": SAMSUM for s in ("train", "validation", "test")},
    "samsum_reply": {f"samsum/{s}.csv": SAMSUM for s in ("train", "validation", "test")},
    "dialogsum": {f"dialogsum/dialogsum.{s}.jsonl": lines({**DIALOGUE, "summary": "They greet."}) for s in SPLITS[:2]}
    | {"dialogsum/dialogsum.test.jsonl": lines({**DIALOGUE, "summary1": "A.", "summary2": "B.", "summary3": "C."})},
    "personachat": {f"personachat/{s}_self_original.txt": PERSONA for s in ("train", "valid", "test")},
    # pretraining
    "c4": {
        f"c4/en/c4-{s}-of-01024.json.gz": lines({"text": f"Page {s}.", "timestamp": "t", "url": "u"})
        for s in ("train.00000", "train.00001", "validation.00000")
    },
    "realnews": {
        f"c4/realnewslike/c4-{s}.00000-of-00512.json.gz": lines({"text": "News."}) for s in ("train", "validation")
    },
    "wikipedia": {
        f"wikipedia_en/{s}.txt.xz": "Title\nOne.\n\nOther\nTwo.\nThree.\n" for s in ("train", "valid", "test")
    },
    "lm1b": {
        "1-billion-word-language-modeling-benchmark-r13output/" + name: "A line .\nAnother .\n"
        for name in (
            "training-monolingual.tokenized.shuffled/news.en-00001-of-00100",
            "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050",
            "heldout-monolingual.tokenized.shuffled/news.en.heldout-00001-of-00050",
        )
    },
    # images
    "imagenet": {
        f"imagenet/{s}/{c}/{c}_1.png": png(i)
        for s in ("train", "val")
        for i, c in enumerate(("n01440764", "n01443537"))
    },
    "cifar10": {
        f"cifar-10-batches-bin/{s}.bin": CIFAR.tobytes() for s in ("data_batch_1", "data_batch_2", "test_batch")
    },
    "fashion_mnist": {
        "fashion_mnist/train-images-idx3-ubyte.gz": idx_bytes(IMAGES),
        "fashion_mnist/train-labels-idx1-ubyte.gz": idx_bytes(np.arange(10_010) % 10),
        "fashion_mnist/t10k-images-idx3-ubyte": idx_bytes(IMAGES[:3]),
        "fashion_mnist/t10k-labels-idx1-ubyte": idx_bytes(np.array([9, 0, 1])),
    },
}

CIFAR_PYTHON = pickle.dumps({b"data": CIFAR[1:][None], b"labels": [3]})
