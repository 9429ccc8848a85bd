"""Recompute all exact checks of `exact/paper_properties`: properties that papers claim, shown without training.

Usage:
    python -m benchmarks exact_checks                    # all checks, expected and measured values
    python -m benchmarks exact_checks NAME...            # some of them
    python -m benchmarks exact_checks --write            # store all rows in src/whetstone/analysis/exact.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from paper_properties import load_checks
from whetstone.analysis.exact import SHOWN, read_exact_rows
from whetstone.errors import did_you_mean

STORED = Path(__file__).parents[2] / "src" / "whetstone" / "analysis" / "exact.json"


def main() -> int:
    """Run the checks, print each row, and return 1 if a property does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Checks to run; default: all.")
    parser.add_argument("--write", action="store_true", help="Store the rows of all checks.")
    parser.add_argument("--json", action="store_true", help="Print the rows as one JSON list.")
    options = parser.parse_args()
    checks = load_checks()
    for name in options.names:
        if name not in checks:
            parser.error(f"no check {name}{did_you_mean(name, checks)}")
    if options.names and options.write:
        parser.error("--write stores all rows; remove the names")
    rows = [checks[name].measure_row() for name in options.names or checks]
    typed = read_exact_rows(rows)
    if options.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        for row in typed:
            print(f"{', '.join(row.papers)}: {row.sentence}")
        print(f"{len(typed)} checks of {len({key for row in typed for key in row.papers})} papers")
    if options.write:
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        STORED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0 if all(row.verdict == SHOWN for row in typed) else 1


if __name__ == "__main__":
    sys.exit(main())
