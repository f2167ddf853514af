"""Every task, from a small made sample in its official layout and, where it is at hand, from the real data."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from task_samples import CIFAR_PYTHON, NLI, SAMPLES, png, write
from typer.testing import CliRunner

from tokenmix.data import sources
from tokenmix.data import task as task_module
from tokenmix.data.readers import Row, tsv
from tokenmix.data.sources import Files, Made
from tokenmix.data.task import Example, Task, get_task, list_tasks, register

GENERATED = {"scan", "scan_length", "scan_add_jump", "scan_add_turn_left", "toy"}
GENERATED |= {"toy_sentiment", "toy_pairs", "toy_questions", "toy_images"}


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data folder but the test's own, and a Hub that does not answer."""
    monkeypatch.delenv("TOKENMIX_DATA", raising=False)

    def unreachable(*args: object) -> None:
        raise FileNotFoundError("The Hugging Face Hub did not serve it")

    monkeypatch.setattr(sources, "load_from_hub", unreachable)


def here(task: Task, data: Path) -> list[str]:
    return [s for s in task.splits if any(isinstance(x, Files) and x.has(s, data) for x in task.sources)]


def test_every_task_has_a_sample() -> None:
    assert set(list_tasks()) == set(SAMPLES) | GENERATED


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_task_loads_from_its_official_layout(name: str, tmp_path: Path) -> None:
    write(tmp_path, SAMPLES[name])
    task = get_task(name)
    assert here(task, tmp_path), "the sample serves no split"
    for split in here(task, tmp_path):
        for form in task.forms:
            examples = task.load(split, tmp_path, form)
            assert len(examples) > 0
            example = examples[0]
            filled = {
                "text": lambda e=example, s=split: e.input and (e.target or s.startswith("test")),
                "classify": lambda e=example: e.texts and all(isinstance(t, str) for t in e.texts),
                "span": lambda e=example: e.question and e.context,
                "document": lambda e=example: e.target,
                "image": lambda e=example: e.image.dtype == np.uint8 and isinstance(e.label, int),
            }
            assert filled[form](), f"{name} {split} {form}: {example}"
            assert len(task.load(split, tmp_path, form, limit=1)) == 1


def perfect(task: Task, form: str, examples: list[Example]) -> list[object]:
    """What a model that knows everything would predict."""
    if form == "text":
        return [task.postprocess(example.target, example) for example in examples]
    if form == "span":
        return [example.answers[0] if example.answers else "" for example in examples]
    return [(0.0, 1) if form == "document" else example.label for example in examples]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_targets_decode_back_to_the_labels_and_score_in_full(name: str, tmp_path: Path) -> None:
    write(tmp_path, SAMPLES[name])
    task = get_task(name)
    for split in set(here(task, tmp_path)) - {"test", "test_mismatched"} or {"test"}:
        for form in task.forms:
            examples = list(task.load(split, tmp_path, form))
            if task.labels and examples[0].label is None and name != "record":
                with pytest.raises(ValueError, match="no labels"):
                    task.evaluate([0] * len(examples), examples)
                continue
            predictions = perfect(task, form, examples)
            if form == "text" and task.labels and name not in ("wsc", "record"):
                assert predictions == [example.label for example in examples]
            result = task.evaluate(predictions, examples)
            assert next(iter(result)) == task.metric
            best = {"perplexity": 1.0, "cider": 0.0}
            if name == "wsc" and form == "text" and split != "train":  # the wrong referent is among the examples
                assert predictions == [1, 1]
                continue
            if task.metric not in ("matthews", "pearson", "mean_f1", "bleu4", "bleu", "f1"):
                assert result[task.metric] == pytest.approx(best.get(task.metric, 100.0)), (split, form, result)


PROMPTS = {
    "boolq": ("boolq passage: It is. question: is it", "True"),
    "cb": ("cb hypothesis: H premise: P.", "neutral"),
    "copa": ("copa choice1: Wind. choice2: Rain. premise: It fell. question: cause", "choice2"),
    "multirc": (
        "multirc question: What is Carl? answer: A robot paragraph: Sent 1: Carl is a robot. Sent 2: He is sad.",
        "True",
    ),
    "record": (
        "record query: @placeholder was late entities: Ann, Bob, Rome "
        "passage: Ann met Bob in Rome. Bob was late. Ann left",
        "Bob",
    ),
    "rte": ("rte hypothesis: B. premise: A.", "not_entailment"),
    "wic": ("wic sentence1: My place. sentence2: No place. word: place", "False"),
    "wsc": ("wsc: Mark told Pete lies, which Pete believed. *He* was gullible.", "Pete"),
    "cola": ('cola sentence: He said "so".', "acceptable"),
    "sst2": ("sst2 sentence: a fine film ", "positive"),
    "mrpc": ('mrpc sentence1: He " said sentence2: He spoke', "equivalent"),
    "qqp": ("qqp question1: Why? question2: How?", "not_duplicate"),
    "stsb": ("stsb sentence1: A plane. sentence2: An air plane.", "3.6"),
    "mnli": ("mnli hypothesis: A man sleeps. premise: A man eats.", "contradiction"),
    "qnli": ("qnli question: Who? sentence: He did.", "not_entailment"),
    "glue_rte": ("rte sentence1: A. sentence2: B.", "entailment"),
    "wnli": ("wnli sentence1: A. sentence2: B.", "entailment"),
    "squad": ("question: Who wrote it? context: Ada Lovelace wrote the first program in 1843.", "Ada Lovelace"),
    "multi30k_en_de": ("translate English to German: en one", "de one"),
    "wmt16_en_ro": ("translate English to Romanian: a", "x"),
    "cnn_dailymail": ("summarize: It rained. \n\nThen it stopped.", "It rained\nIt stopped"),
    "samsum": ('summarize: Amy: Hi there Bob: Hello, "Amy" Amy: Bye', "Amy greets Bob."),
    "samsum_reply": ("reply: Amy: Hi there Bob:", 'Hello, "Amy"'),
    "personachat": ("personachat persona: i like cats. history: hello", "hi , i have a cat"),
    "anli_abductive": ("anli_abductive hyp1: c hyp2: d obs1: a obs2: b", "hyp2"),
    "ag_news": ('ag_news text: Oil up Prices "rose" again.', "Business"),
}


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_prompt_is_t5s_to_the_letter(name: str, tmp_path: Path) -> None:
    write(tmp_path, SAMPLES[name])
    example = get_task(name).load("train", tmp_path, "text", limit=1)[0]
    assert (example.input, example.target) == PROMPTS[name]


def test_diagnostics_ask_as_the_task_they_diagnose(tmp_path: Path) -> None:
    for name, start in (
        ("axb", "rte hypothesis: B. premise: A."),
        ("axg", "rte hypothesis: B."),
        ("ax", "mnli hypothesis: It"),
    ):
        write(tmp_path, SAMPLES[name])
        assert get_task(name).load("test", tmp_path)[0].input.startswith(start)


def test_classify_form_puts_the_premise_first(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES["mnli"])
    example = get_task("mnli").load("train", tmp_path, "classify")[0]
    assert example.texts == (NLI[0]["premise"], NLI[0]["hypothesis"])
    assert get_task("mnli").labels[example.label] == "contradiction"


def test_text_that_is_no_label_counts_as_wrong() -> None:
    task = get_task("rte")
    assert [task.postprocess(t) for t in ("entailment", " not_entailment ", "maybe", "")] == [0, 1, -1, -1]
    assert task.evaluate([-1, 0], [Example(label=0), Example(label=0)]) == {"accuracy": 50.0}


def test_stsb_is_a_number(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES["stsb"])
    task = get_task("stsb")
    assert task.regression
    assert not task.labels
    assert task.load("train", tmp_path, "classify")[0].label == 3.7
    assert task.load("test", tmp_path)[0].label == 2.5  # the labelled test file comes before the hidden one
    assert [task.postprocess(t) for t in ("3.6", "three", "nan")] == [3.6, -1.0, -1.0]


def test_wsc_trains_on_the_right_referents_only(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES["wsc"])
    task = get_task("wsc")
    assert [len(task.load(s, tmp_path, f)) for s in ("train", "validation") for f in ("text", "classify")] == [
        1,
        2,
        2,
        2,
    ]
    right, wrong = task.load("validation", tmp_path)
    predictions = [task.postprocess("Pete", e) for e in (right, wrong)]
    assert task.evaluate(predictions, [right, wrong]) == {"accuracy": 100.0}


def test_record_takes_the_best_entity_of_a_query(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES["record"])
    task = get_task("record")
    examples = task.load("validation", tmp_path, "classify")
    assert [(e.texts[1], e.label) for e in examples] == [("Ann was late", 0), ("Bob was late", 1), ("Rome was late", 0)]
    assert task.evaluate([0.2, 0.9, 0.1], examples) == {"f1": 100.0, "exact_match": 100.0}
    assert task.evaluate([0.95, 0.9, 0.1], examples)["f1"] == 0.0


def test_squad_v2_has_questions_without_answer(tmp_path: Path) -> None:
    write(tmp_path, SAMPLES["squad_v2"])
    task = get_task("squad_v2")
    text, span = task.load("validation", tmp_path), task.load("validation", tmp_path, "span")
    assert [e.target for e in text] == ["Ada Lovelace", "unanswerable"]
    assert [(e.answers, e.start) for e in span] == [(("Ada Lovelace",), 0), ((), -1)]
    result = task.evaluate([task.postprocess("Lovelace", text[0]), task.postprocess("unanswerable", text[1])], text)
    assert result["no_answer_f1"] == 100.0
    assert result["has_answer_exact_match"] == 0.0


def test_imdb_is_shuffled_the_same_way_each_time(tmp_path: Path) -> None:
    files = {
        f"imdb/{s}.jsonl": "".join(json.dumps({"text": f"t{i}", "label": int(i < 20)}) + "\n" for i in range(40))
        for s in ("train", "test")
    }
    write(tmp_path, files)
    task = get_task("imdb")
    labels = [e.label for e in task.load("train", tmp_path, limit=20)]
    assert 0 < sum(labels) < 20
    assert labels == [e.label for e in task.load("train", tmp_path)][:20]


def test_abductive_subset_keeps_a_story_on_one_side(tmp_path: Path) -> None:
    rows = [{"obs1": f"o{i // 2}", "obs2": "x", "hyp1": str(i), "hyp2": "b", "label": 1 + i % 2} for i in range(400)]
    write(tmp_path, {"art_abductive_nli_subset/train_subset.jsonl": "".join(json.dumps(r) + "\n" for r in rows)})
    task = get_task("anli_abductive")
    parts = [{e.input.split("obs1: ")[1] for e in task.load(s, tmp_path)} for s in ("train", "validation")]
    assert parts[0]
    assert parts[1]
    assert not parts[0] & parts[1]
    assert "subset" in task.about("train", tmp_path)


def test_official_files_come_before_a_subset(tmp_path: Path) -> None:
    subset = {"mnli_subset/train.jsonl": json.dumps({"premise": "s", "hypothesis": "s", "label": "neutral"}) + "\n"}
    task = get_task("mnli")
    write(tmp_path, subset)
    assert "subset" in task.about("train", tmp_path)
    write(tmp_path, SAMPLES["mnli"])
    assert len(task.load("train", tmp_path)) == 3
    assert task.about("train", tmp_path) == ""


# --- images


def test_images_are_arrays(tmp_path: Path) -> None:
    for name in ("fashion_mnist", "cifar10", "imagenet"):
        write(tmp_path, SAMPLES[name])
    fashion = get_task("fashion_mnist")
    assert [len(fashion.load(s, tmp_path)) for s in ("train", "validation", "test")] == [10, 10_000, 3]
    assert fashion.load("test", tmp_path)[1].image.tolist() == [[4, 5], [6, 7]]
    assert fashion.labels[fashion.load("test", tmp_path)[0].label] == "Ankle boot"
    cifar = get_task("cifar10").load("train", tmp_path)
    assert len(cifar) == 2
    assert cifar[0].image.shape == (32, 32, 3)
    assert cifar[0].image[0, 1].tolist() == [1, 1, 1]  # red, green, blue planes of 1,024 bytes each: 1, 1025 % 256, …
    assert get_task("cifar10").labels[cifar[0].label] == "cat"
    imagenet = get_task("imagenet").load("validation", tmp_path)
    assert [(e.image.shape, e.label) for e in imagenet] == [((4, 5, 3), 0), ((4, 5, 3), 1)]
    assert len(imagenet[1:]) == 1
    assert pickle.loads(pickle.dumps(imagenet))[1].label == 1, "workers of a data loader get the examples by pickle"


def test_cifars_python_release_is_read_without_running_code(tmp_path: Path) -> None:
    write(tmp_path, {"cifar-10-batches-py/test_batch": CIFAR_PYTHON})
    assert get_task("cifar10").load("test", tmp_path)[0].label == 3
    write(tmp_path, {"cifar-10-batches-py/test_batch": b"cos\nsystem\n(S'echo no'\ntR."})
    with pytest.raises(ValueError, match="refused"):
        get_task("cifar10").load("test", tmp_path)


def test_any_folder_of_images(tmp_path: Path) -> None:
    write(tmp_path, {f"flat/{c}/{n}.png": png(n) for c in ("cat", "dog") for n in range(20)})
    task = get_task(f"images:{tmp_path}/flat")
    sizes = [len(task.load(s)) for s in ("train", "validation")]
    assert task.labels == ("cat", "dog")
    assert sum(sizes) == 40
    assert sizes[1] > 0
    write(tmp_path, {f"split/{s}/{c}/1.png": png(1) for s in ("train", "val") for c in ("cat", "dog")})
    task = get_task(f"images:{tmp_path}/split")
    assert [len(task.load(s)) for s in ("train", "validation")] == [2, 2]
    with pytest.raises(FileNotFoundError, match="class folders"):
        get_task(f"images:{tmp_path}/none")
    write(tmp_path, {"one/cat/1.png": png(1)})
    with pytest.raises(ValueError, match=r"one has 1 class folders \(cat\); expected at least two"):
        get_task(f"images:{tmp_path}/one")


# --- registry, errors, command


def test_misspelt_names_are_answered() -> None:
    with pytest.raises(ValueError, match="did you mean 'sst2'"):
        get_task("sst")
    with pytest.raises(ValueError, match=r"'shards:wiki' holds token ids to train on.*--task file:text\.txt"):
        get_task("shards:wiki")
    with pytest.raises(ValueError, match=r"split of task 'scan'.*Known: test, train"):
        get_task("scan").load("dev")
    with pytest.raises(ValueError, match=r"form of task 'scan'.*Known: text"):
        get_task("scan").load("test", form="classify")


def test_missing_data_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        get_task("cogs").load("train", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "cogs" / "train.tsv") in message
    assert "github.com/najoungkim/COGS" in message
    assert "TOKENMIX_DATA" in message
    with pytest.raises(
        FileNotFoundError, match=r"glue/SST-2/train\.tsv.*no data folder is set.*Hub did not serve.*nyu-mll/glue"
    ):
        get_task("sst2").load("train")


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("cogs", "cogs/train.tsv", "a\tb\tc\nonly\ttwo\n", r"train\.tsv, line 2: expected 3 tab-separated fields"),
        (
            "rte",
            "superglue/RTE/train.jsonl",
            '{"premise": "a"}\n',
            r"train\.jsonl, line 1: expected a field 'hypothesis'",
        ),
        ("rte", "superglue/RTE/train.jsonl", "{broken\n", r"train\.jsonl, line 1: expected a JSON object"),
        (
            "rte",
            "superglue/RTE/train.jsonl",
            '{"premise": "a", "hypothesis": "b", "label": "x"}\n',
            r"line 1: expected a label out of entailment",
        ),
        ("sst2", "glue/SST-2/train.tsv", "sentence\tlabel\nfine\t7\n", r"train\.tsv, line 2: expected a label"),
        (
            "stsb",
            "glue/STS-B/train.tsv",
            "sentence1\tsentence2\tscore\na\tb\t9\n",
            r"line 2: expected a similarity from 0 to 5",
        ),
        ("ag_news", "ag_news/train.csv", '"5","a","b"\n', r"line 1: expected a class from 1 to 4"),
        ("personachat", "personachat/train_self_original.txt", "no number\n", r"line 1: expected a line number"),
        ("multi30k_en_de", "multi30k/raw/train.en", "a\n", r"no partner"),
        (
            "multirc",
            "superglue/MultiRC/train.jsonl",
            '{"idx": 0, "passage": 3}\n',
            r"train\.jsonl, line 1: expected the fields",
        ),
    ],
)
def test_malformed_row_names_file_line_and_expectation(
    name: str, file: str, content: str, message: str, tmp_path: Path
) -> None:
    write(tmp_path, {file: content})
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        get_task(name).load("train", tmp_path)


def test_squad_answer_must_stand_where_it_is_said(tmp_path: Path) -> None:
    row = {"context": "abc", "question": "q", "answers": {"text": ["c"], "answer_start": [0]}}
    write(tmp_path, {"squad_subset/train_subset.jsonl": json.dumps(row) + "\n"})
    with pytest.raises(ValueError, match=r"line 1: expected the answer 'c' at character 0"):
        get_task("squad").load("train", tmp_path)


def test_unequal_numbers_of_predictions_are_refused() -> None:
    with pytest.raises(ValueError, match="1 predictions for 2 examples"):
        get_task("scan").evaluate(["a"], [Example(), Example()])


def test_a_task_is_a_dozen_lines(tmp_path: Path) -> None:
    task = register(
        Task(
            "test_reverse",
            "test",
            (
                Files("reverse", {"validation": "dev.tsv"}, read=tsv(("word", "reversed"))),
                Made({"train": lambda: [{"word": "ab", "reversed": "ba"}]}),
            ),
            {"text": lambda row, split: Example(input=row["word"], target=row["reversed"])},
            lambda predictions, examples: {"right": float(predictions == [e.target for e in examples])},
            "right",
        )
    )
    write(tmp_path, {"reverse/dev.tsv": "cd\tdc\n"})
    try:
        assert get_task("test_reverse") is task
        assert [task.load(s, tmp_path)[0].target for s in task.splits] == ["ba", "dc"]
    finally:
        task_module._TASKS.pop("test_reverse")


def test_hub_rows_go_through_the_same_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def served(name: str, config: str | None, split: str, streaming: bool) -> list[dict[str, object]]:
        asked.append((name, config, split, streaming))
        return [{"premise": "p", "hypothesis": "h", "label": 2, "idx": 0}]

    monkeypatch.setattr(sources, "load_from_hub", served)
    example = get_task("mnli").load("validation")[0]
    assert (example.input, example.target) == ("mnli hypothesis: h premise: p", "contradiction")
    assert asked == [("nyu-mll/glue", "mnli", "validation_matched", False)]


def test_listing_is_never_cut(tmp_path: Path) -> None:
    from tokenmix.cli import app, load_commands

    load_commands()
    write(tmp_path, SAMPLES["cogs"])
    output = CliRunner().invoke(app, ["tasks", "--data", str(tmp_path)]).output
    assert all(name in output for name in list_tasks())
    assert str(tmp_path / "cogs") in output
    assert "…" not in output
    assert "Hub:zalando-datasets/fashion_mnist" in output
    entries = json.loads(CliRunner().invoke(app, ["tasks", "--data", str(tmp_path), "--json"]).output)
    cogs = next(entry for entry in entries if entry["name"] == "cogs")
    assert all(cogs["present"].values())
    assert cogs["folders"] == [str(tmp_path / "cogs")]


def test_listing_wants_a_folder_that_exists(tmp_path: Path) -> None:
    from tokenmix.cli import app, load_commands

    load_commands()
    result = CliRunner().invoke(app, ["tasks", "--data", str(tmp_path / "nope")])
    assert result.exit_code == 2
    assert "Invalid value for '--data'" in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def test_a_split_without_examples_is_named_with_its_file(tmp_path: Path) -> None:
    write(tmp_path, {"cogs/train.tsv": "", "cogs/dev.tsv": ""})
    task = get_task("cogs")
    with pytest.raises(ValueError, match=rf"task 'cogs', split 'train': no examples in {tmp_path}/cogs/train\.tsv"):
        task.some(task.load("train", tmp_path), "train", tmp_path)
    with pytest.raises(ValueError, match="task 'scan', split 'test': no examples in generated"):
        get_task("scan").some([], "test")
    assert get_task("scan").some([Example()], "test") == [Example()]


def test_bad_conversion_names_the_row() -> None:
    task = Task(
        "x",
        "test",
        (Made({"train": lambda: [{"a": 1}]}),),
        {"text": lambda row, split: Example(input=row["b"])},
        dict,
        "x",
    )
    with pytest.raises(ValueError, match="generated train, line 1: expected a field 'b', found only: a"):
        task.load("train")
    assert Row({"a": 1}, "f", 2).derive(b=1).where == "f, line 2"


def test_example_in_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text("utf-8")
    example = next(block for block in page.split("```python\n")[1:] if "register(" in block).split("```")[0]
    exec(example, {})
    write(tmp_path, {"capitals/train.tsv": "Peru\tLima\n"})
    try:
        task = get_task("capitals")
        assert task.load("train", tmp_path) == [Example(input="capital of: Peru", target="Lima")]
        assert task.evaluate(["Lima"], task.load("train", tmp_path)) == {"accuracy": 100.0}
    finally:
        task_module._TASKS.pop("capitals", None)


def test_documentation_names_every_task() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text("utf-8")
    assert {name for name in list_tasks() if f"`{name}`" not in page} <= {"anli_r2"}
