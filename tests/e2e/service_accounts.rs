//! Agents inside the cluster: what the tokens of ServiceAccounts open, as the API server vouches for them.

use std::{fs, path::PathBuf, time::Duration};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::harness::{
    Kind, Scenario,
    caller::{BOTH, Caller},
    scripted::{full_report, new_uid, uid_text},
    wait_for,
};

const SOON: Duration = Duration::from_secs(20);

/// A fleet of this name that takes ServiceAccounts: of its own namespace, and those that are named.
fn fleet(name: &str, named: &Value) -> Value {
    json!({
        "apiVersion": "opamp.dev/v1alpha1", "kind": "AgentFleet", "metadata": {"name": name},
        "spec": {
            "selector": {"matchAttributes": {"service.name": name}},
            "enrollment": {"methods": ["ServiceAccount"], "serviceAccounts": named},
        },
    })
}

struct Cluster {
    scenario: Scenario,
    shop: String,
}

impl Cluster {
    async fn begin() -> Self {
        let scenario = Scenario::begin("accounts").await;
        let shop = format!("{}-shop", scenario.namespace);
        scenario.cluster.kubectl(&["create", "namespace", &shop], "");
        for (namespace, account) in
            [(&scenario.namespace, "collector"), (&shop, "collector"), (&shop, "till"), (&scenario.system, "till")]
        {
            scenario.cluster.kubectl(&["-n", namespace, "create", "serviceaccount", account], "");
        }
        scenario
            .apply(&[fleet("home", &json!([])), fleet("guests", &json!([{"namespace": shop, "name": "collector"}]))]);
        Self { scenario, shop }
    }

    /// A token for one audience; the least that the API server grants is ten minutes.
    fn token(&self, (namespace, account): (&str, &str), audience: &str) -> String {
        let audience = format!("--audience={audience}");
        let token = ["-n", namespace, "create", "token", account, &audience, "--duration=10m"];
        self.scenario.cluster.kubectl(&token, "").trim().to_owned()
    }

    /// A token for the API server itself.
    fn token_for_the_cluster(&self) -> String {
        let token = ["-n", &self.scenario.namespace, "create", "token", "collector"];
        self.scenario.cluster.kubectl(&token, "").trim().to_owned()
    }

    /// The same token with other claims, signed by nobody, and by the key of the cluster if it is at hand.
    fn with_claims(&self, token: &str, change: impl FnOnce(&mut Value)) -> (String, Option<String>) {
        let parts: Vec<_> = token.split('.').collect();
        let claims = BASE64_URL_SAFE_NO_PAD.decode(parts[1]).expect("a JWT");
        let mut claims: Value = serde_json::from_slice(&claims).expect("claims are JSON");
        change(&mut claims);
        let signed = format!("{}.{}", parts[0], BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
        let genuine = self.signing_key().map(|key| {
            let signature = self.sign(&key, &signed);
            format!("{signed}.{signature}")
        });
        (format!("{signed}.{}", parts[2]), genuine)
    }

    /// The key by which a local control plane signs the tokens of ServiceAccounts (RS256).
    fn signing_key(&self) -> Option<PathBuf> {
        let folder = self.scenario.cluster.kubeconfig.parent()?;
        ["pki/sa.key", "sa.key"].iter().map(|name| folder.join(name)).find(|path| path.exists())
    }

    fn sign(&self, key: &std::path::Path, signed: &str) -> String {
        let (input, output) = (self.scenario.folder.join("signed"), self.scenario.folder.join("signature"));
        fs::write(&input, signed).expect("a file");
        let mut openssl = std::process::Command::new("openssl");
        openssl.args(["dgst", "-sha256", "-sign"]).arg(key).arg("-out").arg(&output).arg(&input);
        crate::harness::system::run(openssl, "").expect("openssl signs");
        BASE64_URL_SAFE_NO_PAD.encode(fs::read(output).expect("the signature"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Not waited for: a namespace takes seconds to go.
        let _ = self.scenario.cluster.try_kubectl(&["delete", "namespace", "--wait=false", &self.shop], "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_joins_where_it_is_meant_to_and_nowhere_else() {
    let cluster = Cluster::begin().await;
    let scenario = &cluster.scenario;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    let ca = scenario.ca().await;
    let (home, shop) = (scenario.namespace.as_str(), cluster.shop.as_str());
    let for_home = format!("opamp.dev/{home}");
    let good = cluster.token((home, "collector"), "opamp.dev");
    wait_for("the first account joins", SOON, async || {
        let word =
            Caller::new(operator.listen, &ca).bearer(&good).says(&full_report(&new_uid(), "home"), BOTH[1]).await;
        if word.word() == "served" { Ok(()) } else { Err(word.word()) }
    })
    .await;

    let now = jiff::Timestamp::now().as_second();
    let (forged_end, expired) = cluster.with_claims(&good, |claims| {
        claims["iat"] = json!(now - 7_200);
        claims["nbf"] = json!(now - 7_200);
        claims["exp"] = json!(now - 60);
    });
    let (forged_audience, genuine_audience) = cluster.with_claims(&good, |claims| claims["aud"] = json!(["vault"]));
    let (later, _) = cluster.with_claims(&good, |claims| claims["exp"] = json!(now + 1_000_000));
    let (other_account, _) = cluster.with_claims(&good, |claims| {
        claims["sub"] = json!(format!("system:serviceaccount:{}:opamp-operator", scenario.system));
    });
    let (_, resigned) = cluster.with_claims(&good, |_| {});
    let mut cases = vec![
        ("of its own namespace", good.clone(), "home", "served"),
        (
            "of another namespace, named, for this one",
            cluster.token((shop, "collector"), &for_home),
            "guests",
            "served",
        ),
        ("of another namespace, not named", cluster.token((shop, "till"), &for_home), "guests", "401"),
        ("of another namespace, for its own", cluster.token((shop, "collector"), "opamp.dev"), "guests", "401"),
        ("of the operator's namespace", cluster.token((&scenario.system, "till"), "opamp.dev"), "home", "401"),
        ("for somebody else", cluster.token((home, "collector"), "vault"), "home", "401"),
        ("for another namespace", cluster.token((home, "collector"), &format!("opamp.dev/{shop}")), "home", "401"),
        ("with half the audience", cluster.token((home, "collector"), "opamp"), "home", "401"),
        ("for the API server", cluster.token_for_the_cluster(), "home", "401"),
        ("of the operator itself", cluster.token((&scenario.system, "opamp-operator"), "opamp.dev"), "home", "401"),
        ("with a longer life, not signed anew", later, "home", "401"),
        ("of another account, not signed anew", other_account, "home", "401"),
        ("expired, not signed anew", forged_end, "home", "401"),
        ("with another audience, not signed anew", forged_audience, "home", "401"),
    ];
    if scenario.cluster.is_local() {
        let signed = "the key of the local control plane";
        cases.push(("signed anew", resigned.expect(signed), "home", "served"));
        cases.push(("expired, and signed by the cluster", expired.expect(signed), "home", "401"));
        cases.push(("for somebody else, and signed by the cluster", genuine_audience.expect(signed), "home", "401"));
    }
    for (case, token, service, expected) in cases {
        for transport in BOTH {
            let caller = Caller::new(operator.listen, &ca).bearer(&token);
            let word = caller.says(&full_report(&new_uid(), service), transport).await.word();
            assert_eq!(word, expected, "{case}, {transport:?}");
            println!("{case}, {transport:?}: {word}");
        }
        assert!(!operator.log().contains(&token), "{case}: no token is in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_decides_the_namespace_whatever_the_agent_says() {
    let cluster = Cluster::begin().await;
    let scenario = &cluster.scenario;
    let operator = scenario.tls_replica("replica-0", &[]).await;
    let ca = scenario.ca().await;
    let guest = cluster.token((&cluster.shop, "collector"), &format!("opamp.dev/{}", scenario.namespace));
    let uid = new_uid();
    wait_for("the guest is known", SOON, async || {
        let word = Caller::new(operator.listen, &ca).bearer(&guest).says(&full_report(&uid, "home"), BOTH[0]).await;
        if word.word() == "served" { Ok(()) } else { Err(word.word()) }
    })
    .await;
    let liar = uid_text(&uid);
    scenario.fleet_counts("home", &[("matched", 0)], SOON).await;
    let shown = scenario.get(Kind::Agent, &liar).await.unwrap_or_default();
    assert_ne!(shown["status"]["fleet"], "home", "a guest says that it is of home, and is not");

    let member = new_uid();
    let caller = Caller::new(operator.listen, &ca).bearer(&guest);
    assert_eq!(caller.says(&full_report(&member, "guests"), BOTH[0]).await.word(), "served");
    wait_for("it is shown with who it is", SOON, async || {
        let shown = scenario.get(Kind::Agent, &uid_text(&member)).await.unwrap_or_default();
        let identity = &shown["status"]["connection"]["identity"];
        let expected = format!("serviceaccount:{}/collector", cluster.shop);
        if *identity == expected && shown["status"]["fleet"] == "guests" {
            Ok(())
        } else {
            Err(shown["status"].to_string())
        }
    })
    .await;
}
