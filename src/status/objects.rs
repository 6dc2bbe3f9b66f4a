//! The requests about Agent objects, each with a time limit, and their failures told apart by what follows from them.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::metrics::{Metrics, Operation, Outcome};
use crate::{
    api::{FIELD_MANAGER, agent::Agent},
    kubernetes::describe,
};

/// A healthy API server answers in milliseconds; one that does not within this time may still have done what was asked.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// An Agent as the API server returned it.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) namespace: String,
    pub(super) object_uid: String,
    pub(super) resource_version: String,
    pub(super) generation: i64,
    pub(super) labels: BTreeMap<String, String>,
    /// As the server returned it: what it filled in counts as acknowledged.
    pub(super) status: Value,
}

/// Why a request did not end as it should. The texts quote no object.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Somebody else wrote the object meanwhile.
    #[error("the object has changed meanwhile")]
    Conflict,
    /// Somebody else created it meanwhile.
    #[error("the object exists already")]
    AlreadyExists,
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// The server has too much to do; nothing was written.
    #[error("the API server has too much to do")]
    Throttled { retry_after: Option<Duration> },
    /// The server is away or not ready. Whether anything was written is not known.
    #[error("the API server is away: {0}")]
    Unreachable(String),
    /// The server did not answer in time. Whether anything was written is not known.
    #[error("the API server did not answer within {} s", TIME_LIMIT.as_secs())]
    NoAnswer,
    /// An answer that does not tell whether anything was written.
    #[error("it is not known whether it was written: {0}")]
    Uncertain(String),
    /// The server will not have it; nothing was written.
    #[error("the API server refuses it: {0}")]
    Refused(String),
}

impl Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Conflict => Outcome::Conflict,
            Self::AlreadyExists => Outcome::AlreadyExists,
            Self::NotFound => Outcome::NotFound,
            Self::Throttled { .. } => Outcome::Throttled,
            Self::Unreachable(_) => Outcome::Unreachable,
            Self::NoAnswer => Outcome::NoAnswer,
            Self::Uncertain(_) => Outcome::Uncertain,
            Self::Refused(_) => Outcome::Refused,
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        let text = describe(&error);
        let kube::Error::Api(status) = error else {
            return match error {
                kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => Self::Uncertain(text),
                kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => Self::Refused(text),
                // What remains are failures of the connection or of the credentials.
                _ => Self::Unreachable(text),
            };
        };
        let retry_after = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        match status.code {
            _ if status.is_already_exists() => Self::AlreadyExists,
            404 => Self::NotFound,
            409 => Self::Conflict,
            429 => Self::Throttled { retry_after: (retry_after > 0).then(|| Duration::from_secs(retry_after.into())) },
            503 => Self::Unreachable(text),
            500.. => Self::Uncertain(text),
            _ => Self::Refused(text),
        }
    }
}

/// The Agent objects of the cluster.
#[derive(Clone)]
pub(super) struct Objects {
    client: Client,
    resource: ApiResource,
    metrics: Metrics,
}

impl Objects {
    /// The client is one without retries of its own.
    pub(super) fn new(client: Client, metrics: Metrics) -> Self {
        Self { client, resource: ApiResource::erase::<Agent>(&()), metrics }
    }

    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Stored, Failure> {
        let api = self.api(namespace);
        self.limited(Operation::Get, api.get(name)).await.map(Stored::from)
    }

    pub(super) async fn create(
        &self,
        namespace: &str,
        name: &str,
        labels: &BTreeMap<&'static str, Option<String>>,
    ) -> Result<Stored, Failure> {
        let mut agent = DynamicObject::new(name, &self.resource).within(namespace);
        let labels = labels.iter().filter_map(|(label, value)| Some(((*label).to_owned(), value.clone()?)));
        agent.metadata.labels = Some(labels.collect());
        agent.data = json!({"spec": {}});
        let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        let api = self.api(namespace);
        match self.limited(Operation::Create, api.create(&parameters, &agent)).await {
            Err(Failure::NotFound) => Err(Failure::Refused(format!("there is no namespace {namespace}"))),
            other => other.map(Stored::from),
        }
    }

    /// Patches the status of the object of this resourceVersion.
    pub(super) async fn patch_status(
        &self,
        namespace: &str,
        name: &str,
        resource_version: &str,
        patch: &Value,
    ) -> Result<Stored, Failure> {
        let body = json!({"metadata": {"resourceVersion": resource_version}, "status": patch});
        let api = self.api(namespace);
        self.limited(Operation::Status, api.patch_status(name, &parameters(), &Patch::Merge(&body)))
            .await
            .map(Stored::from)
    }

    /// Patches the labels of the object of this resourceVersion; answers with the next one.
    pub(super) async fn patch_labels(
        &self,
        namespace: &str,
        name: &str,
        resource_version: &str,
        patch: &(impl Debug + Serialize),
    ) -> Result<String, Failure> {
        let body = json!({"metadata": {"resourceVersion": resource_version, "labels": patch}});
        let api = self.api(namespace);
        self.limited(Operation::Labels, api.patch_metadata(name, &parameters(), &Patch::Merge(&body)))
            .await
            .map(|object| object.metadata.resource_version.unwrap_or_default())
    }

    /// Deletes this very object, and no other that took its place.
    pub(super) async fn delete(&self, namespace: &str, name: &str, object_uid: &str) -> Result<(), Failure> {
        let preconditions = Preconditions { uid: Some(object_uid.into()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api = self.api(namespace);
        self.limited(Operation::Delete, api.delete(name, &parameters)).await.map(|_| ())
    }

    fn api(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &self.resource)
    }

    async fn limited<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        let result = match tokio::time::timeout(TIME_LIMIT, request).await {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::NoAnswer),
        };
        self.metrics.requested(operation, result.as_ref().map_or_else(Failure::outcome, |_| Outcome::Done));
        result
    }
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

impl From<DynamicObject> for Stored {
    fn from(mut object: DynamicObject) -> Self {
        Self {
            namespace: object.metadata.namespace.unwrap_or_default(),
            object_uid: object.metadata.uid.unwrap_or_default(),
            resource_version: object.metadata.resource_version.unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            labels: object.metadata.labels.unwrap_or_default(),
            status: object.data.get_mut("status").map_or_else(|| json!({}), Value::take),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn failures_are_told_apart_by_what_follows_from_them() {
        for (code, reason, expected) in [
            (409, "Conflict", Outcome::Conflict),
            (409, "AlreadyExists", Outcome::AlreadyExists),
            (404, "NotFound", Outcome::NotFound),
            (429, "TooManyRequests", Outcome::Throttled),
            (503, "ServiceUnavailable", Outcome::Unreachable),
            (500, "InternalError", Outcome::Uncertain),
            (504, "Timeout", Outcome::Uncertain),
            (403, "Forbidden", Outcome::Refused),
            (422, "Invalid", Outcome::Refused),
        ] {
            let status = Status::failure("canary", reason).with_code(code);
            let failure = Failure::from(kube::Error::Api(status.boxed()));
            assert_eq!(failure.outcome(), expected, "{code} {reason}");
            assert!(!failure.to_string().contains("canary"));
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(Failure::from(kube::Error::Service(Box::new(refused))).outcome(), Outcome::Unreachable);
    }
}
