"""A program that imports tokenmix alone can open what tokenmix saved."""

import subprocess
import sys

from tokenmix.models import create_model


def test_auto_classes_know_tokenmix_in_a_fresh_process(tmp_path):
    create_model("bert-tiny").save_pretrained(tmp_path)
    open_it = f"AutoModel.from_pretrained({str(tmp_path)!r})"
    program = f"import tokenmix; from transformers import AutoModel; print(type({open_it}).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "TokenmixModel", done.stderr
