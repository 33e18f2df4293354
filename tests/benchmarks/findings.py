"""The findings that the recipe stands on, measured: four lists of policies on equal data and an equal backbone; and two
of them once more without staleness, to show what the semi-synchronous pipeline costs in quality.

    python tests/benchmarks/findings.py [--preset demo] [--seeds 0 1 2] [--root DIR]

For every seed the backbone is pretrained once, by the delayed run; the other runs fetch it. Prints every run, the
differences paired by seed, and what of the claims holds; the exit status is not 0 if one does not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

THAW = Path(sys.executable).with_name("thaw")
RECIPES = {
    "delayed": ("recipe.policies=[frozen,cotrain]",),
    "one epoch": ("recipe.policies=[cotrain]",),
    "frozen twice": ("recipe.policies=[frozen,frozen]",),
    "co-trained twice": ("recipe.policies=[cotrain,cotrain]",),
    "delayed, synchronous": ("recipe.policies=[frozen,cotrain]", "training.staleness=0"),
    "one epoch, synchronous": ("recipe.policies=[cotrain]", "training.staleness=0"),
}


def run(preset: str, root: str, seed: int, name: str) -> dict[str, float]:
    """The figures of one run, which is made unless it is there."""
    run_id = f"{preset}-seed-{seed}-{name.replace(',', '').replace(' ', '-')}"
    folder = Path(root, "runs", run_id, "evaluate", "attempt-1")
    if not (folder / "manifest.json").exists():
        sets = [part for override in RECIPES[name] for part in ("--set", override)]
        if name != "delayed":
            backbone = Path(root, "runs", f"{preset}-seed-{seed}-delayed", "prepare-backbone", "attempt-1", "model")
            sets += ["--set", f"backbone={{fetch: {{uri: '{backbone.absolute()}'}}}}"]
        arguments = ["run", "--preset", preset, "--root", root, "--run-id", run_id, "--seed", str(seed), *sets]
        subprocess.run([THAW, *arguments], check=True, stdout=subprocess.DEVNULL)
    figures = json.loads((folder / "manifest.json").read_text())["figures"]
    for stage in Path(root, "runs", run_id).glob("train-frozen*/attempt-1/manifest.json"):
        epoch = json.loads(stage.read_text())["figures"]
        assert epoch["checksums_before"] == epoch["checksums_after"], f"{stage}: a frozen table moved"
    return figures


def main() -> None:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--root", default=tempfile.gettempdir() + "/thaw-findings")
    options = parser.parse_args()
    figures = {}
    for seed in options.seeds:
        for name in RECIPES:
            figures[seed, name] = found = run(options.preset, options.root, seed, name)
            print(
                f"seed {seed}  {name:22}  click AUC {found['click_auc']:.4f}  log-loss {found['click_log_loss']:.4f}"
                f"  over Bayes {found['click_excess_log_loss']:+.4f}  gap {found['click_auc_gap']:+.3f}"
                f"  save AUC {found['save_auc']:.4f}",
                flush=True,
            )

    def minus(key: str, one: str, other: str) -> list[float]:
        return [figures[seed, one][key] - figures[seed, other][key] for seed in options.seeds]

    for name in RECIPES:
        auc, log_loss = (
            mean(figures[seed, name][key] for seed in options.seeds) for key in ("click_auc", "click_log_loss")
        )
        print(f"mean    {name:22}  click AUC {auc:.4f}  log-loss {log_loss:.4f}")
    claims: dict[str, tuple[list[float], bool]] = {}
    for other in ("one epoch", "frozen twice", "co-trained twice"):
        claims[f"click AUC, delayed minus {other}: above 0 on each seed"] = (
            (differences := minus("click_auc", "delayed", other)),
            min(differences) > 0,
        )
    worse = minus("click_log_loss", "co-trained twice", "one epoch")
    claims["click log-loss, co-trained twice minus one epoch: .02 or more on each seed"] = worse, min(worse) >= 0.02
    for name in ("delayed", "one epoch"):
        for key, most in (("click_auc", 0.003), ("click_log_loss", 0.002)):
            differences = minus(key, name, f"{name}, synchronous")
            # Of AUC the size counts, of log-loss the rise.
            off = abs(mean(differences)) if key == "click_auc" else mean(differences)
            claims[f"{key}, {name} minus the same without staleness: mean within {most}"] = differences, off <= most
    excess = [found["click_excess_log_loss"] for found in figures.values()]
    claims["log-loss over Bayes: never below 0"] = excess, min(excess) >= 0
    failed = False
    for claim, (differences, holds) in claims.items():
        failed |= not holds
        print(f"{'holds' if holds else 'FAILS'}  {claim}: {' '.join(f'{value:+.4f}' for value in differences)}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
