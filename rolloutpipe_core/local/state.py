"""What `.rolloutpipe/` of a folder knows about its embedded servers: addresses, processes, credentials.

servers.json      where they listen and which processes they are
credentials.json  mode 0600, new at each start
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolloutpipe_core.errors import BadInput

STATE_FOLDER = ".rolloutpipe"
Model = TypeVar("Model", bound=BaseModel)


class ServerRecord(BaseModel):
    """One server process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    started: int  # the process's start time in clock ticks since boot: a reused pid has another one
    ports: tuple[int, ...]  # the first one is the server's own


class ServersFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    redis: ServerRecord
    s3: ServerRecord
    parent: int | None = None  # pid with which they die; None: they outlive their starter


class CredentialsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    redis_password: str = Field(repr=False)
    s3_access_key: str = Field(repr=False)
    s3_secret_key: str = Field(repr=False)


def servers_path(directory: Path) -> Path:
    return directory / STATE_FOLDER / "servers.json"


def credentials_path(directory: Path) -> Path:
    return directory / STATE_FOLDER / "credentials.json"


def read_servers(directory: Path) -> ServersFile | None:
    """The recorded servers of a folder, or None. They need not be alive."""
    return _read(servers_path(directory), ServersFile)


def read_credentials(directory: Path) -> CredentialsFile | None:
    """The credentials of a folder's servers, or None. Raises BadInput when others could read them."""
    path = credentials_path(directory)
    if path.exists() and path.stat().st_mode & 0o077:
        raise BadInput(
            f"others can read {path}",
            given=f"mode {path.stat().st_mode & 0o777:04o}",
            expected="mode 0600",
            remedy="run `rolloutpipe down` and `rolloutpipe up` for new credentials",
        )
    return _read(path, CredentialsFile)


def write_private(path: Path, model: BaseModel) -> None:
    """Write a state file with mode 0600, whole or not at all."""
    partial = path.with_suffix(".new")
    partial.unlink(missing_ok=True)
    # The mode is set at creation: there is no moment in which others can read.
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(model.model_dump_json(indent=2) + "\n")
    partial.replace(path)


def _read(path: Path, model: type[Model]) -> Model | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        # Not the error's own text: it repeats the input, which may be a secret.
        raise BadInput(
            f"unreadable {path}",
            given=f"{error.error_count()} wrong fields",
            remedy="stop the servers it names and delete it",
        ) from None
