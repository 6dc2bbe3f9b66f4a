//! cert-manager, by its `CertificateRequest` of `cert-manager.io/v1` in the namespace of the fleet.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::{
    Api, Client, ResourceExt as _,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

use super::{
    Issuers, USAGES,
    asked::{Asked, put},
    object_name, whole,
};
use crate::credentials::{
    request::CertificateRequest,
    stored::{AGENT_LABEL, AgentCertificate},
    writes::{WriteError, Writes},
};

/// What people are told where there is none.
pub(in crate::credentials) const ABSENT: &str =
    "cert-manager is not installed: the API server knows no CertificateRequest of cert-manager.io/v1";
/// What cert-manager says of a request that it is at work on; whatever else keeps one waiting is for people to mend.
const AT_WORK: [&str; 2] = ["Waiting on certificate issuance", "Created Order resource"];

/// Whether the API server knows what cert-manager is asked with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::credentials) enum Presence {
    /// It does.
    Installed,
    /// It does not.
    Absent,
}

/// Looks whether cert-manager is there.
pub(in crate::credentials) async fn look(writes: &Writes, client: &Client) -> Result<Presence, WriteError> {
    let served = writes.ask(client.list_api_group_resources("cert-manager.io/v1")).await?;
    let is_there = served.is_some_and(|list| list.resources.iter().any(|it| it.kind == "CertificateRequest"));
    Ok(if is_there { Presence::Installed } else { Presence::Absent })
}

/// Who is to sign.
#[derive(Clone, Copy)]
pub(super) struct IssuerReference<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) group: &'a str,
}

pub(super) async fn ask(
    issuers: &Issuers<'_>,
    certificate: &AgentCertificate,
    request: &CertificateRequest,
    issuer: IssuerReference<'_>,
    duration: Duration,
) -> Result<Asked, WriteError> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("cert-manager.io", "v1", "CertificateRequest"));
    let api: Api<DynamicObject> = Api::namespaced_with(issuers.client.clone(), &certificate.key.namespace, &kind);
    let object = object(&kind, certificate, request, issuer, duration);
    Ok(match put(issuers.writes, &api, &object).await? {
        None => Asked::Waits(Some(ABSENT.into())),
        Some(found) if found.data["spec"]["request"] != object.data["spec"]["request"] => Asked::Waits(Some(format!(
            "the CertificateRequest {} asks for something else; delete it",
            found.name_any()
        ))),
        Some(found) => read(&found),
    })
}

fn object(
    kind: &ApiResource,
    certificate: &AgentCertificate,
    request: &CertificateRequest,
    issuer: IssuerReference<'_>,
    duration: Duration,
) -> DynamicObject {
    let IssuerReference { name, kind: issuer_kind, group } = issuer;
    let signer = format!("{issuer_kind}.{group}/{name}");
    let mut object = DynamicObject::new(&object_name(certificate, &signer), kind).within(&certificate.key.namespace);
    object.labels_mut().insert(AGENT_LABEL.into(), certificate.agent.to_string());
    // It goes with its Secret.
    object.metadata.owner_references = serde_json::from_value(json!([{
        "apiVersion": "v1", "kind": "Secret", "name": certificate.key.name, "uid": certificate.object_uid,
    }]))
    .ok();
    object.data = json!({"spec": {
        "request": STANDARD.encode(request.pem()),
        "issuerRef": {"name": name, "kind": issuer_kind, "group": group},
        "duration": format!("{}s", whole(duration)),
        "isCA": false,
        "usages": USAGES,
    }});
    object
}

fn read(found: &DynamicObject) -> Asked {
    let status = &found.data["status"];
    let text = |value: &Value| {
        let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    let name = found.name_any();
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let told = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind);
    let message = |condition: &Value| condition["message"].as_str().unwrap_or_default().to_owned();
    let is_true = |condition: &&Value| condition["status"] == "True";
    if let Some(denied) = told("Denied").filter(is_true) {
        return Asked::Refused(format!("the CertificateRequest {name} was denied: {}", message(denied)));
    }
    if let Some(invalid) = told("InvalidRequest").filter(is_true) {
        return Asked::Refused(format!("the CertificateRequest {name} is invalid: {}", message(invalid)));
    }
    match told("Ready") {
        Some(ready) if ready["status"] == "True" => {
            Asked::Signed { chain: text(&status["certificate"]), ca: text(&status["ca"]) }
        }
        Some(ready) if ready["reason"] == "Failed" => {
            Asked::Refused(format!("the CertificateRequest {name} has failed: {}", message(ready)))
        }
        // Without the name of the object: it is the same for all that wait for an issuer which is not there.
        Some(ready) => {
            let why = message(ready);
            let is_at_work = why.is_empty() || AT_WORK.iter().any(|text| why.starts_with(text));
            Asked::Waits((!is_at_work).then(|| format!("cert-manager waits with CertificateRequests: {why}")))
        }
        None => Asked::Waits(None),
    }
}
