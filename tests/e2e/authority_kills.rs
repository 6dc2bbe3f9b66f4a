//! The operator is killed around each of its writes while people ask for a new CA, and an agent has a certificate of the
//! former one.

use std::{path::Path, process::Command};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    ResourceExt as _,
    api::{Api, Patch, PatchParams},
};
use serde_json::json;

use super::{
    enrollment::apply_fleet,
    kills::{AT_LAST, WORLDS, World},
};
use crate::harness::{
    Scenario,
    api_proxy::Counted,
    swarm::{Agents, Swarm},
    wait_for,
};

const AUTHORITY: &str = "opamp-ca";
/// So long nothing is written once everything is as it should be: longer than what is put off to be written together.
const QUIET: usize = 20;

fn secrets(scenario: &Scenario) -> Api<Secret> {
    Api::namespaced(scenario.client.clone(), &scenario.system)
}

/// A value of the Secret of the CA, as text.
fn value(secret: &Secret, key: &str) -> String {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    data.map(|value| String::from_utf8_lossy(&value.0).into_owned()).unwrap_or_default()
}

async fn authority(scenario: &Scenario) -> String {
    value(&secrets(scenario).get(AUTHORITY).await.expect("the CA's Secret"), "tls.crt")
}

async fn ask_for_another(scenario: &Scenario) {
    let wish = json!({"metadata": {"annotations": {"opamp.dev/rotate": "once"}}});
    let patched = secrets(scenario).patch(AUTHORITY, &PatchParams::default(), &Patch::Merge(wish)).await;
    patched.expect("the wish is written");
}

/// Waits until nothing is written any more.
async fn quiet(world: &World) {
    let (mut written, mut looks) = (0, 0);
    wait_for("nothing is written any more", AT_LAST, async || {
        let now = world.proxy.writes().len();
        looks = if now == written { looks + 1 } else { 0 };
        written = now;
        if looks >= QUIET { Ok(()) } else { Err(format!("{now} writes")) }
    })
    .await;
}

/// Whether this CA has signed this certificate.
fn is_signed_by(folder: &Path, authority: &str, certificate: &str) -> bool {
    let files = [folder.join("signer.crt"), folder.join("signed.crt")];
    for (file, text) in files.iter().zip([authority, certificate]) {
        std::fs::write(file, text).expect("a file");
    }
    // A partial chain: what is asked is whether this very CA has signed, root or not.
    let verified = Command::new("openssl").args(["verify", "-partial_chain", "-CAfile"]).args(files).output();
    verified.expect("openssl runs").status.success()
}

/// Waits until there is one other CA, and everybody knows both.
async fn rotated(world: &World, former: &str) -> String {
    let scenario = &world.scenario;
    let config_maps: Api<ConfigMap> = Api::namespaced(scenario.client.clone(), &scenario.system);
    wait_for("there is another CA, and both are trusted", AT_LAST, async || {
        let secret = secrets(scenario).get(AUTHORITY).await.map_err(|error| error.to_string())?;
        let published = config_maps.get(AUTHORITY).await.map_err(|error| error.to_string())?;
        let active = value(&secret, "tls.crt");
        let granted = secret.annotations().get("opamp.dev/rotated").cloned().unwrap_or_default();
        for bundle in
            [value(&secret, "ca.crt"), published.data.unwrap_or_default().remove("ca.crt").unwrap_or_default()]
        {
            let count = bundle.matches("BEGIN CERTIFICATE").count();
            let holds_both = bundle.contains(active.trim()) && bundle.contains(former.trim());
            if active == former || granted != "once" || !holds_both || count != 2 {
                return Err(format!("granted {granted:?}, {count} CAs"));
            }
        }
        Ok(active)
    })
    .await
}

/// Has people ask for a new CA once an agent has a certificate, and returns what was written for that.
async fn rotate(world: &World, endpoint: &str) -> Vec<String> {
    let scenario = &world.scenario;
    apply_fleet(scenario, endpoint, "Automatic", &json!({"duration": "2m", "renewBefore": "1m"}));
    let swarm = world.enrol(endpoint, Agents::asking_for_certificates).await;
    let certified = world.certified(&swarm).await;
    let former = authority(scenario).await;
    quiet(world).await;

    world.count(Counted::Everything);
    ask_for_another(scenario).await;
    let active = rotated(world, &former).await;
    quiet(world).await;
    let writes = world.proxy.writes();
    swarm.renew_certificates(&[0]).await;
    world.renewed_in_time(&swarm, &certified).await;
    assert_converged(world, &swarm, &active).await;
    writes
}

async fn assert_converged(world: &World, swarm: &Swarm, active: &str) {
    let scenario = &world.scenario;
    assert_eq!(authority(scenario).await, active, "the CA was made anew once");
    let identity = swarm.identity(0).await;
    assert!(is_signed_by(&scenario.folder, active, &identity.certificate), "the next certificate is the new CA's");
    world.assert_one_certificate(swarm).await;
    let server = secrets(scenario).get("opamp-server-tls").await.expect("the server's certificate");
    let list = scenario
        .cluster
        .kubectl(&["-n", &scenario.system, "get", "configmap", "opamp-crl", "-o", r"jsonpath={.data.ca\.crl}"], "");
    assert!(list.contains("BEGIN X509 CRL"), "the list of revoked certificates is there");
    assert!(value(&server, "tls.crt").contains("BEGIN CERTIFICATE"), "the server has one");
    println!("longest time without a connection: {:.1} s", swarm.summary().await.longest_gap);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_of_a_rotation_there_is_one_new_authority_and_no_lost_agent() {
    let undisturbed = World::new(Scenario::begin("rotation").await, None).await;
    let writes = undisturbed.live(rotate).await;
    assert!(writes.len() >= 2, "a Secret and a ConfigMap: {writes:#?}");
    println!("{} writes of a rotation: {writes:#?}", writes.len());
    let kills = stream::iter(1..=writes.len()).map(async |number| {
        let scenario = undisturbed.scenario.beside(&format!("rotation-{number}")).await;
        let world = World::new(scenario, Some(number)).await;
        world.live(rotate).await;
        world.proxy.kills()
    });
    let kills: Vec<usize> = kills.buffer_unordered(WORLDS).collect().await;
    println!("kills around each write of a rotation: {kills:?}");
    assert!(kills.iter().all(|&kills| kills > 0), "each write was met: {kills:?}");
}
