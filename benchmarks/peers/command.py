"""One command of etymon in this process: its seconds, and the largest resident size of the process and of its largest child.

Run as a script in a process of its own, with the command's words as JSON; the last line that it prints is the record.
"""

import json
import resource
import sys
import time


def run(words: list[str]) -> dict[str, float]:
    from etymon import cli

    begin = time.perf_counter()
    try:
        cli.main(words)
    except SystemExit as leaving:
        if leaving.code:
            raise RuntimeError(f"etymon {' '.join(words)} has ended with {leaving.code}") from leaving
    own, child = (
        resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"seconds": time.perf_counter() - begin, "own": own, "child": child}


if __name__ == "__main__":
    print("\n" + json.dumps(run(json.loads(sys.argv[1]))))
