"""The findings that the recipe stands on, measured: four lists of policies on equal data and an equal backbone.

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
POLICIES = {
    "delayed": "[frozen, cotrain]",
    "one epoch": "[cotrain]",
    "frozen twice": "[frozen, frozen]",
    "co-trained twice": "[cotrain, cotrain]",
}


def run(preset: str, root: str, seed: int, name: str) -> dict[str, float]:
    """The figures of one run, which is made unless it is there."""
    run_id = f"{preset}-seed-{seed}-{name.replace(' ', '-')}"
    folder = Path(root, "runs", run_id, "evaluate", "attempt-1")
    if not (folder / "manifest.json").exists():
        sets = ["--set", f"recipe.policies={POLICIES[name]}"]
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
        for name in POLICIES:
            figures[seed, name] = found = run(options.preset, options.root, seed, name)
            print(
                f"seed {seed}  {name:17}  click AUC {found['click_auc']:.4f}  log-loss {found['click_log_loss']:.4f}"
                f"  over Bayes {found['click_excess_log_loss']:+.4f}  gap {found['click_auc_gap']:+.3f}"
                f"  save AUC {found['save_auc']:.4f}",
                flush=True,
            )

    def minus(key: str, one: str, other: str) -> list[float]:
        return [figures[seed, one][key] - figures[seed, other][key] for seed in options.seeds]

    for name in POLICIES:
        auc, log_loss = (
            mean(figures[seed, name][key] for seed in options.seeds) for key in ("click_auc", "click_log_loss")
        )
        print(f"mean    {name:17}  click AUC {auc:.4f}  log-loss {log_loss:.4f}")
    claims = {}
    for other in ("one epoch", "frozen twice", "co-trained twice"):
        claims[f"click AUC, delayed minus {other}: above 0 on each seed"] = minus("click_auc", "delayed", other), 0.0
    worse = minus("click_log_loss", "co-trained twice", "one epoch")
    claims["click log-loss, co-trained twice minus one epoch: .02 or more on each seed"] = worse, 0.02
    excess = [found["click_excess_log_loss"] for found in figures.values()]
    claims["log-loss over Bayes: never below 0"] = excess, 0.0
    failed = False
    for claim, (differences, least) in claims.items():
        holds = min(differences) >= least
        failed |= not holds
        print(f"{'holds' if holds else 'FAILS'}  {claim}: {' '.join(f'{value:+.4f}' for value in differences)}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
