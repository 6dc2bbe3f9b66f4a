//! Whatever is wrong with a configuration: it shows where its author looks, and nobody gets it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Kind, Reached, Scenario, fleet, remote_config, resources::collector_config, swarm::agents};

/// The time within which a fault must show.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_secs(10);

/// One way to break what worked.
struct Breakage {
    case: &'static str,
    /// Applied over what worked.
    objects: Vec<Value>,
    /// Where it shows: object, condition, reason.
    shows: (Kind, &'static str, &'static str, &'static str),
    /// What the message must name: the place.
    names: &'static [&'static str],
}

fn breakages() -> Vec<Breakage> {
    let undefined = collector_config("undefined").replace("exporters: [debug]", "exporters: [kafka]");
    vec![
        Breakage {
            case: "YAML that does not parse",
            objects: vec![remote_config("base").for_collectors().file("collector.yaml", "receivers:\n  - {").build()],
            shows: (Kind::RemoteConfig, "base", "Stalled", "InvalidYaml"),
            names: &["collector.yaml", "line"],
        },
        Breakage {
            case: "a ConfigMap that does not exist",
            objects: vec![remote_config("base").file_from_config_map("collector.yaml", "absent", "key").build()],
            shows: (Kind::RemoteConfig, "base", "Reconciling", "ReferenceNotFound"),
            names: &["collector.yaml", "absent"],
        },
        Breakage {
            case: "a pipeline with a component that nobody defines",
            objects: vec![remote_config("base").for_collectors().file("collector.yaml", &undefined).build()],
            shows: (Kind::Fleet, "edge", "Stalled", "UndefinedComponent"),
            names: &["kafka", "traces"],
        },
        Breakage {
            case: "two files of one name",
            objects: vec![
                remote_config("second").file("collector.yaml", "a: 1").build(),
                fleet("edge").offering(&["base", "second"]).build(),
            ],
            shows: (Kind::Fleet, "edge", "Stalled", "FileNameClash"),
            names: &["collector.yaml", "base", "second"],
        },
        Breakage {
            case: "a template that does not compile",
            objects: vec![remote_config("base").templated().file("collector.yaml", "host: {{ agent.").build()],
            shows: (Kind::RemoteConfig, "base", "Stalled", "InvalidTemplate"),
            names: &["collector.yaml", "line"],
        },
        Breakage {
            case: "a RemoteConfig that does not exist",
            objects: vec![fleet("edge").offering(&["base", "absent"]).build()],
            shows: (Kind::Fleet, "edge", "Reconciling", "RemoteConfigNotFound"),
            names: &["absent"],
        },
    ]
}

fn working(marker: &str) -> [Value; 2] {
    [
        remote_config("base").for_collectors().file("collector.yaml", &collector_config(marker)).build(),
        fleet("edge").offering(&["base"]).build(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_is_shown_and_the_last_good_revision_stays() {
    let scenario = Scenario::begin("broken").await;
    let mut operator = scenario.operator().await;
    scenario.apply(&working("good"));
    let swarm = agents(5, "edge").start(&operator.websocket());
    swarm.all(Reached::running("good"), SOON).await;

    for (round, Breakage { case, objects, shows, names }) in breakages().into_iter().enumerate() {
        println!("broken: {case}");
        let offers = swarm.summary().await.offers;
        scenario.apply(&objects);
        let (kind, name, condition, reason) = shows;
        let shown = scenario.condition((kind, name), (condition, "True", reason), SHOWN_WITHIN).await;
        for place in names {
            assert!(shown.message.contains(place), "{case}: the message names {place}: {shown:?}");
        }
        scenario.condition((kind, name), ("Ready", "False", reason), SHOWN_WITHIN).await;
        assert_eq!(swarm.summary().await.offers, offers, "{case}: nobody is offered it");

        let newcomers = agents(2, "edge").seed(&format!("newcomers-{round}"));
        let newcomers = newcomers.start(&operator.websocket());
        newcomers.all(Reached::running("good"), SOON).await;
        operator = operator.restart().await;
        let late = agents(2, "edge").seed(&format!("late-{round}")).start(&operator.websocket());
        late.all(Reached::running("good"), Duration::from_secs(20)).await;

        scenario.apply(&working("good"));
        scenario.condition((Kind::Fleet, "edge"), ("Ready", "True", "Completed"), SHOWN_WITHIN).await;
        drop((newcomers, late));
    }
    assert_eq!(swarm.summary().await.offers, 5, "through all of it each agent was offered one configuration, once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_missing_is_taken_up_when_it_comes() {
    let scenario = Scenario::begin("comes-late").await;
    let operator = scenario.operator().await;
    scenario.apply(&[
        remote_config("base").file_from_config_map("rules.yaml", "late", "rules.yaml").build(),
        fleet("edge").offering(&["base"]).build(),
    ]);
    let swarm = agents(2, "edge").start(&operator.websocket());
    let reason = ("Reconciling", "True", "ReferenceNotFound");
    scenario.condition((Kind::RemoteConfig, "base"), reason, SHOWN_WITHIN).await;
    scenario.apply_config_map("late", "rules.yaml", "rules: here");
    swarm.all(Reached::running("rules: here"), SOON).await;
    let object = scenario.get(Kind::RemoteConfig, "base").await.expect("it is there");
    let left: Vec<_> = object["status"]["conditions"].as_array().into_iter().flatten().map(|c| &c["type"]).collect();
    assert_eq!(left, [&json!("Ready")], "Reconciling and Stalled are there only while True");
}
