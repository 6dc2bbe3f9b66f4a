//! Whatever happens in whatever order, and wherever the leader stops: one valid certificate in the end, nothing left over.

use proptest::prelude::*;

use super::{uid, world::World};
use crate::credentials::{
    plan::Step,
    revocations::{HolderId, MOST_REVOKED, Revocation},
    roll::{Finalizer, KeyWish, Standing},
    serial::Serial,
    stored::KeyOrigin,
};

#[test]
fn a_request_of_an_admitted_agent_is_answered_once() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Own);
    let name = world.ask(1);
    world.settle();
    let found = world.of(1);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].key.name.as_str(), found[0].origin), (name.as_str(), KeyOrigin::Agent));
    assert!(found[0].given.is_some());
    assert_eq!(world.plan().pending, 0);
}

#[test]
fn only_who_may_have_a_certificate_gets_one() {
    for (standing, expected) in [
        (Standing::Admitted, "given"),
        (Standing::Waiting, "waits"),
        (Standing::Denied, "refused: the agent is denied"),
        (Standing::Revoked, "removed"),
    ] {
        let mut world = World::new();
        world.join(1, standing, KeyWish::Own);
        world.ask(1);
        world.settle();
        let found = world.of(1).first().map_or_else(
            || "removed".to_owned(),
            |it| match (&it.given, &it.refused) {
                (Some(_), _) => "given".into(),
                (None, Some(refused)) => format!("refused: {}", refused.why),
                (None, None) => "waits".into(),
            },
        );
        assert_eq!(found, expected, "{standing:?}");
    }
}

#[test]
fn a_request_that_nobody_knows_waits_for_its_agent_and_is_removed_in_the_end() {
    let mut world = World::new();
    world.ask(1);
    world.settle();
    world.pass(599);
    world.settle();
    assert_eq!(world.of(1).len(), 1, "the Agent may be seen later than its Secret");
    world.pass(1);
    world.settle();
    assert_eq!(world.of(1).len(), 0);
}

#[test]
fn a_fleet_that_gives_out_no_certificates_refuses_once_that_is_sure() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Own);
    world.join(2, Standing::Admitted, KeyWish::Own);
    let fleets = std::mem::take(&mut world.roll.fleets);
    world.ask(1);
    world.pass(59);
    world.settle();
    assert_eq!(world.of(1)[0].refused, None, "what the fleet gives may be known later than the request");
    world.pass(1);
    world.settle();
    let why = world.of(1)[0].refused.as_ref().unwrap().why.clone();
    assert_eq!(why, "the fleet edge gives out no certificates");

    world.ask(2);
    world.settle();
    world.roll.fleets = fleets;
    world.settle();
    assert!(world.of(2)[0].given.is_some(), "and is answered then");
}

#[test]
fn a_request_that_comes_before_the_revision_of_its_fleet_is_answered() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Own);
    let fleets = std::mem::take(&mut world.roll.fleets);
    world.ask(1);
    world.settle();
    world.roll.fleets = fleets;
    world.settle();
    assert!(world.of(1)[0].given.is_some(), "the agent does not ask again");
}

#[test]
fn a_key_of_the_operators_is_made_once_and_renewed_with_a_new_one() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let first = world.of(1);
    assert_eq!((first.len(), first[0].origin), (1, KeyOrigin::Operator));
    let serial = first[0].given.as_ref().unwrap().certificate.serial.clone();
    world.member(1).in_use = Some(serial.clone());
    world.pass(340);
    assert_eq!(world.planned(), [], "not yet");
    world.pass(60);
    world.settle();
    let both = world.of(1);
    assert_eq!(both.len(), 2, "the former counts until the new one is used");
    let new = both.iter().find(|it| it.key != first[0].key).unwrap();
    world.member(1).in_use = Some(new.given.as_ref().unwrap().certificate.serial.clone());
    world.settle();
    assert_eq!(world.of(1).iter().map(|it| &it.key).collect::<Vec<_>>(), [&new.key]);
    assert!(!world.is_revoked(&serial), "it was not taken back");
}

#[test]
fn an_agent_that_asks_again_with_another_key_has_both_until_the_new_one_is_used() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Own);
    world.ask(1);
    world.settle();
    let used = world.of(1)[0].clone();
    world.member(1).in_use = Some(used.given.as_ref().unwrap().certificate.serial.clone());
    world.pass(100);
    let second = world.ask(1);
    world.settle();
    world.pass(100);
    world.settle();
    assert_eq!(world.of(1).len(), 2);
    let new = world.of(1).into_iter().find(|it| it.key.name == second).unwrap();
    world.member(1).in_use = Some(new.given.as_ref().unwrap().certificate.serial.clone());
    world.settle();
    assert_eq!(world.of(1).len(), 1);
}

#[test]
fn a_revoked_agent_is_held_until_its_certificates_are_in_the_list() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.join(2, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let serial = world.of(1)[0].given.as_ref().unwrap().certificate.serial.clone();
    world.member(1).standing = Standing::Revoked;
    let steps = world.plan().steps;
    assert!(matches!(steps[..], [Step::Hold(_), Step::Publish { .. }]), "{steps:?}");
    for write in world.planned() {
        world.apply(write);
    }
    assert_eq!(world.member(1).finalizer, Finalizer::Present);
    assert!(world.is_revoked(&serial));
    let steps = world.plan().steps;
    assert!(matches!(steps[..], [Step::Remove(_)]), "held until nothing is left that could be forgotten: {steps:?}");
    world.settle();
    assert_eq!((world.member(1).finalizer, world.of(1).len(), world.of(2).len()), (Finalizer::Absent, 0, 1));
    // Back in grace it gets another; the former stays in the list until it would have ended.
    world.member(1).standing = Standing::Admitted;
    world.settle();
    assert_ne!(world.of(1)[0].given.as_ref().unwrap().certificate.serial, serial);
    assert!(world.is_revoked(&serial));
    world.pass(86_400);
    world.settle();
    assert!(!world.is_revoked(&serial));
}

#[test]
fn a_list_without_room_is_not_written_again_and_again_and_holds_who_is_not_in_it() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let (begin, issuer, holder) = (world.now, world.authority.facts().key, HolderId::of("telemetry", &uid(9)));
    let mut full = world.revocations().unwrap();
    for number in 0..MOST_REVOKED {
        let not_after = super::at(if number == 0 { 300 } else { 86_400 });
        full.revocations.revoke(issuer, Serial::random(), Revocation { holder, at: begin, not_after });
    }
    world.published = Some(full.to_config_map("opamp-system"));
    let serial = world.of(1)[0].given.as_ref().unwrap().certificate.serial.clone();
    world.member(1).standing = Standing::Revoked;
    world.settle();
    assert_eq!(world.revocations().unwrap().number, full.number, "nobody makes room for it, and nothing changes");
    assert_eq!((world.of(1).len(), world.member(1).finalizer), (1, Finalizer::Present));
    assert_eq!(world.plan().without_room, 1);
    world.pass(300);
    world.settle();
    assert_eq!((world.of(1).len(), world.member(1).finalizer), (0, Finalizer::Absent));
    assert!(world.is_revoked(&serial), "there is room");
}

#[test]
fn an_agent_whose_secret_was_deleted_before_it_is_revoked_is_in_the_list_without_a_number() {
    for (case, is_deleted) in [("deleted", true), ("there", false)] {
        let mut world = World::new();
        world.join(1, Standing::Admitted, KeyWish::Operators);
        world.settle();
        let held = world.of(1)[0].given.as_ref().unwrap().certificate.clone();
        if is_deleted {
            world.secrets.clear();
        }
        let member = world.member(1);
        (member.standing, member.in_use, member.in_use_until) =
            (Standing::Revoked, Some(held.serial.clone()), Some(held.not_after));
        world.settle();
        let list = world.revocations().unwrap().revocations;
        assert_eq!((list.len(), list.holders().len()), (1, 1), "{case}");
        assert!(list.holders().contains_key(&HolderId::of("telemetry", &uid(1))), "{case}");
        assert_eq!(world.is_revoked(&held.serial), !is_deleted, "{case}");
        world.pass(600);
        world.settle();
        assert_eq!((world.of(1).len(), world.member(1).finalizer), (0, Finalizer::Absent), "{case}");
        assert_eq!(world.plan().steps, [], "{case}");
    }
}

#[test]
fn an_agent_that_is_revoked_and_deleted_at_once_is_taken_back_and_may_come_anew() {
    for gone_from in ["telemetry", "opamp-system"] {
        let mut world = World::new();
        world.join(1, Standing::Admitted, KeyWish::Operators);
        world.settle();
        let serial = world.of(1)[0].given.as_ref().unwrap().certificate.serial.clone();
        world.pass(10);
        world.roll.members.clear();
        world.roll.departed.insert(crate::credentials::roll::Roll::place(gone_from, &uid(1)), world.now);
        world.settle();
        assert!(world.is_revoked(&serial), "no leader has seen it revoked");
        assert_eq!(world.of(1).len(), 0);
        world.pass(1);
        world.join(1, Standing::Admitted, KeyWish::Operators);
        world.settle();
        let anew = world.of(1)[0].given.as_ref().unwrap().certificate.serial.clone();
        assert!(anew != serial && !world.is_revoked(&anew));
    }
}

#[test]
fn an_agent_whose_object_is_deleted_by_mistake_keeps_its_certificate() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators).in_use = None;
    world.settle();
    let name = world.of(1)[0].key.name.clone();
    let (place, member) = world.roll.members.pop_first().unwrap();
    for (seconds, is_back, is_kept) in
        [(100, false, true), (100, true, true), (0, false, true), (599, false, true), (1, false, false)]
    {
        world.pass(seconds);
        if is_back {
            world.roll.members.insert(place.clone(), member.clone());
        } else {
            world.roll.members.clear();
        }
        world.settle();
        assert_eq!(world.of(1).first().map(|it| it.key.name == name), is_kept.then_some(true), "{seconds} s later");
    }
}

#[test]
fn what_no_authority_of_ours_has_signed_has_no_place_in_the_list() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Own);
    world.ask(1);
    world.settle();
    let serial = world.of(1)[0].given.as_ref().unwrap().certificate.serial.clone();
    world.trusted.clear();
    world.member(1).standing = Standing::Revoked;
    world.settle();
    assert!(!world.is_revoked(&serial), "the number may be anybody's");
    assert_eq!(world.of(1).len(), 0, "the Secret goes, and with it what it stood for");
}

#[test]
fn who_is_revoked_in_the_operators_namespace_is_revoked_everywhere() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let serial = world.of(1)[0].given.as_ref().unwrap().certificate.serial.clone();
    let mut there = world.member(1).clone();
    there.standing = Standing::Revoked;
    there.fleet = None;
    world.roll.members.insert(crate::credentials::roll::Roll::place("opamp-system", &uid(1)), there);
    world.settle();
    assert!(world.is_revoked(&serial));
    assert_eq!(world.of(1).len(), 0);
}

#[test]
fn numbers_of_the_list_grow_even_if_the_last_one_was_lost() {
    let mut world = World::new();
    let first = world.revocations().unwrap().number;
    world.pass(86_400);
    world.settle();
    let second = world.revocations().unwrap().number;
    world.published = None;
    world.pass(1);
    world.settle();
    assert!(first < second && second < world.revocations().unwrap().number);
}

#[test]
fn what_a_former_fleet_gave_stays_until_the_new_fleets_certificate_is_used() {
    let mut world = World::new();
    let other = crate::kubernetes::ObjectKey::new("telemetry", "other");
    world.roll.fleets.insert(other, super::world::POLICY);
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let former = world.of(1)[0].clone();
    world.member(1).in_use = Some(former.given.as_ref().unwrap().certificate.serial.clone());
    world.member(1).fleet = Some("other".into());
    world.pass(100);
    world.settle();
    assert_eq!(world.of(1).len(), 2);
    let new = world.of(1).into_iter().find(|it| it.fleet == "other").unwrap();
    world.member(1).in_use = Some(new.given.as_ref().unwrap().certificate.serial.clone());
    world.settle();
    assert_eq!(world.of(1).len(), 1);
}

#[test]
fn certificates_of_two_leaders_for_one_agent_become_one() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    for write in [world.planned(), world.planned()].concat() {
        world.apply(write);
    }
    assert_eq!(world.of(1).len(), 2);
    world.settle();
    world.pass(60);
    world.settle();
    assert_eq!(world.of(1).len(), 1);
}

#[test]
fn a_certificate_whose_authority_is_trusted_no_more_is_made_anew() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let first = world.of(1)[0].clone();
    world.authority = super::authority();
    world.trusted.insert(world.authority.facts().key);
    world.settle();
    assert_eq!(world.of(1).len(), 1, "the former is still trusted");
    world.trusted.remove(&first.held().next().unwrap().issuer);
    world.pass(60);
    world.settle();
    let found = world.of(1);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].held().next().unwrap().issuer, world.authority.facts().key);
}

#[test]
fn a_refusal_of_a_key_of_the_operators_is_not_tried_again_at_once() {
    let mut world = World::new();
    world.join(1, Standing::Admitted, KeyWish::Operators);
    let (key, pair) = crate::credentials::key::PrivateKey::generate().unwrap();
    let request = crate::credentials::request::CertificateRequest::make(&super::name(1), &pair).unwrap();
    let secret = super::stored::holder(1).prepared(&key, &request);
    let known = crate::credentials::stored::AgentCertificate::read(&secret).unwrap();
    let refused = super::stored::patched(&secret, &known.refuse("no", world.now));
    world.apply(crate::credentials::carry::Write::Create(Box::new(refused)));
    world.settle();
    assert!(world.of(1)[0].refused.is_some());
    world.pass(600);
    world.settle();
    assert!(world.of(1)[0].given.is_some());
}

#[test]
fn an_agent_is_not_given_certificates_again_and_again_when_the_authority_nears_its_end() {
    let mut world = World::new();
    let end = world.authority.facts().not_after.as_second() - world.now.as_second();
    world.pass(end - 60);
    world.join(1, Standing::Admitted, KeyWish::Operators);
    world.settle();
    let writes = world.writes;
    for _ in 0..50 {
        world.pass(1);
        world.settle();
    }
    assert_eq!(world.writes, writes);
}

#[derive(Clone, Debug)]
enum Event {
    Join(u8, Standing, KeyWish),
    Leave(u8),
    Ask(u8),
    /// The agent comes with the newest certificate that it was given.
    Use(u8),
    Pass(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let standing = prop_oneof![
        4 => Just(Standing::Admitted),
        1 => Just(Standing::Waiting),
        1 => Just(Standing::Denied),
        1 => Just(Standing::Revoked)
    ];
    let wish = prop_oneof![Just(KeyWish::Own), Just(KeyWish::Operators)];
    prop_oneof![
        4 => (1..4_u8, standing, wish).prop_map(|(agent, standing, wish)| Event::Join(agent, standing, wish)),
        1 => (1..4_u8).prop_map(Event::Leave),
        3 => (1..4_u8).prop_map(Event::Ask),
        3 => (1..4_u8).prop_map(Event::Use),
        2 => (1..900_i64).prop_map(Event::Pass),
    ]
}

fn happen(world: &mut World, event: &Event) {
    match *event {
        Event::Join(agent, standing, wish) => {
            let key = crate::credentials::roll::Roll::place("telemetry", &uid(agent));
            let before = world.roll.members.get(&key).cloned();
            let member = world.join(agent, standing, wish);
            if let Some(before) = before {
                (member.finalizer, member.in_use) = (before.finalizer, before.in_use);
            }
        }
        Event::Leave(agent) => {
            let key = crate::credentials::roll::Roll::place("telemetry", &uid(agent));
            // An object with a finalizer stays.
            if world.roll.members.get(&key).is_some_and(|member| member.finalizer == Finalizer::Absent) {
                world.roll.members.remove(&key);
            }
        }
        Event::Ask(agent) => drop(world.ask(agent)),
        Event::Use(agent) => {
            let given = world.of(agent).into_iter().filter_map(|it| it.given.clone());
            let newest = given.max_by_key(|given| given.certificate.not_after);
            let key = crate::credentials::roll::Roll::place("telemetry", &uid(agent));
            if let (Some(given), Some(member)) = (newest, world.roll.members.get_mut(&key)) {
                member.in_use = Some(given.certificate.serial.clone());
            }
        }
        Event::Pass(seconds) => world.pass(seconds),
    }
}

/// What must hold once there is nothing to do.
fn check(world: &World) -> Result<(), TestCaseError> {
    for number in 1..4 {
        let found = world.of(number);
        let member = world.roll.member("telemetry", &uid(number));
        let valid =
            found.iter().filter_map(|it| it.given.as_ref()).filter(|given| given.certificate.not_after > world.now);
        let valid = valid.count();
        match member.map(|member| (member.standing, member.key_wish)) {
            Some((Standing::Admitted, wish)) => {
                prop_assert!(found.iter().all(|it| !it.is_due()), "a request is left without an answer");
                prop_assert!(wish == KeyWish::Own || valid > 0, "agent {number} has no certificate");
                prop_assert!(valid <= 2, "agent {number} has {valid}");
            }
            Some((Standing::Revoked, _)) => prop_assert!(found.is_empty(), "a revoked agent has something left"),
            Some((Standing::Waiting | Standing::Denied, _)) => {}
            None => prop_assert!(found.is_empty(), "something is left of an agent that is gone"),
        }
        if let Some(member) = member {
            prop_assert_eq!(member.finalizer, Finalizer::Absent);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The leader is stopped after any number of writes of each plan, and another one goes on.
    #[test]
    fn wherever_the_leader_stops_the_next_one_comes_to_the_same_end(
        story in proptest::collection::vec((event(), 0..6_usize), 1..24),
    ) {
        let mut world = World::new();
        for (event, writes) in &story {
            happen(&mut world, event);
            let planned = world.planned();
            planned.into_iter().take(*writes).for_each(|write| world.apply(write));
        }
        world.settle();
        // What is of no use any more is removed after a while.
        world.pass(1);
        world.settle();
        for _ in 0..11 {
            world.pass(60);
            world.settle();
        }
        check(&world)?;
        prop_assert_eq!(world.planned(), vec![]);
    }
}
