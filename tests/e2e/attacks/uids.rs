//! Who speaks under the uid of another.

use opamp_operator::opamp::messages::AgentToServer;
use serde_json::Value;

use super::{OTHER_TOKEN, SOON, TOKEN, World, keep_alive, report, try_both};
use crate::harness::{
    Kind,
    caller::{BOTH, Outcome},
    scripted::{attribute, full_report, new_uid, uid_text},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_uid_changes_nothing_of_the_agent_whose_it_is() {
    let world = World::begin("forged-uid").await;
    let (by_token, (by_certificate, _)) = (new_uid(), world.enrolled().await);
    let (own, stolen) = world.enrolled().await;
    let mut socket = world.caller().bearer(TOKEN).websocket().await.expect("a member of the fleet");
    socket.exchange(&full_report(&by_token, "edge")).await;
    let versions = [world.settled(&by_certificate).await, world.settled(&by_token).await];
    let victim = keep_alive(socket, by_token.clone());

    let stranger = world.caller().bearer(OTHER_TOKEN);
    let thief = world.caller().presenting(&stolen);
    let both = world.caller().presenting(&stolen).bearer(TOKEN);
    let mate = world.caller().bearer(TOKEN);
    for (case, caller, uid) in [
        ("the token of another fleet", &stranger, &by_token),
        ("the token of another fleet, a certificate is in use", &stranger, &by_certificate),
        ("the certificate of another agent", &thief, &by_token),
        ("the certificate of another agent, a certificate is in use", &thief, &by_certificate),
        ("a certificate and a token", &both, &by_token),
        ("the token of the same fleet, a certificate is in use", &mate, &by_certificate),
    ] {
        try_both(case, caller, &full_report(uid, "edge"), "renamed").await;
    }
    for transport in BOTH {
        let outcome = mate.says(&full_report(&by_token, "edge"), transport).await;
        let Outcome::Answered(answer) = outcome else { panic!("{outcome:?}") };
        assert!(
            answer.remote_config.is_none(),
            "who shares a token with a living agent is offered nothing in its place"
        );
    }
    let Outcome::Answered(answer) = thief.says(&report(&by_token), BOTH[0]).await else { panic!("no answer") };
    let given = answer.agent_identification.expect("another uid").new_instance_uid;
    assert_eq!(given, own, "a stolen certificate makes its thief the agent that it was issued to, and no other");

    world.operator.settles(SOON).await;
    let now = [&by_certificate, &by_token].map(|uid| world.agent(uid));
    let now = futures::future::join_all(now).await;
    let now: Vec<_> = now.iter().map(|agent| agent["metadata"]["resourceVersion"].clone()).collect();
    assert_eq!(now, versions.map(Value::from), "nothing was written of either victim");
    assert!(victim.await.expect("the victim goes on"), "it heard nothing of it and is served");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_says_of_itself_opens_no_fleet() {
    let world = World::begin("self-declared").await;
    let namespace = world.scenario.namespace.clone();
    let mut members = Vec::new();
    for (case, attributes) in [
        ("the selector of another fleet", vec![]),
        ("a namespace", vec![attribute("k8s.namespace.name", &namespace), attribute("service.namespace", &namespace)]),
        ("a fleet", vec![attribute("opamp.dev/fleet", "edge"), attribute("opamp.dev/namespace", &namespace)]),
        ("an identity", vec![attribute("opamp.dev/identity", &format!("token:{namespace}/edge"))]),
        ("access", vec![attribute("spec.access", "Approved"), attribute("tenant", "edge")]),
    ] {
        let (uid, mut message) = (new_uid(), AgentToServer::default());
        message.clone_from(&full_report(&uid, "edge"));
        let description = message.agent_description.as_mut().expect("it has one");
        description.identifying_attributes.extend(attributes.clone());
        description.non_identifying_attributes.extend(attributes);
        for transport in BOTH {
            let outcome = world.caller().bearer(OTHER_TOKEN).says(&message, transport).await;
            let Outcome::Answered(answer) = outcome else { panic!("{case}: {outcome:?}") };
            assert!(answer.remote_config.is_none() && answer.connection_settings.is_none(), "{case}: {answer:?}");
        }
        members.push(uid_text(&uid));
    }
    world.operator.settles(SOON).await;
    let agents = world.scenario.list(Kind::Agent).await;
    let in_edge = |agent: &&Value| members.iter().any(|uid| agent["metadata"]["name"] == uid.as_str());
    let taken: Vec<_> = agents.iter().filter(in_edge).map(|agent| agent["status"]["fleet"].clone()).collect();
    assert!(taken.iter().all(|fleet| *fleet != "edge"), "{taken:?}");
}
