"""Metrics against cases worked by hand and the rules their authors published."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokenmix.evaluation import metrics


def test_accuracy_and_exact_match_by_category() -> None:
    assert metrics.accuracy([1, 0, -1, 1], [1, 1, 1, 1]) == 50.0
    result = metrics.exact_match_by_category(["a", "b", "c"], ["a", "x", "c"], ["one", "one", "two"])
    assert result == {"exact_match": pytest.approx(200 / 3), "exact_match/one": 50.0, "exact_match/two": 100.0}


def test_f1_of_the_positive_class() -> None:
    # precision 1/2, recall 1/3; text that is no label (-1) counts as negative
    assert metrics.f1([1, 1, 0, -1], [1, 0, 1, 1]) == pytest.approx(100 * 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert metrics.f1([0, 0], [0, 0]) == 0.0


def test_mean_f1_averages_over_all_classes() -> None:
    # class 0: p 1/2, r 1 → 2/3; class 1: p 1, r 1/2 → 2/3; class 2 never occurs → 0
    assert metrics.mean_f1(3)([0, 0, 1], [0, 1, 1]) == pytest.approx(100 * (2 / 3 + 2 / 3 + 0) / 3)


def test_matthews() -> None:
    # tp 2, tn 1, fp 1, fn 1: (2·1 − 1·1) / sqrt(3 · 3 · 2 · 2)
    predictions, truth = [1, 1, 1, 0, 0], [1, 1, 0, 0, 1]
    assert metrics.matthews(predictions, truth) == pytest.approx(100 / 6)
    assert metrics.matthews([-1 if i == 4 else p for i, p in enumerate(predictions)], truth) == pytest.approx(100 / 6)
    assert metrics.matthews([1, 1], [1, 0]) == 0.0


def test_correlations() -> None:
    assert metrics.pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(100)
    assert metrics.pearson([1, 2, 3], [1, 4, 9]) == pytest.approx(98.9743, abs=1e-3)
    assert metrics.spearman([1, 2, 3], [1, 4, 9]) == pytest.approx(100)
    assert metrics.spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(60)
    assert metrics.pearson([3, 3], [1, 2]) == 0.0


def test_multirc_counts_answers_and_whole_questions() -> None:
    # question a: both right; question b: one of two right. F1a: tp 2, fp 1, fn 0
    result = metrics.multirc([1, 0, 1, 1], [1, 0, 1, 0], ["a", "a", "b", "b"])
    assert result == {"f1a": pytest.approx(80.0), "exact_match": 50.0}


@pytest.mark.parametrize(
    ("prediction", "answers", "f1", "exact"),
    [
        ("The Eiffel Tower!", ["eiffel tower"], 1.0, 1.0),  # articles, case and punctuation do not count
        ("Eiffel", ["Eiffel Tower"], 2 * 1 * 0.5 / 1.5, 0.0),
        ("in Paris", ["Rome", "Paris, France", "Paris"], 2 * 0.5 / 1.5, 0.0),  # the best answer counts
        ("a cat a cat", ["cat"], 2 * 0.5 / 1.5, 0.0),  # words count as often as they occur
        ("", [], 1.0, 1.0),  # v2.0: nothing is right where there is no answer
        ("something", [], 0.0, 0.0),
        ("", ["something"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),  # both are empty after normalisation
    ],
)
def test_squad_rules(prediction: str, answers: list[str], f1: float, exact: float) -> None:
    result = metrics.squad([prediction], [answers])
    assert result == {"f1": pytest.approx(100 * f1), "exact_match": 100 * exact}


@pytest.mark.parametrize(
    ("prediction", "referent", "match"),
    [
        ("the city councilmen", "The city councilmen", True),
        ("councilmen", "The city councilmen", True),
        ("the fuzzy bunny", "bunny", True),
        ("his uncle", "uncle", True),
        ("the demonstrators", "The city councilmen", False),
        ("Bob's", "Bob", False),
        ("Bob's dog", "Bob's", True),
        ("", "Bob", False),
        ("the", "Bob", False),
    ],
)
def test_wsc_rules(prediction: str, referent: str, match: bool) -> None:
    assert metrics.wsc_match(prediction, referent) is match


def test_perplexity_per_token_and_per_word() -> None:
    assert metrics.perplexity(4 * math.log(2), tokens=4) == {"perplexity": pytest.approx(2.0)}
    assert metrics.perplexity(4 * math.log(2), tokens=4, words=2)["word_perplexity"] == pytest.approx(4.0)
    assert metrics.perplexity(1e9, tokens=1)["perplexity"] == math.inf


def test_sacrebleu_and_its_signature() -> None:
    assert metrics.bleu(["the cat sat on the mat"], [["the cat sat on the mat"]]) == pytest.approx(100)
    # precisions 5/6, 3/5, 2/4, 1/3, no brevity penalty
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert metrics.bleu(["the cat sat on a mat"], [["the cat sat on the mat"]]) == pytest.approx(expected, abs=1e-6)
    assert metrics.bleu(["b c d e"], [["x y"], ["z"]][:1]) < 30
    assert metrics.bleu_signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert metrics.bleu_signature(3).startswith("nrefs:3|")


def test_bleu_with_uneven_numbers_of_references() -> None:
    assert metrics.bleu(["a b c d", "e f g h"], [["x", "a b c d"], ["e f g h"]]) == pytest.approx(100)


def test_bleu_1_and_4() -> None:
    prediction, reference = ["the cat is here"], [["the cat sat here now"]]
    assert metrics.bleu_n(prediction, reference, 1) == pytest.approx(100 * 3 / 4 * math.exp(1 - 5 / 4))
    assert metrics.bleu_n(prediction, reference, 4) == 0.0  # no common 4-gram, and nothing is smoothed


def test_rouge_takes_the_best_reference() -> None:
    result = metrics.rouge(["the cat sat"], [["a dog ran", "the cat sat down"]])
    assert result["rouge1"] == pytest.approx(100 * 2 * (3 / 3) * (3 / 4) / (1 + 3 / 4))
    assert result["rouge2"] == pytest.approx(100 * 2 * 1 * (2 / 3) / (1 + 2 / 3))
    assert result["rougeL"] == result["rouge1"]
    assert metrics.rouge(["b\na"], [["a\nb"]])["rougeLsum"] == pytest.approx(100)  # line by line


def test_meteor_names_itself_by_what_it_could_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_wordnet", lambda: None)
    result = metrics.meteor(["the cat sat"], [["the cat sat"]])
    # F = 1, one chunk of three matches: penalty 0.5 · (1/3)³
    assert result == {"meteor_no_synonyms": pytest.approx(100 * (1 - 0.5 / 27))}
    stemmed = metrics.meteor(["cats"], [["cat"]])["meteor_no_synonyms"]
    assert stemmed == pytest.approx(50.0)  # a stem matches; one chunk of one match: penalty 0.5

    class Synset:
        def lemmas(self) -> list[object]:
            return [type("Lemma", (), {"name": lambda self: "pet"})()]

    monkeypatch.setattr(metrics, "_wordnet", lambda: type("Net", (), {"synsets": lambda self, word: [Synset()]})())
    assert metrics.meteor(["cat"], [["pet"]]) == {"meteor": pytest.approx(50.0)}


def test_cider_by_hand() -> None:
    # two examples; "a" stands in both references (idf 0), "cat" and "dog" in one (idf log 2).
    # example 1 predicts its reference: unigram and bigram cosine 1, no longer grams; example 2 shares only "a"
    value = metrics.cider(["a cat", "a fox"], [["a cat"], ["a dog"]])
    assert value == pytest.approx(100 * 10 * ((1 + 1) / 4) / 2)
    # two words more: a length penalty exp(−2² / 2·6²) on the unigrams, whose cosine falls as well
    longer = metrics.cider(["cat cat cat", "dog"], [["cat"], ["dog"]])
    penalty = math.exp(-4 / 72)
    assert longer == pytest.approx(100 * 10 * (1 / 3 * penalty + 1) / 4 / 2)  # counts clipped: min(3, 1)·1 / (3·1)


def test_embedding_similarity() -> None:
    vectors = {"cat": np.array([1.0, 0.0]), "dog": np.array([0.0, 1.0]), "pet": np.array([1.0, 1.0])}
    same = metrics.embedding_similarity(["cat dog"], [["dog cat"]], vectors)
    assert same == dict.fromkeys(("embedding_average", "embedding_extrema", "embedding_greedy"), pytest.approx(100))
    half = metrics.embedding_similarity(["cat"], [["dog", "pet"]], vectors)
    assert half["embedding_average"] == pytest.approx(100 / math.sqrt(2))
    assert metrics.embedding_similarity(["unknown"], [["cat"]], vectors)["embedding_greedy"] == 0.0
