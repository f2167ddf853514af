"""Sampling, stop strings, streaming and the pipelines of transformers."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessor, pipeline

from tokenmix.data.tokenizers import train_tokenizer
from tokenmix.generation import generate, stream
from tokenmix.generation.search import Limits, Sampling
from tokenmix.models import create_model

TEXTS = ["walk left twice and look right", "jump around the tree", "run and jump and look", "the tree is left of it"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, kind="word", vocab_size=40)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = create_model("lm-tiny", layer="random + dot | remix", vocab_size=17, eos_token_id=None).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)  # so that it does not say one word for ever
    return model


@pytest.fixture(scope="module")
def ids(tokenizer) -> torch.Tensor:
    return tokenizer(["walk left and", "the tree is"], return_tensors="pt", add_special_tokens=False).input_ids


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_sampling_repeats_itself_for_the_same_generator(model, ids) -> None:
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 1.5}
    a, b, c = (generate(model, ids, generator=generator(seed), **options).tokens for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_sampling_draws_what_hugging_face_draws_from_the_same_seed(model, ids) -> None:
    options = {"max_new_tokens": 12, "do_sample": True, "temperature": 0.8, "top_k": 12, "top_p": 0.9}
    torch.manual_seed(5)
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    torch.manual_seed(5)
    assert torch.equal(generate(model, ids, **options).sequences, theirs)


def sampling(**options: float) -> Sampling:
    return Sampling(1, Limits(1, torch.ones(1, dtype=torch.long), (), 0), torch.device("cpu"), **options)


def test_sampled_tokens_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    search = sampling(temperature=0.7, generator=generator())
    drawn = search.pick(logits.expand(20_000, -1))
    shares = torch.bincount(drawn, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.softmax(logits[0] / 0.7, -1), atol=0.015, rtol=0)


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    assert (sampling(top_k=2).distribution(logits) > 0).tolist() == [[True, True, False, False]]
    assert (sampling(top_p=0.7).distribution(logits) > 0).tolist() == [[True, True, False, False]]
    assert (sampling(top_p=0.01).distribution(logits) > 0).sum() == 1
    torch.testing.assert_close(sampling(top_k=99).distribution(logits), logits.exp())


@pytest.mark.parametrize("beams", [1, 3])
def test_a_row_ends_with_the_token_that_completes_a_stop_string(model, tokenizer, ids, beams: int) -> None:
    free = generate(model, ids, max_new_tokens=12, num_beams=beams).tokens
    third = tokenizer.decode(free[0, 2:3])
    out = generate(model, ids, max_new_tokens=12, num_beams=beams, stop_strings=[third], tokenizer=tokenizer).tokens
    first = [tokenizer.decode(token) for token in free[0]].index(third)
    if beams == 1:
        assert torch.equal(out[0, : first + 1], free[0, : first + 1])
        assert (out[0, first + 1 :] == 0).all()
    else:
        text = tokenizer.decode(out[0], skip_special_tokens=True)
        assert third not in text or text.endswith(third)


def test_stop_strings_may_span_tokens(model, tokenizer, ids) -> None:
    free = generate(model, ids[:1], max_new_tokens=12).tokens
    both = tokenizer.decode(free[0, 3:5])
    until = next(n for n in range(13) if both in tokenizer.decode(free[0, :n]))
    out = generate(model, ids[:1], max_new_tokens=12, stop_strings=both, tokenizer=tokenizer).tokens
    assert torch.equal(out, free[:, :until])


def test_streamed_tokens_are_the_generated_ones(model, ids) -> None:
    whole = generate(model, ids, max_new_tokens=9, eos_token_id=[4, 9, 14]).tokens
    pieces = torch.stack(list(stream(model, ids, max_new_tokens=9, eos_token_id=[4, 9, 14])), 1)
    assert torch.equal(pieces, whole)


def test_streamed_text_is_the_generated_text(model, tokenizer, ids) -> None:
    whole = generate(model, ids[:1], max_new_tokens=9).tokens[0]
    pieces = list(stream(model, ids[:1], max_new_tokens=9, tokenizer=tokenizer))
    assert "".join(pieces) == tokenizer.decode(whole, skip_special_tokens=True)
    assert len(pieces) > 1


def test_a_stream_leaves_gradients_and_training_alone(model, ids) -> None:
    model.train()
    try:
        for _ in stream(model, ids, max_new_tokens=3):
            assert model.training
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
    finally:
        model.eval()


def test_autocast_changes_nothing(model, ids) -> None:
    plain = generate(model, ids, max_new_tokens=12, return_scores=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = generate(model, ids, max_new_tokens=12, return_scores=True)
        streamed = torch.stack(list(stream(model, ids, max_new_tokens=12)), 1)
    assert torch.equal(out.sequences, plain.sequences)
    assert torch.equal(out.scores, plain.scores)
    assert torch.equal(streamed, plain.tokens)


def test_beams_cannot_be_streamed(model, ids) -> None:
    with pytest.raises(ValueError, match="only at the end"):
        next(stream(model, ids, max_new_tokens=3, num_beams=2))


@pytest.mark.parametrize("beams", [1, 2])
def test_lengths_say_where_rows_end(model, ids, beams: int) -> None:
    marks = [4, 9, 14]
    out = generate(model, ids, max_new_tokens=8, num_beams=beams, eos_token_id=marks)
    for row, length in zip(out.tokens.tolist(), out.lengths.tolist(), strict=True):
        assert length == next((i + 1 for i, token in enumerate(row) if token in marks), 8)


# --------------------------------------------------------------------------------------- the pipelines of transformers


def test_text_generation_pipeline(model, tokenizer) -> None:
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    said = write("walk left and", max_new_tokens=5, do_sample=False, return_full_text=False)[0]["generated_text"]
    ids = tokenizer("walk left and", return_tensors="pt").input_ids
    tokens = generate(model, ids, max_new_tokens=5).tokens[0]
    assert said.strip() == tokenizer.decode(tokens, skip_special_tokens=True).strip()


def test_fill_mask_pipeline() -> None:
    tokenizer = train_tokenizer(TEXTS, kind="word", vocab_size=40, style="bert")
    model = create_model("gmlp-tiny", vocab_size=len(tokenizer)).eval()
    filled = pipeline("fill-mask", model=model, tokenizer=tokenizer)(f"walk {tokenizer.mask_token} twice", top_k=3)
    assert len(filled) == 3
    assert filled[0]["score"] >= filled[-1]["score"] > 0


def test_text_classification_pipeline() -> None:
    tokenizer = train_tokenizer(TEXTS, kind="word", vocab_size=40, style="bert")
    labels = {0: "calm", 1: "lively"}
    model = create_model(
        "amlp-tiny", head="sequence_classification", vocab_size=len(tokenizer), id2label=labels,
        label2id={name: i for i, name in labels.items()},
    ).eval()  # fmt: skip
    answers = pipeline("text-classification", model=model, tokenizer=tokenizer)(["run and jump", "look"], batch_size=2)
    assert {answer["label"] for answer in answers} <= set(labels.values())


def test_image_classification_pipeline() -> None:
    model = create_model("gmlp-vision-tiny", channels=3).eval()
    processor = ViTImageProcessor(size={"height": 28, "width": 28})
    image = Image.new("RGB", (40, 40), (200, 30, 30))
    answers = pipeline("image-classification", model=model, image_processor=processor)(image, top_k=2)
    assert len(answers) == 2
    assert abs(sum(a["score"] for a in answers) - 0.2) < 0.2
