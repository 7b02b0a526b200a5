"""Scores: estimates how likely each flight arrives late, with the logistic regression in model.json."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from delays.late_arrivals import IDerivation, arrow

MODEL = json.loads(Path(__file__).with_name("model.json").read_text())
KEPT = ("flow_row", "carrier", "flight", "origin", "dest", "scheduled")


class Derivation(IDerivation):
    """Probabilities of late arrivals, computed for many flights at once."""

    @arrow
    def from_departures(self, batch: pa.RecordBatch) -> pa.Table:
        score = np.full(batch.num_rows, MODEL["intercept"])
        for name, feature in MODEL["features"].items():
            values = batch[name].cast(pa.float64()).fill_null(feature["missing"])
            score += feature["weight"] * values.to_numpy()
        # Rounded, because the last digits of exp may depend on the number of rows.
        probability = np.round(1 / (1 + np.exp(-score)), 3)
        return pa.table({**{name: batch[name] for name in KEPT}, "probability": probability})
