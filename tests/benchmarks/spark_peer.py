"""Spark MLlib's KMeans as a process that answers: one JSON line asks for a fit, one describes it.

Run by a Python that has pyspark, with a Java that Spark supports:

    python spark_peer.py FOLDER CORES

FOLDER holds Parquet files of MLlib's sparse vectors, which are read once and cached. The time
is that of the whole process tree, the JVM's garbage collector and compiler included.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MARK = "spark-peer "  # before every answer: Spark writes lines of its own
TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu(root: int) -> float:
    """Return CPU seconds of a process and all below it."""
    spent: dict[int, float] = {}
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            spent[int(folder.name)] = sum(int(one) for one in fields[11:15]) / TICKS
            below.setdefault(int(fields[1]), []).append(int(folder.name))
    total, found = 0.0, [root]
    while found:
        process = found.pop()
        total += spent.get(process, 0.0)
        found += below.get(process, [])
    return total


def main() -> None:
    """Answer until there is nothing more to read."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField, StructType

    folder, cores = sys.argv[1], sys.argv[2]
    settings = {
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.files.maxPartitionBytes": "16m",
        "spark.default.parallelism": cores,
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("hmrf-benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    schema = StructType([StructField("features", VectorUDT(), False)])
    rows = session.read.schema(schema).parquet(folder).repartition(2 * int(cores)).cache()
    facts = {"rows": rows.count(), "version": session.version}
    _answer(facts | {"partitions": rows.rdd.getNumPartitions()})
    for line in sys.stdin:
        _answer(_fit(rows, json.loads(line)))
    session.stop()


def _answer(facts: dict[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


def _fit(rows: Any, asked: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    from pyspark.ml.clustering import KMeans

    means = KMeans(
        k=asked["n_clusters"], maxIter=asked["max_iter"], seed=asked["seed"], tol=0.0,
        initMode="random", distanceMeasure="cosine", featuresCol="features",
    )  # fmt: skip
    wall, cpu = time.perf_counter(), tree_cpu(os.getpid())
    model = means.fit(rows)
    facts = {"wall": time.perf_counter() - wall, "cpu": tree_cpu(os.getpid()) - cpu}
    if asked.get("centers"):
        np.save(asked["centers"], np.stack(model.clusterCenters()))
    summary = model.summary
    return facts | {"cost": float(summary.trainingCost), "n_iter": int(summary.numIter)}


if __name__ == "__main__":
    main()
