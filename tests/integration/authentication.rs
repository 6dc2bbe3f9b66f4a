//! Who is let in, as the real API server has it: its selectors, its watches and its word on tokens.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use kube::{Client, Config, config::KubeConfigOptions, config::Kubeconfig};
use opamp_operator::{
    api::agent_fleet::AgentFleet,
    authentication::{Authenticator, Metrics, Surroundings},
    catalog::{CatalogHandle, FleetEntry, Policy, fleet::Offering},
    credentials::{certificates::Certificates, trust::Trust},
    events::Publisher,
    kubernetes::{Scope, WatchClient, client_without_retry},
    opamp::identity::Principal,
    server::{self, Peer, Protection, Refusal},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::ControlPlane;

/// A certificate authority of no importance.
fn authority() -> (String, rcgen::Issuer<'static, rcgen::KeyPair>) {
    let (key, mut parameters) = (rcgen::KeyPair::generate().unwrap(), rcgen::CertificateParams::default());
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = parameters.self_signed(&key).unwrap().pem();
    (pem, rcgen::Issuer::new(parameters, key))
}

fn fleet(namespace: &str, enrollment: &serde_json::Value) -> Arc<FleetEntry> {
    let spec = json!({"selector": {}, "enrollment": enrollment});
    let mut fleet = AgentFleet::new("edge", serde_json::from_value(spec).unwrap());
    (fleet.metadata.namespace, fleet.metadata.uid) = (Some(namespace.into()), Some("uid".into()));
    Arc::new(FleetEntry::new(&fleet, Offering::NoRevision).unwrap())
}

async fn config(cluster: &ControlPlane) -> Config {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default(); // each test tries, the first succeeds
    let kubeconfig = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()
}

async fn authenticator(config: &Config, fleets: Vec<Arc<FleetEntry>>, stop: &CancellationToken) -> Arc<Authenticator> {
    let client: Client = client_without_retry(config).unwrap();
    let surroundings = Surroundings {
        client: client.clone(),
        catalog: CatalogHandle::fixed(fleets, Policy::default()),
        trust: Trust::new(),
        certificates: Certificates::new(&Scope::All),
        scope: Scope::All,
    };
    let (authenticator, feed) = Authenticator::new(surroundings, Metrics::default());
    let publisher = Publisher::new(client, "replica");
    tokio::spawn(feed.run(WatchClient::new(config).unwrap(), publisher, stop.clone()));
    authenticator.synced().wait_for(|synced| *synced).await.unwrap();
    authenticator
}

/// Somebody from an address of its own.
async fn enter(
    authenticator: &Authenticator,
    authorization: Option<&str>,
    certificate: Option<rustls::pki_types::CertificateDer<'static>>,
) -> Result<Arc<Principal>, Refusal> {
    let mut headers = HeaderMap::new();
    if let Some(authorization) = authorization {
        headers.insert(AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
    }
    let peer = Peer {
        address: ([192, 0, 2, rand::random()], 4711).into(),
        protection: Protection::Tls,
        certificates: certificate.map(|certificate| Arc::from([certificate])),
    };
    authenticator.authenticate(&headers, &peer, server::now()).await
}

#[tokio::test]
async fn secrets_admit_and_no_longer_within_five_seconds() {
    let cluster = ControlPlane::shared();
    let config = config(&cluster).await;
    let (pem, issuer) = authority();
    let namespace = "authentication-secrets";
    let secret = |name: &str, kind: &str, labels: serde_json::Value, data: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "Secret", "type": kind, "stringData": data,
            "metadata": {"name": name, "namespace": namespace, "labels": labels}})
        .to_string()
    };
    cluster.kubectl(
        &["apply", "-f", "-"],
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}).to_string(),
    );
    let (bound, basic) = (json!({"opamp.dev/fleet": "edge"}), "kubernetes.io/basic-auth");
    for object in [
        secret("token", "opamp.dev/enrollment-token", bound.clone(), json!({"token": "token-of-the-edge-fleet"})),
        secret("gate", basic, bound, json!({"username": "gate", "password": "sesame"})),
        secret("registry", basic, json!({}), json!({"username": "puller", "password": "sesame"})),
        secret("corporate", "Opaque", json!({}), json!({"ca.crt": pem})),
    ] {
        cluster.kubectl(&["apply", "-f", "-"], &object);
    }
    let enrollment = json!({"methods": ["ClientCertificate", "EnrollmentToken", "Basic"],
        "clientCAs": [{"secretRef": {"name": "corporate"}}]});
    let stop = CancellationToken::new();
    let authenticator = authenticator(&config, vec![fleet(namespace, &enrollment)], &stop).await;
    let mut leaf = rcgen::CertificateParams::default();
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = leaf.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap().der().clone();
    let (token, gate) = (Some("Bearer token-of-the-edge-fleet"), Some("Basic Z2F0ZTpzZXNhbWU="));
    let puller = Some("Basic cHVsbGVyOnNlc2FtZQ==");
    assert!(enter(&authenticator, puller, None).await.is_err(), "a password for something else");
    for (name, authorization, certificate) in
        [("token", token, None), ("gate", gate, None), ("corporate", None, Some(certificate))]
    {
        let principal = enter(&authenticator, authorization, certificate.clone()).await.unwrap();
        let mut changed = authenticator.changed();
        cluster.kubectl(&["delete", "secret", "-n", namespace, name], "");
        tokio::time::timeout(Duration::from_secs(5), changed.changed()).await.expect(name).unwrap();
        assert!(!authenticator.is_valid(&principal, jiff::Timestamp::now()), "{name}");
        assert!(enter(&authenticator, authorization, certificate).await.is_err(), "{name}");
    }
    stop.cancel();
}

#[tokio::test]
async fn the_token_of_a_service_account_admits_with_the_right_audience_only() {
    let cluster = ControlPlane::shared();
    let config = config(&cluster).await;
    let (home, foreign) = ("authentication-home", "authentication-shop");
    for namespace in [home, foreign] {
        cluster.kubectl(
            &["apply", "-f", "-"],
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}).to_string(),
        );
        cluster.kubectl(&["create", "serviceaccount", "collector", "-n", namespace], "");
    }
    let token = |namespace: &str, audience: &str| {
        let audience = format!("--audience={audience}");
        let token =
            cluster.kubectl(&["create", "token", "collector", "-n", namespace, &audience, "--duration=10m"], "");
        format!("Bearer {}", token.trim())
    };
    let enrollment = json!({"serviceAccounts": [{"namespace": foreign, "name": "collector"}]});
    let stop = CancellationToken::new();
    let authenticator = authenticator(&config, vec![fleet(home, &enrollment)], &stop).await;
    let for_home = format!("opamp.dev/{home}");
    let good = token(home, "opamp.dev");
    let (payload, forged) =
        good.rsplit_once('.').map(|(signed, _)| (signed, format!("{signed}.c2lnbmF0dXJl"))).unwrap();
    for (case, authorization, expected) in [
        ("of the namespace", good.clone(), Some(format!("serviceaccount:{home}/collector"))),
        ("of another, for this one", token(foreign, &for_home), Some(format!("serviceaccount:{foreign}/collector"))),
        ("of another, for its own", token(foreign, "opamp.dev"), None),
        ("for somebody else", token(home, "vault"), None),
        ("with another signature", forged, None),
        ("without signature", format!("{payload}."), None),
    ] {
        let found = enter(&authenticator, Some(&authorization), None).await;
        let identity = found.as_ref().ok().map(|principal| principal.identity.to_string());
        assert_eq!(identity, expected, "{case}: {found:?}");
        assert!(found.is_err() || found.is_ok_and(|principal| principal.expires.is_some()), "{case}");
    }
    stop.cancel();
}
