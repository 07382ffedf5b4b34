"""Where checkpoints are kept, and how many of them."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from determined.expconf.base import AbsolutePath, Natural, Section, Text, by_key, member

Propagation = Literal["private", "rprivate", "shared", "rshared", "slave", "rslave"]


class BaseStorage(Section):
    """What every storage has; these fields survive a change of type when configs are merged."""

    type: str = Field(description="kind of storage")
    save_experiment_best: Natural = Field(0, description="best checkpoints kept per experiment")
    save_trial_best: Natural = Field(1, description="best checkpoints kept per trial")
    save_trial_latest: Natural = Field(1, description="latest checkpoints kept per trial")


class SharedFsStorage(BaseStorage):
    """A directory that every machine sees under the same path."""

    type: Literal["shared_fs"]
    host_path: AbsolutePath = Field(description="the directory on the machines")
    storage_path: str | None = Field(
        None, description="where in it: a relative path, or an absolute one inside host_path"
    )
    propagation: Propagation = Field("rprivate", description="mount propagation in containers")
    container_path: str | None = Field(None, description="not used any more")
    checkpoint_path: str | None = Field(None, description="not used any more")
    tensorboard_path: str | None = Field(None, description="not used any more")


class DirectoryStorage(BaseStorage):
    """A directory that the user has made present wherever the trial runs."""

    type: Literal["directory"]
    container_path: AbsolutePath = Field(description="the directory, as the trial sees it")


class ObjectStorage(BaseStorage):
    """What those have where a file is an object."""

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
    """An S3 bucket, or what speaks its protocol."""

    type: Literal["s3"]
    bucket: Text = Field(description="name of the bucket")
    access_key: str | None = Field(None, description="key id; default: the machine's identity")
    secret_key: str | None = Field(None, description="secret of access_key")
    endpoint_url: str | None = Field(None, description="address of a server other than AWS")
    prefix: str | None = Field(None, description="begins the name of every object")


class GcsStorage(ObjectStorage):
    """A Google Cloud Storage bucket."""

    type: Literal["gcs"]
    bucket: Text = Field(description="name of the bucket")
    prefix: str | None = Field(None, description="begins the name of every object")


class AzureStorage(ObjectStorage):
    """An Azure Blob Storage container."""

    type: Literal["azure"]
    container: Text = Field(description="name of the container")
    connection_string: str | None = Field(None, description="address and key in one text")
    account_url: str | None = Field(None, description="address of the account")
    credential: str | None = Field(None, description="key for account_url")


class HdfsStorage(BaseStorage):
    """A Hadoop file system; read so that old experiments still load."""

    type: Literal["hdfs"]
    hdfs_url: Text = Field(description="address of the file system")
    hdfs_path: AbsolutePath = Field(description="directory in it")
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
