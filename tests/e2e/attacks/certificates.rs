//! Certificates that nobody issued, or not for this.

use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa};

use super::{World, report, try_both};
use crate::harness::{
    forge::{Forge, Identity, days_from_now, secret, self_signed, uri},
    scripted::new_uid,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_opens_what_it_was_issued_for_and_nothing_else() {
    let world = World::begin("forged").await;
    let (scenario, uid) = (&world.scenario, new_uid());
    let (own, foreign) = (Forge::stolen(scenario), Forge::foreign("opamp-operator"));
    let here = scenario.namespace.as_str();
    let name = world.name(here, "edge", &uid);
    let elsewhere = name.replacen("opamp://", "opamp://other-", 1);
    let of_server = secret(scenario, "opamp-server-tls", ["tls.crt", "tls.key"]);
    let of_authority = secret(scenario, "opamp-ca", ["tls.crt", "tls.key"]);
    let held = |[chain, key]: [String; 2]| Identity { chain, key };
    let is_ca = || IsCa::Ca(BasicConstraints::Unconstrained);
    let for_servers = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for (case, identity, expected) in [
        ("of a foreign CA", foreign.client(&name, |_| {}), "cut"),
        ("of itself", self_signed(&name), "cut"),
        ("expired", own.client(&name, |it| it.not_after = days_from_now(-1)), "401"),
        ("not yet valid", own.client(&name, |it| it.not_before = days_from_now(1)), "cut"),
        ("with CA:TRUE", own.client(&name, |it| it.is_ca = is_ca()), "cut"),
        ("for servers only", own.client(&name, |it| it.extended_key_usages = for_servers), "cut"),
        ("for nothing", own.client(&name, |it| it.extended_key_usages.clear()), "cut"),
        ("signed by an agent", own.below(&name, IsCa::ExplicitNoCa), "cut"),
        ("signed by a forged intermediate", own.below(&name, is_ca()), "cut"),
        ("of another cluster", own.client(&elsewhere, |_| {}), "cut"),
        ("of another namespace", own.client(&world.name("bank", "edge", &uid), |_| {}), "401"),
        ("of a fleet that takes none", own.client(&world.name(here, "other", &uid), |_| {}), "401"),
        ("of a fleet that is not there", own.client(&world.name(here, "gone", &uid), |_| {}), "401"),
        ("with two names", own.client(&name, |it| it.subject_alt_names.push(uri(&name))), "cut"),
        ("without a name", own.client(&name, |it| it.subject_alt_names.clear()), "cut"),
        ("with a name of another kind", own.client("spiffe://cluster/telemetry/edge", |_| {}), "cut"),
        ("of the server itself", held(of_server), "cut"),
        ("of the CA itself", held(of_authority), "cut"),
        ("as it is issued", own.client(&name, |_| {}), "served"),
    ] {
        try_both(case, &world.caller().presenting(&identity), &report(&uid), expected).await;
    }
    world.served("after forged certificates").await;
}
