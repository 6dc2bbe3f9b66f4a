//! Who shows nothing.

use std::time::Duration;

use super::{World, report, try_both};
use crate::harness::{
    Kind,
    caller::{BOTH, Outcome},
    fleet,
    scripted::{full_report, new_uid, uid_text},
    wait_for,
};

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_nothing_gets_what_is_for_everybody() {
    let world = World::begin("anonymous").await;
    try_both("nothing, where no fleet takes everybody", &world.caller(), &report(&new_uid()), "401").await;

    world.scenario.apply(&[fleet("open").build()]);
    let uid = new_uid();
    wait_for("everybody is taken", Duration::from_secs(10), async || {
        let outcome = world.caller().says(&full_report(&uid, "open"), BOTH[1]).await.word();
        if outcome == "served" { Ok(()) } else { Err(outcome) }
    })
    .await;
    for transport in BOTH {
        let liar = new_uid();
        let outcome = world.caller().says(&full_report(&liar, "edge"), transport).await;
        let Outcome::Answered(answer) = outcome else { panic!("{outcome:?}") };
        assert!(answer.remote_config.is_none(), "an anonymous agent that says it is of edge gets nothing of edge");
        let agent = world.scenario.get(Kind::Agent, &uid_text(&liar)).await.unwrap_or_default();
        assert_ne!(agent["status"]["fleet"], "edge");
    }
    let (victim, _) = world.enrolled().await;
    try_both("nothing, under the uid of a member", &world.caller(), &full_report(&victim, "open"), "renamed").await;
    // A wrong credential is not as good as none.
    let guesser = world.caller().bearer("a-token-that-is-not-there-at-all");
    try_both("a wrong token, where everybody is taken", &guesser, &full_report(&new_uid(), "open"), "401").await;
}
