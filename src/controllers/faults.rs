//! What others know of fleets and people must mend: CAs of clients that vouch for nobody, issuers that do not sign.

use std::collections::BTreeMap;

use super::leader::{Leader, Work, now};
use crate::{
    api::{agent_fleet::AgentFleet, enrollment::EnrollmentMethod},
    catalog::{Settings, settings::FrozenCertificate},
    credentials::registrar::Findings,
    fleets::plan::{AdmissionFaults, Made},
    kubernetes::ObjectKey,
    revisions::Compiled,
};

impl Leader {
    /// Something of it has changed: it is said at once, whichever fleets it concerns.
    pub(super) fn faults_moved(&mut self) {
        let fleets: Vec<ObjectKey> = self.fleets.iter().map(|(key, _)| key.clone()).collect();
        for fleet in fleets {
            self.agenda.ask(Work::Fleet(fleet), now());
        }
    }

    /// What is to be said of this fleet.
    pub(super) fn admission_faults(&self, key: &ObjectKey, fleet: &AgentFleet, made: &Made) -> AdmissionFaults {
        let target = match made {
            Made::Revision(Compiled { settings, .. }) => settings.as_ref(),
            Made::Faulty(_) => None,
        };
        let mut settings = self.served.of(key).chain(target);
        let findings = self.findings.borrow();
        let issuer = settings
            .any(|settings: &Settings| settings.certificate == FrozenCertificate::Issued)
            .then(|| issuer_fault(key, &findings))
            .flatten();
        AdmissionFaults { client_ca: client_ca_fault(key, fleet, &self.context.unusable_cas.borrow()), issuer }
    }
}

/// Without the operator's CA nobody is given anything, whoever signs.
fn issuer_fault(fleet: &ObjectKey, findings: &Findings) -> Option<String> {
    findings.authority.as_ref().or_else(|| findings.fleets.get(fleet)).cloned()
}

/// The first of the fleet's Secrets that vouches for nobody.
fn client_ca_fault(key: &ObjectKey, fleet: &AgentFleet, unusable: &BTreeMap<ObjectKey, String>) -> Option<String> {
    let enrollment = &fleet.spec.enrollment;
    if !enrollment.methods().contains(&EnrollmentMethod::ClientCertificate) {
        return None;
    }
    let mut names = enrollment.client_cas.iter().map(|named| &named.secret_ref.name);
    names.find_map(|name| {
        let why = unusable.get(&ObjectKey::new(&*key.namespace, &**name))?;
        Some(format!("the Secret {name} of enrollment.clientCAs vouches for nobody: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_secrets_that_a_fleet_names_and_uses_are_told_of() {
        let unusable = |namespace: &str, name: &str| [(ObjectKey::new(namespace, name), "why".to_owned())].into();
        let fleet = |methods: &[&str]| {
            let cas = json!([{"secretRef": {"name": "corporate"}}, {"secretRef": {"name": "partner"}}]);
            let spec = json!({"selector": {}, "enrollment": {"methods": methods, "clientCAs": cas}});
            AgentFleet::new("edge", serde_json::from_value(spec).expect("a spec"))
        };
        let both = ["EnrollmentToken", "ClientCertificate"];
        for (case, methods, unusable, expected) in [
            ("one of two", &both[..], unusable("telemetry", "partner"), Some("the Secret partner of ")),
            ("another namespace's", &both[..], unusable("bank", "partner"), None),
            ("another fleet's", &both[..], unusable("telemetry", "other"), None),
            ("not used", &both[..1], unusable("telemetry", "partner"), None),
            ("all are usable", &both[..], BTreeMap::new(), None),
        ] {
            let told = client_ca_fault(&ObjectKey::new("telemetry", "edge"), &fleet(methods), &unusable);
            assert_eq!(told.is_some(), expected.is_some(), "{case}");
            assert!(told.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{case}");
        }
    }

    #[test]
    fn an_authority_that_cannot_sign_concerns_every_fleet() {
        let edge = ObjectKey::new("telemetry", "edge");
        let fleets = BTreeMap::from([(edge.clone(), "cert-manager is away".to_owned())]);
        let of_fleet = Findings { authority: None, fleets };
        assert_eq!(issuer_fault(&edge, &of_fleet).as_deref(), Some("cert-manager is away"));
        assert_eq!(issuer_fault(&ObjectKey::new("bank", "edge"), &of_fleet), None);
        let of_all = Findings { authority: Some("no CA".into()), ..of_fleet };
        assert_eq!(issuer_fault(&ObjectKey::new("bank", "edge"), &of_all).as_deref(), Some("no CA"));
    }
}
