"""A rank's place among the others, from the environment: torchrun's variables, and two of our own.

RANK, WORLD_SIZE, LOCAL_RANK    which of how many, and which of those on its machine
MASTER_ADDR, MASTER_PORT        where torch.distributed meets
ROLLOUTPIPE_RANK_PORT           where rank 0 takes the others' control connections, at MASTER_ADDR
ROLLOUTPIPE_RANK_TOKEN          secret by which it knows them; the same on every rank, and of nobody else
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rolloutpipe_core.config.models import TrainerConfig
from rolloutpipe_core.errors import BadInput

NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "ROLLOUTPIPE_RANK_PORT")
TEXTS = ("MASTER_ADDR", "ROLLOUTPIPE_RANK_TOKEN")


@dataclass(frozen=True, slots=True)
class Place:
    rank: int
    ranks: int
    local_rank: int
    address: str  # of rank 0's machine
    store_port: int  # torch.distributed's
    control_port: int
    token: str = field(repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str], trainer: TrainerConfig) -> Place | None:
        """This process's place; None when nobody gave it one. Raises BadInput for half of one, or another number."""
        if "RANK" not in environ:
            return None
        wanted = rank_count(trainer)
        if environ.get("WORLD_SIZE") != str(wanted):
            raise BadInput(
                "the number of trainer ranks",
                given=f"WORLD_SIZE={environ.get('WORLD_SIZE', '')}",
                expected=f"{wanted}, data_parallel x tensor_parallel x pipeline_parallel of section trainer",
                remedy="change either, or unset RANK to have the ranks started here",
            )
        if wanted == 1:
            return None
        missing = [name for name in (*NUMBERS, *TEXTS) if not environ.get(name)]
        if missing:
            raise BadInput(
                f"{', '.join(missing)} not set",
                given=f"RANK={environ['RANK']}",
                expected="the variables that torchrun sets, and ROLLOUTPIPE_RANK_PORT and ROLLOUTPIPE_RANK_TOKEN",
                remedy="see docs/parallel-training.md",
            )
        wrong = [name for name in NUMBERS if not environ[name].isdigit()]
        if wrong:
            raise BadInput("not a number", given=f"{wrong[0]}={environ[wrong[0]]}")
        rank, ranks, local_rank, store_port, control_port = (int(environ[name]) for name in NUMBERS)
        return cls(rank, ranks, local_rank, environ["MASTER_ADDR"], store_port, control_port, environ[TEXTS[1]])

    def environment(self) -> dict[str, str]:
        """The variables that `read` reads. With the token: never to be logged."""
        numbers = (self.rank, self.ranks, self.local_rank, self.store_port, self.control_port)
        return dict(zip(NUMBERS, map(str, numbers), strict=True)) | dict(
            zip(TEXTS, (self.address, self.token), strict=True)
        )


def rank_count(trainer: TrainerConfig) -> int:
    """How many ranks a configuration asks for."""
    return trainer.data_parallel * trainer.tensor_parallel * trainer.pipeline_parallel


def is_follower(environ: Mapping[str, str]) -> bool:
    """Whether this process is another rank than 0."""
    return environ.get("RANK", "0") != "0"
