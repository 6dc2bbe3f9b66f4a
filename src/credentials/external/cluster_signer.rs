//! Signers of the cluster, by `CertificateSigningRequest` of `certificates.k8s.io/v1`.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, ResourceExt as _};

use super::{
    Issuers, USAGES,
    asked::{Asked, put},
    object_name, whole,
};
use crate::credentials::{
    request::CertificateRequest,
    stored::{AGENT_LABEL, AgentCertificate},
    writes::WriteError,
};

/// The name of the signer that is asked: whoever serves and approves it decides about agents.
pub(super) const SIGNER: &str = "opamp.dev/agent";
/// The API server takes no shorter wish.
const SHORTEST: Duration = Duration::from_secs(600);

pub(super) async fn ask(
    issuers: &Issuers<'_>,
    certificate: &AgentCertificate,
    request: &CertificateRequest,
    duration: Duration,
) -> Result<Asked, WriteError> {
    let api: Api<CertificateSigningRequest> = Api::all(issuers.client.clone());
    let object = object(certificate, request, duration);
    Ok(match put(issuers.writes, &api, &object).await? {
        None => Asked::Waits(Some("the API server does not serve certificates.k8s.io/v1".into())),
        Some(found) if !is_same(&found, &object) => {
            let name = found.name_any();
            Asked::Waits(Some(format!("the CertificateSigningRequest {name} asks for something else; delete it")))
        }
        Some(found) => read(&found),
    })
}

fn object(
    certificate: &AgentCertificate,
    request: &CertificateRequest,
    duration: Duration,
) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(object_name(certificate, SIGNER)),
            labels: Some(BTreeMap::from([(AGENT_LABEL.to_owned(), certificate.agent.to_string())])),
            annotations: Some(BTreeMap::from([
                ("opamp.dev/namespace".to_owned(), certificate.key.namespace.clone()),
                ("opamp.dev/fleet".to_owned(), certificate.fleet.clone()),
            ])),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.pem().to_vec()),
            signer_name: SIGNER.into(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: Some(i32::try_from(whole(duration.max(SHORTEST))).unwrap_or(i32::MAX)),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

/// Whether it is what we ask: others may create such objects under any name.
fn is_same(found: &CertificateSigningRequest, asked: &CertificateSigningRequest) -> bool {
    found.spec.request == asked.spec.request && found.spec.signer_name == asked.spec.signer_name
}

fn read(found: &CertificateSigningRequest) -> Asked {
    let Some(status) = &found.status else { return Asked::Waits(None) };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if let Some(end) = conditions.iter().find(|it| ["Denied", "Failed"].contains(&it.type_.as_str())) {
        let message = end.message.as_deref().unwrap_or_default();
        let (name, what) = (found.name_any(), if end.type_ == "Denied" { "was denied" } else { "has failed" });
        return Asked::Refused(format!("the CertificateSigningRequest {name} {what}: {message}"));
    }
    match status.certificate.as_ref().and_then(|certificate| String::from_utf8(certificate.0.clone()).ok()) {
        Some(chain) if !chain.is_empty() => Asked::Signed { chain, ca: String::new() },
        Some(_) | None => Asked::Waits(None),
    }
}
