//! Ten thousand sessions live in each replica: what one weighs is a promise.

use std::collections::BTreeMap;

use super::*;
use crate::opamp::messages::KeyValue;

/// Room for 11 pairs, a parent and two counters; every map of up to 11 keys is one of these.
const MAP_NODE: usize = 11 * (size_of::<String>() + size_of::<String>()) + 16;

/// What the allocator adds to a string.
const OVERHEAD: usize = 16;

fn map(map: &BTreeMap<String, String>) -> usize {
    let nodes = map.len().div_ceil(6);
    let texts: usize = map.iter().map(|(key, value)| key.capacity() + value.capacity() + 2 * OVERHEAD).sum();
    nodes * (MAP_NODE + OVERHEAD) + texts
}

/// What a session holds on the heap, with the allocator's 16 bytes for each string.
fn heap(session: &Session) -> usize {
    let record = session.record();
    let description = record.description.as_ref().unwrap();
    let health = record.health.as_ref().unwrap();
    let report = record.remote_config.as_ref().unwrap();
    let texts =
        [health.status.capacity(), health.last_error.capacity(), report.hash.capacity(), report.error.capacity()];
    let texts: usize = texts.into_iter().filter(|capacity| *capacity > 0).map(|capacity| capacity + OVERHEAD).sum();
    map(&description.identifying) + map(&description.non_identifying) + texts
}

/// Four pointers are for connection settings and certificate requests, and lead nowhere in a session that has neither.
#[test]
fn a_typical_session_weighs_less_than_2600_bytes() {
    let attribute = |key: &str, value: &str| KeyValue {
        key: key.into(),
        value: Some(AnyValue { value: Some(Value::StringValue(value.into())) }),
    };
    let mut report = full(1).status("a", RemoteConfigStatuses::Applied);
    report.0.agent_description = Some(AgentDescription {
        identifying_attributes: vec![
            attribute("service.name", "io.opentelemetry.collector"),
            attribute("service.version", "0.140.0"),
            attribute("service.namespace", "telemetry"),
            attribute("service.instance.id", "0190c3f2-7d1e-7c3b-9f61-2a4d5e6f7081"),
        ],
        non_identifying_attributes: vec![
            attribute("host.name", "ip-10-0-112-37.eu-central-1.compute.internal"),
            attribute("host.arch", "amd64"),
            attribute("os.type", "linux"),
            attribute("os.description", "Ubuntu 24.04.1 LTS"),
            attribute("deployment.environment", "production"),
            attribute("cloud.region", "eu-central-1"),
        ],
    });
    let mut stage = Stage::new();
    let _ = stage.hears(socket(1), report);
    let (own, heap) = (size_of::<Session>(), heap(&stage.session));
    assert!(own <= 800, "{own} bytes");
    assert!(own + heap <= 2600, "{own} + {heap} bytes");
}
