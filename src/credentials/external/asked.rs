//! What an object that asks for a certificate says, whatever its kind.

use kube::{Api, Resource, ResourceExt as _, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    api::FIELD_MANAGER,
    credentials::writes::{WriteError, Writes},
};

/// What has become of a request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Asked {
    /// Somebody else must act; a finding, if it is a person who must mend something.
    Waits(Option<String>),
    /// There will be no certificate.
    Refused(String),
    /// It was signed: chain and CA in PEM, the latter empty if it was not told.
    Signed { chain: String, ca: String },
}

/// The object as it is there, or as it is put there now; `None` if the API server knows no such kind.
pub(super) async fn put<K>(writes: &Writes, api: &Api<K>, object: &K) -> Result<Option<K>, WriteError>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource + Serialize,
{
    let name = object.name_any();
    if let Some(found) = writes.ask(api.get_opt(&name)).await?.flatten() {
        return Ok(Some(found));
    }
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
    match writes.ask(api.create(&parameters, object)).await? {
        Some(created) => Ok(Some(created)),
        None => Ok(writes.ask(api.get_opt(&name)).await?.flatten()),
    }
}
