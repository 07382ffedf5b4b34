"""The SDK's root object: a login at a service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from determined.common.api import Session, authentication, certs, get_default_master_url
from determined.common.api.transport import AnyTransport, HttpTransport
from determined.experimental import _checkpoint, _deletion
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._cluster import ClusterVerbs
from determined.experimental._experiment_verbs import ExperimentVerbs
from determined.experimental._metrics import TRAINING, VALIDATION, TrialMetrics, iter_metrics
from determined.experimental._model import ModelVerbs
from determined.experimental._retraining import RetrainingVerbs
from determined.experimental._task import TaskVerbs
from determined.experimental._template import TemplateVerbs
from determined.experimental._trial import Trial
from determined.experimental._user import UserVerbs
from determined.experimental._workspace import WorkspaceVerbs


class Determined(
    ExperimentVerbs,
    ModelVerbs,
    UserVerbs,
    TaskVerbs,
    ClusterVerbs,
    RetrainingVerbs,
    TemplateVerbs,
    WorkspaceVerbs,
):
    """A login at the service. The functions of ``client`` use one such login for the whole process.

    ``master`` defaults to ``$DET_MASTER``, then the local cluster, then ``http://localhost:8080``. The
    rules for credentials are in :mod:`determined.common.api.authentication`. ``cert_path`` is a PEM
    file to trust, ``cert_name`` the name expected in the server's certificate; ``noverify`` trusts
    any certificate. ``transport`` replaces the network in tests.

    Raises:
        MasterNotFoundException, UnauthenticatedException.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
        *,
        transport: AnyTransport | None = None,
    ) -> None:
        if transport is None and (cert_path or cert_name or noverify):
            address = master or get_default_master_url()
            cert = certs.default_load(address, cert_path, cert_name, noverify)
            transport = HttpTransport(address, cert)
        self._session = authentication.connect(master, user, password, transport=transport)

    @classmethod
    def _with_session(cls, session: Session) -> Determined:
        client = cls.__new__(cls)
        client._session = session
        return client

    def get_trial(self, trial_id: int) -> Trial:
        """Raises NotFoundException."""
        trial = Trial(trial_id, self._session)
        trial.reload()
        return trial

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Raises NotFoundException."""
        checkpoint = Checkpoint(self._session, uuid)
        checkpoint.reload()
        return checkpoint

    def delete_checkpoints(self, uuids: Sequence[str]) -> int | None:
        """Deletes several checkpoints at once; see :meth:`Checkpoint.delete`."""
        return _checkpoint.delete(self._session, uuids)

    def remove_checkpoint_files(self, uuids: Sequence[str], globs: Sequence[str]) -> int | None:
        """Deletes files of several checkpoints; see :meth:`Checkpoint.remove_files`."""
        return _checkpoint.remove_files(self._session, uuids, globs)

    def wait_for_deletion(
        self, deletion_id: int | None, timeout_s: float = _deletion.DELETION_TIMEOUT_S
    ) -> bool:
        """Waits until a deletion is done; False if it takes longer than ``timeout_s``. None is done already.

        Raises DeleteFailedException with the reason.
        """
        return _deletion.wait_for_deletion(self._session, deletion_id, timeout_s)

    # Metrics.

    def iter_trials_metrics(self, trial_ids: list[int], group: str) -> Iterator[TrialMetrics]:
        """Every report of ``group`` by these trials."""
        return iter_metrics(self._session, trial_ids, group)

    stream_trials_metrics = iter_trials_metrics

    def stream_trials_training_metrics(self, trial_ids: list[int]) -> Iterator[TrialMetrics]:
        """Every training report by these trials."""
        return iter_metrics(self._session, trial_ids, TRAINING)

    def stream_trials_validation_metrics(self, trial_ids: list[int]) -> Iterator[TrialMetrics]:
        """Every validation report by these trials."""
        return iter_metrics(self._session, trial_ids, VALIDATION)
