"""The ``checkpoint_storage`` section: where checkpoints are kept, and how many."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from determined.expconf.base import AbsolutePath, Natural, Section, Text, by_key, member

Propagation = Literal["private", "rprivate", "shared", "rshared", "slave", "rslave"]


class BaseStorage(Section):
    """The fields of every storage; a merge keeps them even if the types differ."""

    type: str = Field(description="kind of storage")
    save_experiment_best: Natural = Field(0, description="best checkpoints kept per experiment")
    save_trial_best: Natural = Field(1, description="best checkpoints kept per trial")
    save_trial_latest: Natural = Field(1, description="latest checkpoints kept per trial")


class SharedFsStorage(BaseStorage):
    """A directory that has the same path on every machine."""

    type: Literal["shared_fs"]
    host_path: AbsolutePath = Field(description="the directory on the machines")
    storage_path: str | None = Field(
        None, description="directory inside host_path: a relative path, or an absolute one"
    )
    propagation: Propagation = Field("rprivate", description="mount propagation in containers")
    container_path: str | None = Field(None, description="no longer used")
    checkpoint_path: str | None = Field(None, description="no longer used")
    tensorboard_path: str | None = Field(None, description="no longer used")


class DirectoryStorage(BaseStorage):
    """A directory that the user provides wherever the trial runs."""

    type: Literal["directory"]
    container_path: AbsolutePath = Field(
        description="path of the directory in the trial's container"
    )


class ObjectStorage(BaseStorage):
    """The fields of object storages."""

    pack_small_files: bool = Field(
        False, description="store files below 1 MB together, in tar archives"
    )

    @model_serializer(mode="wrap")
    def _only_when_asked_for(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Determined's own client refuses a field that it does not know.
        found: dict[str, Any] = handler(self)
        if not found.get("pack_small_files"):
            found.pop("pack_small_files", None)
        return found


class S3Storage(ObjectStorage):
    """An S3 bucket, or one of a server with the same protocol."""

    type: Literal["s3"]
    bucket: Text = Field(description="name of the bucket")
    access_key: str | None = Field(None, description="key id; default: the machine's identity")
    secret_key: str | None = Field(None, description="secret that belongs to access_key")
    endpoint_url: str | None = Field(None, description="address of an S3 server other than AWS")
    prefix: str | None = Field(None, description="prefix of every object's name")


class GcsStorage(ObjectStorage):
    """A Google Cloud Storage bucket."""

    type: Literal["gcs"]
    bucket: Text = Field(description="name of the bucket")
    prefix: str | None = Field(None, description="prefix of every object's name")


class AzureStorage(ObjectStorage):
    """An Azure Blob Storage container."""

    type: Literal["azure"]
    container: Text = Field(description="name of the container")
    connection_string: str | None = Field(
        None, description="connection string with address and key"
    )
    account_url: str | None = Field(None, description="address of the account")
    credential: str | None = Field(None, description="key for account_url")


class HdfsStorage(BaseStorage):
    """A Hadoop file system; still accepted so that old experiments load."""

    type: Literal["hdfs"]
    hdfs_url: Text = Field(description="address of the file system")
    hdfs_path: AbsolutePath = Field(description="directory in the file system")
    user: str | None = Field(None, description="user name")


CheckpointStorage = Annotated[
    Annotated[SharedFsStorage, member("SharedFsStorage")]
    | Annotated[DirectoryStorage, member("DirectoryStorage")]
    | Annotated[S3Storage, member("S3Storage")]
    | Annotated[GcsStorage, member("GcsStorage")]
    | Annotated[AzureStorage, member("AzureStorage")]
    | Annotated[HdfsStorage, member("HdfsStorage")],
    by_key(
        "type",
        {
            "shared_fs": "SharedFsStorage",
            "directory": "DirectoryStorage",
            "s3": "S3Storage",
            "gcs": "GcsStorage",
            "azure": "AzureStorage",
            "hdfs": "HdfsStorage",
        },
    ),
]
