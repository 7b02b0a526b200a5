"""Train the model of `delays/late-arrivals`, a logistic regression of scikit-learn, and write it to model.json.

    pip install scikit-learn
    flowctl collections read --collection delays/departures > departures.jsonl
    python examples/delays/train.py departures.jsonl

The model learns from the departures before October, and the script prints how well it ranks those after. The same
departures give the same file. The derivation needs only the file: scikit-learn is not installed where it runs.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = ("dep_delay", "distance", "wind_speed", "precip", "visib")
LATE_MINUTES = 15
TRAINED_BEFORE = "2013-10-01"
DIGITS = 6
"""Significant digits of the numbers in the file. The digits after these may differ between machines."""


def table(departures: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of departures, with NaN for unknown ones, and whether each flight arrived late."""
    values = [[departure.get(name, math.nan) for name in FEATURES] for departure in departures]
    return np.array(values, float), np.array([departure["arr_delay"] >= LATE_MINUTES for departure in departures])


def train(departures: list[dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Return a trained pipeline of scikit-learn, and the same model as JSON."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    imputer, scaler = SimpleImputer(), StandardScaler()
    regression = LogisticRegression(solver="newton-cholesky", tol=1e-10)
    pipeline = make_pipeline(imputer, scaler, regression).fit(*table(departures))
    # Standard scores are linear, so they become part of the weights.
    weights = regression.coef_[0] / scaler.scale_
    intercept = regression.intercept_[0] - weights @ scaler.mean_
    features = {
        name: {"weight": _short(weight), "missing": _short(missing)}
        for name, weight, missing in zip(FEATURES, weights, imputer.statistics_, strict=True)
    }
    return pipeline, {"intercept": _short(intercept), "features": features}


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("departures", type=Path, help="documents of delays/departures, as JSON Lines")
    options = parser.parse_args()
    from sklearn.metrics import roc_auc_score

    with options.departures.open() as lines:
        arrived = [departure for departure in map(json.loads, lines) if "arr_delay" in departure]
    pipeline, model = train([departure for departure in arrived if departure["scheduled"] < TRAINED_BEFORE])
    Path(__file__).with_name("model.json").write_text(json.dumps(model, indent=2) + "\n")
    values, late = table([departure for departure in arrived if departure["scheduled"] >= TRAINED_BEFORE])
    quality = roc_auc_score(late, pipeline.predict_proba(values)[:, 1])
    print(f"{len(late):,} departures from {TRAINED_BEFORE} on: area under the ROC curve {quality:.3f}")


if __name__ == "__main__":
    main()
