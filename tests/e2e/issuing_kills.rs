//! The operator is killed at each of its writes, from the first CA to a certificate in use.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};

use super::enrollment::{TOKEN, apply_fleet, renewed};
use crate::harness::{
    Kind, Operator, Reached, Scenario,
    api_proxy::ApiProxy,
    swarm::{Swarm, agents},
    wait_for,
};

/// Two kills cost two starts, an agent backs off meanwhile, and other worlds use the machine as well.
pub(super) const AT_LAST: Duration = Duration::from_secs(150);
/// Worlds at the same time. Each waits most of its time, for Leases to end.
pub(super) const WORLDS: usize = 4;

/// One operator's beginnings, and one agent's: until the certificate of the agent is in use.
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) proxy: ApiProxy,
}

impl World {
    pub(super) async fn in_scenario(scenario: Scenario) -> Self {
        let proxy = scenario.api_proxy().await;
        Self { scenario, proxy }
    }

    /// Starts the operator, and lets an agent enrol. Around the write with this number the operator is ended.
    async fn run(&self, kill_around: Option<usize>) {
        let operator = self.scenario.tls_replica_behind(&self.proxy, "replica-0");
        if let Some(number) = kill_around {
            self.proxy.kill_around(number, operator.pid());
        }
        let endpoint = operator.websocket();
        let certificates = serde_json::json!({"duration": "1h", "renewBefore": "20m"});
        apply_fleet(&self.scenario, &endpoint, "Automatic", &certificates);
        tokio::select! {
            () = self.enrol(&endpoint) => {}
            () = revive(&self.proxy, operator) => {}
        }
    }

    async fn enrol(&self, endpoint: &str) {
        let scenario = &self.scenario;
        let ca = wait_for("the CA is published", AT_LAST, async || scenario.try_ca()).await;
        let authorization = format!("Bearer {TOKEN}");
        let swarm = agents(1, "edge").trusting(&ca).header("Authorization", &authorization).asking_for_certificates();
        let swarm = swarm.start(endpoint);
        swarm.all(Reached::certified(), AT_LAST).await;
        self.assert_one_certificate(&swarm).await;
        let published = std::fs::read_to_string(&ca).expect("the CA's file");
        let now = scenario.try_ca().expect("the CA is published");
        assert_eq!(std::fs::read_to_string(now).expect("the CA's file"), published, "the CA was never made anew");
    }

    async fn assert_one_certificate(&self, swarm: &Swarm) {
        let uid = swarm.uids().await.remove(0);
        let serial = renewed(&self.scenario, swarm, &uid, "", AT_LAST).await;
        assert_eq!(swarm.identity(0).await.new_uid, "", "the agent kept its uid");
        let secrets: Api<Secret> = Api::namespaced(self.scenario.client.clone(), &self.scenario.namespace);
        let certificates = ListParams::default().fields("type=opamp.dev/agent-certificate");
        wait_for("there is one Secret for the one certificate", AT_LAST, async || {
            let found = secrets.list(&certificates).await.map_err(|error| error.to_string())?;
            let serials: Vec<_> = found.items.iter().map(|it| it.metadata.annotations.clone()).collect();
            let annotated = format!("{serials:?}");
            if found.items.len() == 1 && annotated.contains(&serial) { Ok(()) } else { Err(annotated) }
        })
        .await;
        let others = secrets.list(&ListParams::default()).await.expect("the API server lists").items;
        for secret in others {
            let (name, kind) = (secret.metadata.name.unwrap_or_default(), secret.type_.unwrap_or_default());
            let known = [
                "opamp.dev/agent-certificate",
                "opamp.dev/enrollment-token",
                "opamp.dev/revision",
                "opamp.dev/credentials",
            ];
            assert!(known.contains(&kind.as_str()), "{name} of type {kind} is nobody's");
        }
        assert_eq!(self.scenario.list(Kind::Agent).await.len(), 1, "one Agent");
    }
}

/// Starts the operator again whenever it has ended.
pub(super) async fn revive(proxy: &ApiProxy, mut operator: Operator) {
    loop {
        operator.ended().await;
        operator = operator.relaunch();
        proxy.follow(operator.pid());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_around_any_write_there_is_one_certificate_in_the_end() {
    let undisturbed = World::in_scenario(Scenario::begin("kills").await).await;
    undisturbed.run(None).await;
    let writes = undisturbed.proxy.writes();
    assert!(writes.len() >= 8, "a CA, an Agent, a revision, a certificate: {writes:#?}");
    println!("{} writes from nothing to a certificate in use: {writes:#?}", writes.len());
    let kills = stream::iter(1..=writes.len()).map(async |number| {
        let world = World::in_scenario(undisturbed.scenario.beside(&format!("kill-{number}")).await).await;
        world.run(Some(number)).await;
        world.proxy.kills()
    });
    let kills: Vec<usize> = kills.buffer_unordered(WORLDS).collect().await;
    println!("kills around each write: {kills:?}");
    assert!(kills.iter().all(|&kills| kills > 0), "each write was met: {kills:?}");
}
