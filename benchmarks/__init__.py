"""Speed against the peers and against the machine's limit: one command a table, results in `results/`."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any


def with_earlier(result: dict[str, Any], file: Path, measured: Collection[str]) -> dict[str, Any]:
    """The result with the tables of an earlier file that this run does not measure; `made` says when each was."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    now = {"date": time.strftime("%Y-%m-%d", time.gmtime()), **result["versions"]}
    made = {table: before.get("made", {}).get(table, before.get("versions")) for table in before.get("tables", {})}
    made |= dict.fromkeys(measured, now)
    kept = {table: rows for table, rows in before.get("tables", {}).items() if table not in measured}
    return {**result, "made": made, "tables": kept | result["tables"]}
