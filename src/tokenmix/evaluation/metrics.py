"""Metrics, as the papers report them: shares and F scores in percent, perplexity as it is.

All take predictions first, truth second. Where a well-kept library computes a metric, it does so here too.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

# ---------------------------------------------------------------------------------------------- labels


def accuracy(predictions: Sequence[Any], truth: Sequence[Any]) -> float:
    """Share of equal entries.

    >>> accuracy([1, 0, 1], [1, 1, 1])
    66.66666666666667
    """
    return 100 * sum(p == t for p, t in zip(predictions, truth, strict=True)) / len(truth)


exact_match = accuracy


def exact_match_by_category(
    predictions: Sequence[str], truth: Sequence[str], categories: Sequence[str]
) -> dict[str, float]:
    """Exact match over all, and `exact_match/NAME` for each category."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for prediction, target, category in zip(predictions, truth, categories, strict=True):
        groups[category].append(prediction == target)
    result = {"exact_match": exact_match(predictions, truth)}
    return result | {f"exact_match/{name}": 100 * sum(hits) / len(hits) for name, hits in sorted(groups.items())}


def f1(predictions: Sequence[int], truth: Sequence[int]) -> float:
    """F1 of class 1 (a prediction that is no label, -1, counts as not 1)."""
    from sklearn.metrics import f1_score

    return 100 * float(f1_score([t == 1 for t in truth], [p == 1 for p in predictions], zero_division=0))


def mean_f1(classes: int) -> Any:
    """CB's metric: the mean of the F1 of each class, present or not."""

    def metric(predictions: Sequence[int], truth: Sequence[int]) -> float:
        from sklearn.metrics import f1_score

        return 100 * float(f1_score(truth, predictions, labels=range(classes), average="macro", zero_division=0))

    return metric


def matthews(predictions: Sequence[int], truth: Sequence[int]) -> float:
    """Matthews correlation, ×100. A prediction that is no label (-1) counts as the class it is not."""
    from sklearn.metrics import matthews_corrcoef

    binary = set(truth) <= {0, 1}
    fixed = [1 - t if binary and p == -1 else p for p, t in zip(predictions, truth, strict=True)]
    if len({*truth, *fixed}) < 2:
        return 0.0  # undefined: one class only
    return 100 * float(matthews_corrcoef(truth, fixed))


def _correlation(name: str, predictions: Sequence[float], truth: Sequence[float]) -> float:
    import scipy.stats

    if len(truth) < 2 or np.ptp(predictions) == 0 or np.ptp(truth) == 0:
        return 0.0  # undefined: a constant orders nothing
    return 100 * float(getattr(scipy.stats, name)(predictions, truth).statistic)


def pearson(predictions: Sequence[float], truth: Sequence[float]) -> float:
    """Pearson correlation, ×100; 0 where it is undefined."""
    return _correlation("pearsonr", predictions, truth)


def spearman(predictions: Sequence[float], truth: Sequence[float]) -> float:
    """Spearman rank correlation, ×100; 0 where it is undefined."""
    return _correlation("spearmanr", predictions, truth)


def multirc(predictions: Sequence[int], truth: Sequence[int], questions: Sequence[Hashable]) -> dict[str, float]:
    """MultiRC: F1 over all answers (F1a), and the share of questions with every answer right (EM)."""
    right: dict[Hashable, bool] = defaultdict(lambda: True)
    for prediction, target, question in zip(predictions, truth, questions, strict=True):
        right[question] &= prediction == target
    return {"f1a": f1(predictions, truth), "exact_match": 100 * sum(right.values()) / len(right)}


# --------------------------------------------------------------------------------------------- answers


def normalize_answer(text: str) -> str:
    """SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.

    >>> normalize_answer("The  Eiffel-Tower!")
    'eiffeltower'
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def answer_f1(prediction: str, answer: str) -> float:
    """Overlap of words after normalisation, 0 to 1; two empty answers agree."""
    p, a = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not p or not a:
        return float(p == a)
    same = sum((Counter(p) & Counter(a)).values())
    return 2 * same / (len(p) + len(a))


def squad(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """SQuAD's (and ReCoRD's) F1 and exact match: the best over the answers; no answers means that "" is right."""
    f, e = 0.0, 0.0
    for prediction, options in zip(predictions, answers, strict=True):
        options = options or [""]
        f += max(answer_f1(prediction, option) for option in options)
        e += max(normalize_answer(prediction) == normalize_answer(option) for option in options)
    return {"f1": 100 * f / len(predictions), "exact_match": 100 * e / len(predictions)}


_DETERMINERS = frozenset(
    """a an few her his each every many much my our some that the their these this those which whose your""".split()  # noqa: SIM905
)


def wsc_match(prediction: str, referent: str) -> bool:
    """T5's rule for WSC: the words of one are among the other's, determiners aside; both or none is possessive.

    >>> wsc_match("the fuzzy bunny", "bunny"), wsc_match("", "bunny"), wsc_match("Bob's", "Bob")
    (True, False, False)
    """
    words = [{w for w in text.strip().lower().split() if w not in _DETERMINERS} for text in (prediction, referent)]
    if not words[0] or any("'" in w for w in words[0]) != any("'" in w for w in words[1]):
        return False
    return words[0] <= words[1] or words[1] <= words[0]


# ---------------------------------------------------------------------------------- language modelling


def perplexity(nll: float, tokens: int, words: int | None = None) -> dict[str, float]:
    """exp of the mean negative log likelihood (in nats) per token, and per word where the words are counted.

    >>> {name: round(value, 3) for name, value in perplexity(10 * math.log(8), tokens=10, words=5).items()}
    {'perplexity': 8.0, 'word_perplexity': 64.0}
    """

    def exp(mean: float) -> float:
        return math.exp(mean) if mean < 700 else math.inf

    result = {"perplexity": exp(nll / tokens)}
    return result | {"word_perplexity": exp(nll / words)} if words else result


def score_documents(predictions: Sequence[tuple[float, int]], examples: Sequence[Any]) -> dict[str, float]:
    """Perplexity of documents; a prediction is (summed negative log likelihood, tokens), words are split at spaces."""
    nll, tokens = sum(p[0] for p in predictions), sum(p[1] for p in predictions)
    return perplexity(nll, tokens, sum(len(example.target.split()) for example in examples))


# ------------------------------------------------------------------------------------------ generation
# references: for each prediction, one or several texts


def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """sacreBLEU with its defaults (13a, mixed case)."""
    from sacrebleu.metrics import BLEU

    return BLEU().corpus_score(list(predictions), _streams(references)).score


def bleu_signature(references: int = 1) -> str:
    """What to print beside a `bleu`: sacreBLEU's own description of how it was computed."""
    from sacrebleu.metrics import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]] * references)
    return str(metric.get_signature())


def _streams(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Transposed for sacrebleu, which allows None where an example has fewer references."""
    width = max(len(options) for options in references)
    return [[options[i] if i < len(options) else None for options in references] for i in range(width)]


def bleu_n(predictions: Sequence[str], references: Sequence[Sequence[str]], order: int) -> float:
    """BLEU up to n-grams of `order`, unsmoothed, as dialogue papers report BLEU-1 and BLEU-4."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(max_ngram_order=order, smooth_method="none", effective_order=False)
    return metric.corpus_score(list(predictions), _streams(references)).score


def rouge(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """ROUGE-1, -2, -L and -Lsum F-measures with stemming; with several references the best one counts."""
    from rouge_score.rouge_scorer import RougeScorer

    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    scorer = RougeScorer(names, use_stemmer=True)
    total = dict.fromkeys(names, 0.0)
    for prediction, options in zip(predictions, references, strict=True):
        for name, score in scorer.score_multi(list(options), prediction).items():
            total[name] += score.fmeasure
    return {name: 100 * value / len(predictions) for name, value in total.items()}


def words(text: str) -> list[str]:
    """Lower-cased words and punctuation marks.

    >>> words("It's late.")
    ['it', "'", 's', 'late', '.']
    """
    return re.findall(r"\w+|[^\w\s]", text.lower())


class _NoSynonyms:
    """Stands in for WordNet where its files are absent: no word has a synonym."""

    def synsets(self, word: str) -> list[Any]:
        return []


def _wordnet() -> Any:
    try:
        from nltk.corpus import wordnet

        wordnet.synsets("dog")
        return wordnet
    except LookupError:
        return None


def meteor(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """METEOR by nltk; called `meteor_no_synonyms` where the WordNet files are not installed: a different number."""
    from nltk.translate.meteor_score import meteor_score

    wordnet = _wordnet()
    total = 0.0
    for prediction, options in zip(predictions, references, strict=True):
        total += meteor_score([words(o) for o in options], words(prediction), wordnet=wordnet or _NoSynonyms())
    return {"meteor" if wordnet else "meteor_no_synonyms": 100 * total / len(predictions)}


def cider(predictions: Sequence[str], references: Sequence[Sequence[str]], sigma: float = 6.0) -> float:
    """CIDEr-D (Vedantam et al. 2015, Eq. 3 and 4): tf-idf cosine of 1- to 4-grams, clipped, with a length penalty.

    Document frequencies come from these references, so it needs many examples: with one, every idf is 0. ×100 here, the
    usual factor 10 of CIDEr-D included, which is how the Synthesizer paper's table prints it.
    """

    def grams(text: str, n: int) -> Counter[tuple[str, ...]]:
        tokens = words(text)
        return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))

    log_count = math.log(len(references))
    lengths = [[len(words(r)) for r in options] for options in references]
    score = np.zeros(len(predictions))
    for n in range(1, 5):
        frequency: Counter[tuple[str, ...]] = Counter()
        grams_of = [[grams(r, n) for r in options] for options in references]
        for options in grams_of:
            frequency.update(set().union(*options))

        def weigh(counts: Counter[tuple[str, ...]]) -> dict[tuple[str, ...], float]:
            return {g: c * (log_count - math.log(max(1, frequency[g]))) for g, c in counts.items()}  # noqa: B023

        for index, (prediction, options) in enumerate(zip(predictions, grams_of, strict=True)):
            p = weigh(grams(prediction, n))
            p_norm = math.sqrt(sum(w * w for w in p.values()))
            p_length = len(words(prediction))
            for reference, length in zip(options, lengths[index], strict=True):
                r = weigh(reference)
                r_norm = math.sqrt(sum(w * w for w in r.values()))
                if p_norm and r_norm:
                    dot = sum(min(w, r[g]) * r[g] for g, w in p.items() if g in r)
                    penalty = math.exp(-((p_length - length) ** 2) / (2 * sigma**2))
                    score[index] += dot / (p_norm * r_norm) * penalty / len(options) / 4
    return 100 * 10 * float(score.mean())


def embedding_similarity(
    predictions: Sequence[str], references: Sequence[Sequence[str]], vectors: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Similarity to the nearest reference by word vectors: average, extrema and greedy matching, as in nlg-eval."""
    total = dict.fromkeys(("embedding_average", "embedding_extrema", "embedding_greedy"), 0.0)

    def embed(text: str) -> np.ndarray | None:
        rows = [np.asarray(vectors[w], dtype=np.float64) for w in words(text) if w in vectors]
        return np.stack(rows) if rows else None

    for prediction, options in zip(predictions, references, strict=True):
        p = embed(prediction)
        pairs = [(p, r) for r in map(embed, options) if p is not None and r is not None]
        if pairs:
            total["embedding_average"] += max(_cosine(a.mean(0), b.mean(0)) for a, b in pairs)
            total["embedding_extrema"] += max(_cosine(_extrema(a), _extrema(b)) for a, b in pairs)
            total["embedding_greedy"] += max(_greedy(a, b) for a, b in pairs)
    return {name: 100 * value / len(predictions) for name, value in total.items()}


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def _extrema(rows: np.ndarray) -> np.ndarray:
    """In each dimension the value farthest from zero."""
    return np.take_along_axis(rows, np.abs(rows).argmax(0)[None], 0)[0]


def _greedy(a: np.ndarray, b: np.ndarray) -> float:
    """Each word's best partner in the other text, averaged both ways."""
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b))
    similarity = a @ b.T
    return float(similarity.max(1).mean() + similarity.max(0).mean()) / 2
