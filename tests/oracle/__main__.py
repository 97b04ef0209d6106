"""`python -m tests.oracle PATH...`: every case at or below the paths, one line each, and a count."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence

from tests.oracle.case import find_cases
from tests.oracle.runner import check


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a case, or a folder with cases below it")
    counts: Counter[str] = Counter()
    try:
        for case in find_cases(parser.parse_args(arguments).paths):
            report = check(case)
            counts[report.status] += 1
            print("\n".join(report.lines()), flush=True)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{counts['ok']} ok, {counts['FAIL']} failed, {counts['not built']} not built")
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
