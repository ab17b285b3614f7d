"""What `lumos whatif` says of changes of other people's scripts, against the changed scripts.

python -m validation.foreign --record DIR [WORD…]        record the jobs (needs torch and transformers; some 20 minutes;
                                                         megatron-core and torchtitan for their jobs)
python -m validation.foreign DIR [WORD…]                 score the pairs that are not held out
python -m validation.foreign DIR --held-out              score all of them; of those held out only sums are shown
python -m validation.foreign DIR [--record] --drawn [--seed N]  the same with pairs that a generator draws: only sums are shown
python -m validation.foreign DIR [--record] --odd [--seed N]    the same with pairs of odd families: recommenders, loops over time, …
python -m validation.foreign DIR --shuffle               give every pair the truth of another one, to see the score fall
python -m validation.foreign DIR --calibrate             the part of an interval that was observed, and how it does for jobs left out
python -m validation.foreign DIR [--held-out] --write    write the score into its result file
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.figures import write_result
from validation.foreign.calibrate import calibration
from validation.foreign.drawn import SEED
from validation.foreign.pairs import PAIRS, drawn_pairs
from validation.foreign.score import drawn_section, score, section


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="only pairs whose name contains one of them; then nothing is written")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--drawn", action="store_true")
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED, help="of the draw; that of the first one without")
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_intermixed_args()
    if args.record:
        from validation.foreign.record import record

        record(args.folder, args.words, drawn_pairs(args.seed, odd=args.odd) if args.drawn or args.odd else PAIRS)
        return 0
    if args.calibrate:
        print(calibration(score(args.folder, args.words)))
        return 0
    if args.drawn or args.odd:
        scores = score(args.folder, args.words, held_out=True, shuffle=args.shuffle, among=drawn_pairs(args.seed, odd=args.odd))
        kind = "odd" if args.odd else "drawn"
        name = "whatif-drawn" if args.seed == SEED and args.drawn else f"whatif-{kind}-{args.seed}"
        text = drawn_section(scores, args.seed, odd=args.odd)
    else:
        scores = score(args.folder, args.words, held_out=args.held_out, shuffle=args.shuffle)
        name, text = "whatif-foreign", section(scores)
    print(text)
    if args.write and not args.words and not args.shuffle:
        write_result(f"validation/results/{name}.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
