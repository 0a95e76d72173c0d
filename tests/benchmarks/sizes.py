"""How large the rows of `make bench` are: as published, quick, and as the tests run them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How large the rows are. `FULL` is what is published; the others show that rows run."""

    name: str
    repeats: int
    n_features: int
    estep_rows: dict[int, int]  # by K
    fits: dict[int, tuple[int, int]]  # by K: rows, iterations
    end_to_end: dict[int, int]  # by K: repeats of whole jobs
    ten_starts: int  # most clusters for which scikit-learn runs ten starts: of 100 half an hour
    answers: tuple[int, ...]
    answers_repeats: int
    arxiv: dict[int, int]  # by K: repeats
    arxiv_rows: int | None  # None: all
    real_text: dict[int, tuple[tuple[int, int], ...]]  # by K: rows, iterations of whole fits
    before: tuple[int, ...]  # rows of fits of which the time before an iteration is taken
    before_rounds: int  # iterations before the rounds of refinement
    spark: tuple[int, int]  # rows, iterations
    middle: int  # rows of an iteration's own rows: Dask's share, weights, pairs
    pairs: int
    large: int  # rows of commits, memory
    processes: dict[int, int]  # by K: rows on one worker process and on two
    process_pairs: int  # of fits
    copies: int  # of these rows in a corpus that does not fit
    iterations: int  # of fits whose iterations are timed
    dask_ml: tuple[int, int]  # rows, features
    dense_rows: int
    dense_features: tuple[int, ...]
    dense_clusters: tuple[int, ...]
    dense_iterations: int
    growth: dict[str, tuple[int, ...]]
    growth_base: tuple[int, int]  # rows, K
    ablation: dict[int, tuple[int, int]]  # by K: rows, iterations of fits with and without tricks
    ablation_pairs: tuple[int, int]  # the same with pairs
    starts: int  # processes started for each figure of import and --help
    compiles: int
    texts: int
    scale_rows: int  # on hosts with links of their own
    scale_features: int
    scale_documents: int  # that these rows stand for
    scale: dict[tuple[int, int], tuple[int, ...]]  # by K and megabits a second: workers
    n_clusters: int = 100
    at_least: float = 0.2  # seconds of a sample of a kernel

    @property
    def tenth(self) -> int:
        """A tenth of the large corpus."""
        return self.large // 10


FULL = Sizes(
    name="full",
    repeats=3,
    n_features=50_000,
    estep_rows={20: 100_000, 100: 60_000, 500: 20_000},
    fits={20: (200_000, 15), 100: (100_000, 15), 500: (50_000, 10)},
    end_to_end={20: 2, 100: 1},
    ten_starts=20,
    answers=(1_000, 10_000),
    answers_repeats=1,
    arxiv={20: 3, 172: 1},
    arxiv_rows=None,
    real_text={
        20: ((60_000, 10), (60_000, 30), (120_000, 10), (120_000, 30)),
        100: ((60_000, 10), (60_000, 30), (120_000, 10), (120_000, 30)),
        500: ((60_000, 10), (60_000, 30)),  # of all rows scikit-learn takes 3 minutes
    },
    before=(60_000, 120_000),
    before_rounds=10,
    spark=(60_000, 4),
    middle=200_000,
    pairs=100_000,
    large=1_000_000,
    processes={100: 1_000_000, 500: 200_000},
    process_pairs=8,
    copies=10,
    iterations=6,
    dask_ml=(20_000, 256),
    dense_rows=120_000,
    dense_features=(50, 256, 384),
    dense_clusters=(20, 100, 1_000),
    dense_iterations=10,
    growth={
        "n": (25_000, 50_000, 100_000, 200_000, 400_000),
        "K": (10, 20, 50, 100, 200, 500),
        "d": (12_500, 25_000, 50_000, 100_000, 200_000),
        "pairs": (1_000, 10_000, 100_000, 1_000_000),
    },
    growth_base=(100_000, 100),
    ablation={20: (60_000, 20), 100: (30_000, 10), 500: (8_000, 6)},
    ablation_pairs=(100_000, 5),
    starts=11,
    compiles=3,
    texts=30_000,
    scale_rows=200_000,
    scale_features=200_000,
    scale_documents=4_000_000,
    scale={(250, 10_000): (1, 2, 4, 8), (250, 1_000): (2, 8), (1_000, 10_000): (2,)},
)
QUICK = Sizes(
    name="quick",
    repeats=3,
    n_features=20_000,
    estep_rows={20: 10_000, 100: 5_000, 500: 1_500},
    fits={20: (20_000, 6), 100: (10_000, 6), 500: (3_000, 3)},
    end_to_end={20: 1, 100: 1},
    ten_starts=20,
    answers=(100, 1_000),
    answers_repeats=1,
    arxiv={20: 1},
    arxiv_rows=5_000,
    real_text={20: ((2_500, 5), (5_000, 5)), 100: ((5_000, 5),)},
    before=(2_500, 5_000),
    before_rounds=5,
    spark=(4_000, 2),
    middle=20_000,
    pairs=10_000,
    large=50_000,
    processes={50: 50_000},
    process_pairs=3,
    copies=10,
    iterations=4,
    dask_ml=(4_000, 64),
    dense_rows=5_000,
    dense_features=(50,),
    dense_clusters=(20, 100),
    dense_iterations=5,
    growth={
        "n": (2_500, 5_000, 10_000),
        "K": (10, 50, 100),
        "d": (5_000, 20_000),
        "pairs": (1_000, 10_000),
    },
    growth_base=(10_000, 50),
    ablation={20: (5_000, 6), 50: (3_000, 6)},
    ablation_pairs=(5_000, 5),
    starts=3,
    compiles=1,
    texts=3_000,
    scale_rows=20_000,
    scale_features=20_000,
    scale_documents=400_000,
    scale={(50, 10_000): (1, 2, 4)},
    n_clusters=50,
)
TINY = Sizes(
    name="tiny",
    repeats=1,
    n_features=1_000,
    estep_rows={5: 600},
    fits={4: (500, 3)},
    end_to_end={4: 1},
    ten_starts=4,
    answers=(20, 40),
    answers_repeats=1,
    arxiv={4: 1},
    arxiv_rows=None,
    real_text={4: ((120, 2), (240, 3))},
    before=(120, 240),
    before_rounds=3,
    spark=(300, 2),
    middle=400,
    pairs=100,
    large=600,
    processes={4: 600},
    process_pairs=1,
    copies=3,
    iterations=3,
    dask_ml=(200, 8),
    dense_rows=300,
    dense_features=(8,),
    dense_clusters=(4,),
    dense_iterations=3,
    growth={"n": (200, 400), "K": (3, 6), "d": (500, 1_000), "pairs": (20, 40)},
    growth_base=(300, 3),
    ablation={4: (300, 4)},
    ablation_pairs=(300, 4),
    starts=1,
    compiles=1,
    texts=200,
    scale_rows=2_000,
    scale_features=3_000,
    scale_documents=2_000,
    scale={(4, 1_000): (1, 2)},
    n_clusters=4,
    at_least=0.0,
)
