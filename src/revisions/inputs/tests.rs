use k8s_openapi::ByteString;
use serde_json::json;

use super::*;

fn remote_config(generation: i64, secret: &str) -> RemoteConfig {
    serde_json::from_value(json!({
        "apiVersion": "opamp.dev/v1alpha1",
        "kind": "RemoteConfig",
        "metadata": {"name": "base", "namespace": "telemetry", "generation": generation,
            "resourceVersion": generation.to_string()},
        "spec": {"files": [
            {"name": "collector.yaml", "bodyFrom": {"configMapKeyRef": {"name": "collector", "key": "yaml"}}},
            {"name": "token", "bodyFrom": {"secretKeyRef": {"name": secret, "key": "token"}}},
        ]},
    }))
    .expect("a RemoteConfig")
}

fn guarded(generation: i64, secret: &str) -> DeserializeGuard<RemoteConfig> {
    DeserializeGuard(Ok(remote_config(generation, secret)))
}

fn metadata<K>(name: &str, version: &str) -> PartialObjectMeta<K> {
    serde_json::from_value(json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": {"name": name, "namespace": "telemetry", "resourceVersion": version},
    }))
    .expect("metadata")
}

fn secret(name: &str) -> Source {
    Source { kind: SourceKind::Secret, key: ObjectKey::new("telemetry", name) }
}

fn base() -> BTreeSet<ObjectKey> {
    BTreeSet::from([ObjectKey::new("telemetry", "base")])
}

fn known(version: &str) -> Fetched {
    let data = BTreeMap::from([("token".to_owned(), ByteString(b"canary".to_vec()))]);
    let content = Arc::new(Content::from(Secret { data: Some(data), ..Secret::default() }));
    Fetched::Known { version: version.into(), content }
}

fn moved(inputs: &mut WatchedInputs, event: InputEvent) -> BTreeSet<ObjectKey> {
    inputs.apply(&None, event).moved.remote_configs
}

fn inputs() -> WatchedInputs {
    let mut inputs = WatchedInputs::new(&[None]);
    assert_eq!(moved(&mut inputs, InputEvent::RemoteConfig(Event::Apply(guarded(1, "token")))), base());
    inputs
}

fn seen(inputs: &mut WatchedInputs, name: &str, version: &str) -> BTreeSet<ObjectKey> {
    moved(inputs, InputEvent::Secret(Event::Apply(metadata(name, version))))
}

#[test]
fn only_what_is_referred_to_moves_anything() {
    let mut inputs = inputs();
    assert_eq!(seen(&mut inputs, "token", "1"), base());
    assert_eq!(seen(&mut inputs, "token", "1"), BTreeSet::new(), "listed again");
    assert_eq!(seen(&mut inputs, "unrelated", "1"), BTreeSet::new());
    let collector = InputEvent::ConfigMap(Event::Apply(metadata("collector", "1")));
    assert_eq!(moved(&mut inputs, collector), base());
    let mut written = remote_config(1, "token");
    written.metadata.resource_version = Some("9".into());
    let status = InputEvent::RemoteConfig(Event::Apply(DeserializeGuard(Ok(written))));
    let moved_by_status = inputs.apply(&None, status);
    assert_eq!(
        (moved_by_status.moved.remote_configs, moved_by_status.restated.remote_configs),
        (BTreeSet::new(), base())
    );
    assert_eq!(moved(&mut inputs, InputEvent::RemoteConfig(Event::Apply(guarded(2, "token")))), base());
}

#[test]
fn content_is_fetched_once_for_each_version_that_the_watch_shows() {
    let now = Instant::now();
    let mut inputs = inputs();
    let base = remote_config(1, "token");
    assert_eq!((inputs.lookup(&secret("token")), inputs.order(referenced(&base), now)), (Lookup::Missing, vec![]));
    seen(&mut inputs, "token", "1");
    assert_eq!(inputs.lookup(&secret("token")), Lookup::Unread);
    let orders = inputs.order(referenced(&base), now);
    assert_eq!(orders.len(), 1);
    assert_eq!(inputs.order(referenced(&base), now), [], "already under way");
    assert_eq!(inputs.fetched(orders[0].clone(), known("2"), now).remote_configs, self::base());
    assert!(matches!(inputs.lookup(&secret("token")), Lookup::Known(_)), "newer than the watch");
    seen(&mut inputs, "token", "2");
    assert!(matches!(inputs.lookup(&secret("token")), Lookup::Known(_)), "what was read already");
    seen(&mut inputs, "token", "3");
    assert_eq!(inputs.lookup(&secret("token")), Lookup::Unread);
    assert_eq!(inputs.order(referenced(&base), now).len(), 1);
    inputs.apply(&None, InputEvent::Secret(Event::Delete(metadata("token", "4"))));
    assert_eq!(inputs.lookup(&secret("token")), Lookup::Missing);
}

#[test]
fn a_fetch_that_failed_is_ordered_again_after_a_while() {
    let now = Instant::now();
    let mut inputs = inputs();
    seen(&mut inputs, "token", "1");
    let order = inputs.order(referenced(&remote_config(1, "token")), now).remove(0);
    inputs.fetched(order, Fetched::Failed("403 Forbidden".into()), now);
    assert_eq!(inputs.lookup(&secret("token")), Lookup::Unreadable("403 Forbidden".into()));
    assert_eq!(inputs.order(referenced(&remote_config(1, "token")), now + RETRY / 2), []);
    assert_eq!(inputs.order(referenced(&remote_config(1, "token")), now + RETRY).len(), 1);
}

#[test]
fn content_that_nobody_refers_to_any_more_is_forgotten() {
    let now = Instant::now();
    let mut inputs = inputs();
    seen(&mut inputs, "token", "1");
    let order = inputs.order(referenced(&remote_config(1, "token")), now).remove(0);
    inputs.fetched(order, known("1"), now);
    inputs.apply(&None, InputEvent::RemoteConfig(Event::Apply(guarded(2, "other"))));
    seen(&mut inputs, "other", "1");
    let order = inputs.order(referenced(&remote_config(2, "other")), now).remove(0);
    inputs.fetched(order, known("1"), now);
    assert_eq!(inputs.read.keys().cloned().collect::<Vec<_>>(), [secret("other")]);
}

#[test]
fn a_revision_that_appears_or_vanishes_is_told_by_its_name() {
    let mut inputs = inputs();
    let name = "opamp-revision-0c1d2e3f-3f9a1c2b07";
    let revision = BTreeSet::from([ObjectKey::new("telemetry", name)]);
    let mut revisions = |event| inputs.apply(&None, InputEvent::Secret(event)).stored;
    assert_eq!(revisions(Event::Apply(metadata(name, "1"))), revision);
    assert_eq!(revisions(Event::Apply(metadata("token", "1"))), BTreeSet::new());
    assert_eq!(revisions(Event::Delete(metadata(name, "2"))), revision);
    assert_eq!(revisions(Event::Delete(metadata("token", "1"))), BTreeSet::new());
}

fn settings(secret: &str) -> ConnectionSettings {
    let header = json!({"name": "Authorization", "valueFrom": {"secretKeyRef": {"name": secret, "key": "header"}}});
    serde_json::from_value(json!({
        "apiVersion": "opamp.dev/v1alpha1",
        "kind": "ConnectionSettings",
        "metadata": {"name": "edge", "namespace": "telemetry", "generation": 1, "resourceVersion": "1"},
        "spec": {"opamp": {"endpoint": "wss://a", "headers": [header]}},
    }))
    .expect("ConnectionSettings")
}

#[test]
fn a_value_concerns_the_settings_that_refer_to_it_and_the_fleets_that_offer_it() {
    let mut inputs = inputs();
    let edge = || BTreeSet::from([ObjectKey::new("telemetry", "edge")]);
    let event = InputEvent::ConnectionSettings(Event::Apply(DeserializeGuard(Ok(settings("edge-token")))));
    assert_eq!(inputs.apply(&None, event).moved.connection_settings, edge());
    let fleet = ObjectKey::new("telemetry", "core");
    inputs.offer(fleet.clone(), BTreeSet::from([secret("former-token")]));
    let mut moved = |name: &str| inputs.apply(&None, InputEvent::Secret(Event::Apply(metadata(name, "1")))).moved;
    let concerned = moved("edge-token");
    assert_eq!((concerned.connection_settings, concerned.fleets), (edge(), BTreeSet::new()));
    assert_eq!(moved("former-token").fleets, BTreeSet::from([fleet.clone()]));
    assert_eq!(moved("unrelated"), Concerned::default());
    inputs.offer(fleet, BTreeSet::new());
    let gone = inputs.apply(&None, InputEvent::Secret(Event::Delete(metadata("former-token", "2")))).moved;
    assert_eq!(gone, Concerned::default());
}

#[test]
fn references_lead_to_values_once_their_sources_were_read() {
    let now = Instant::now();
    let mut inputs = inputs();
    let reference = |key| CredentialReference::secret("token", key);
    let references = BTreeSet::from([reference("token"), reference("other"), CredentialReference::secret("none", "x")]);
    seen(&mut inputs, "token", "1");
    assert_eq!(inputs.credentials("telemetry", &references), None);
    let order = inputs.order(BTreeSet::from([secret("token")]), now).remove(0);
    inputs.fetched(order, known("1"), now);
    let found = inputs.credentials("telemetry", &references).expect("everything was read");
    let found: Vec<_> = found.into_values().map(|found| found.map(|credential| credential.value)).collect();
    assert_eq!(found, [Err(NotFound::Object), Err(NotFound::Key), Ok("canary".into())]);
}

#[test]
fn the_credentials_of_a_fleet_are_stored_and_no_input() {
    let mut inputs = inputs();
    let name = "opamp-credentials-0c1d2e3f";
    let event = InputEvent::Secret(Event::Apply(metadata(name, "1")));
    let moved = inputs.apply(&None, event);
    assert_eq!(moved.stored, BTreeSet::from([ObjectKey::new("telemetry", name)]));
    assert_eq!(moved.moved, Concerned::default());
}
