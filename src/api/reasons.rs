//! Every reason that a condition can have, declared once: the condition it decides, what it means, what to do.
//!
//! The reference in `docs/` is made from these tables. A reason's first sentences say when it holds; the text after
//! the arrow says what a person does about it.

use super::condition::{ConditionType, Finding, Verdict};

/// What a reason stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Declaration {
    /// The `reason` of the condition, and the label of metrics and events.
    pub word: &'static str,
    /// When it holds.
    pub meaning: &'static str,
    /// What to do about it; empty where there is nothing to be done.
    pub remedy: &'static str,
}

/// How far a fleet or a `RemoteConfig` is, as [kstatus] reads it.
///
/// [kstatus]: https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// `Ready=True`.
    Ready,
    /// `Ready=False`, and `Reconciling=True`: it may still come right by itself.
    Reconciling,
    /// `Ready=False`, and `Stalled=True`: its author must act.
    Stalled,
    /// `Ready=False` alone: somebody else must act, and the spec is observed.
    Held,
}

/// A reason of a kind that people write.
pub trait StandingReason: Copy {
    /// What it stands for.
    fn declaration(self) -> Declaration;
    /// What it does to `Ready`, `Reconciling` and `Stalled`.
    fn standing(self) -> Standing;
}

macro_rules! standing_reasons {
    ($(#[$about:meta])* $name:ident { $( $(#[doc = $meaning:literal])+ $reason:ident is $standing:ident => $remedy:literal, )+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name { $( $(#[doc = $meaning])+ $reason, )+ }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$( Self::$reason ),+];
        }

        impl StandingReason for $name {
            fn declaration(self) -> Declaration {
                match self {
                    $( Self::$reason => Declaration {
                        word: stringify!($reason),
                        meaning: concat!($( $meaning ),+).trim_ascii(),
                        remedy: $remedy,
                    }, )+
                }
            }

            fn standing(self) -> Standing {
                match self { $( Self::$reason => Standing::$standing, )+ }
            }
        }
    };
}

standing_reasons! {
    /// Why an `AgentFleet` is ready, or is not.
    ///
    /// Whatever is wrong, the last good revision stays served.
    FleetReason {
        /// What the fleet asks for is a revision, and all members are offered it.
        /// Whether they applied it is in the counters of `status.agents`.
        Completed is Ready => "",
        /// The spec or something that it refers to has changed; the operator waits
        /// until changes have been quiet for a second, then makes a revision.
        Progressing is Reconciling => "Wait; this takes a few seconds.",
        /// A RemoteConfig that the fleet names does not exist in its namespace.
        RemoteConfigNotFound is Reconciling => "Create the RemoteConfig, or remove its name from `spec.remoteConfigs`.",
        /// A RemoteConfig that the fleet names is not Ready.
        RemoteConfigNotReady is Reconciling => "See the conditions of that RemoteConfig.",
        /// The ConnectionSettings that the fleet names do not exist in its namespace.
        ConnectionSettingsNotFound is Reconciling => "Create the ConnectionSettings, or remove `spec.connectionSettings`.",
        /// The ConnectionSettings that the fleet names are not Ready.
        ConnectionSettingsNotReady is Reconciling => "See the conditions of those ConnectionSettings.",
        /// Some member could get two files of one name: two entries of
        /// `spec.remoteConfigs` have such a file, and their selectors do not
        /// exclude each other on a key.
        FileNameClash is Stalled => "Rename one of the files, or give both entries selectors of which at most one can match.",
        /// A pipeline uses a component that none of the fleet's files defines.
        UndefinedComponent is Stalled => "Define the component in one of the files, or remove it from the pipeline.",
        /// The revision has more than 1,000,000 bytes compressed, which is more
        /// than a Secret holds.
        TooLarge is Stalled => "Offer less: split the fleet, or shorten its files.",
        /// The fleet lists the method Anonymous, and its namespace is none of those
        /// in which the operator permits it. Its other methods go on.
        AnonymousNotAllowed is Stalled => "Remove Anonymous from `spec.enrollment.methods`, or have the namespace added to the operator's `--anonymous-namespaces`.",
        /// A Secret of `spec.enrollment.clientCAs` does not exist, or holds no CA
        /// certificate under `ca.crt`. Other ways into the fleet go on.
        ClientCaNotUsable is Reconciling => "Create the Secret with the CA certificate in PEM under `ca.crt`, or correct the reference.",
        /// The issuer of `spec.enrollment.certificates` cannot issue: its kind is
        /// not served by the cluster, or it refuses. Members keep the certificates
        /// that they have.
        IssuerNotUsable is Reconciling => "See the message; install cert-manager or correct `issuerRef`, or use the issuer Internal.",
        /// A file or a header comes from a Secret, and the operator serves agents
        /// without TLS.
        SecretsNeedTls is Stalled => "Serve with TLS, or start the operator with `--plaintext-secrets` where the network is trusted.",
        /// The operator keeps as many Agent objects as `--max-agents` permits.
        /// Members without an object are served, but not shown.
        ObjectCapReached is Held => "Raise `--max-agents`, or shorten `spec.retention.disconnectedFor`.",
    }
}

standing_reasons! {
    /// Why a `RemoteConfig` is ready, or is not.
    ///
    /// Whatever is wrong, fleets go on offering what they last made of it.
    RemoteConfigReason {
        /// All files are there and hold what their format asks for.
        Valid is Ready => "",
        /// A ConfigMap, a Secret or a key that a file refers to does not exist.
        ReferenceNotFound is Reconciling => "Create it, or correct the reference; it is looked at again as soon as it appears.",
        /// A file is no YAML, or not what the format asks of it. The message tells
        /// the place.
        InvalidYaml is Stalled => "Correct the file at that line and column.",
        /// A file is no template that compiles. The message tells the place.
        InvalidTemplate is Stalled => "Correct the file at that line.",
        /// A file is not valid UTF-8, but `template` or `format` asks for text.
        NotText is Stalled => "Put text into the referenced key, or set `format: Opaque` and `template: Disabled`.",
        /// The files together have more than 900,000 bytes.
        TooLarge is Stalled => "Offer less, or split the files over RemoteConfigs of several fleets.",
    }
}

standing_reasons! {
    /// Why `ConnectionSettings` are ready, or are not.
    ///
    /// Whatever is wrong, agents keep the connection that they have.
    ConnectionSettingsReason {
        /// Everything that the settings refer to is there.
        Valid is Ready => "",
        /// A Secret, a ConfigMap or a key that the settings refer to does not
        /// exist. While a value is missing, none of these settings is offered.
        ReferenceNotFound is Reconciling => "Create it, or correct the reference; it is looked at again as soon as it appears.",
        /// A value that the settings refer to is not what it must be: a header
        /// with control characters, a certificate that is no PEM, a key that does
        /// not belong to its certificate. The message tells which.
        InvalidReference is Reconciling => "Correct the value; it is looked at again as soon as it changes.",
    }
}

/// The conditions that these reasons make, most important first: `Ready`, and `Reconciling` and `Stalled` where there
/// is a cause for them. The first reason that is not [`Standing::Ready`] decides `Ready`; without any reason there is
/// nothing to say.
#[must_use]
pub fn standing_findings<R: StandingReason>(reasons: &[(R, String)]) -> Vec<Finding> {
    let first = |wanted: &[Standing]| reasons.iter().find(|(reason, _)| wanted.contains(&reason.standing()));
    let fault = first(&[Standing::Reconciling, Standing::Stalled, Standing::Held]);
    let ready = fault
        .map(|found| (found, Verdict::False))
        .or_else(|| first(&[Standing::Ready]).map(|found| (found, Verdict::True)));
    let reconciling = first(&[Standing::Reconciling]).map(|found| (found, Verdict::True));
    let stalled = first(&[Standing::Stalled]).map(|found| (found, Verdict::True));
    [(ConditionType::Ready, ready), (ConditionType::Reconciling, reconciling), (ConditionType::Stalled, stalled)]
        .into_iter()
        .filter_map(|(condition, found)| {
            found.map(|((reason, message), verdict)| Finding {
                condition,
                verdict,
                reason: reason.declaration().word,
                message: message.clone(),
            })
        })
        .collect()
}

macro_rules! agent_reasons {
    ($(#[$about:meta])* $name:ident { $( $(#[doc = $meaning:literal])+ $reason:ident is $condition:ident $verdict:ident => $remedy:literal, )+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name { $( $(#[doc = $meaning])+ $reason, )+ }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$( Self::$reason ),+];

            /// What it stands for.
            #[must_use]
            pub const fn declaration(self) -> Declaration {
                match self {
                    $( Self::$reason => Declaration {
                        word: stringify!($reason),
                        meaning: concat!($( $meaning ),+).trim_ascii(),
                        remedy: $remedy,
                    }, )+
                }
            }

            /// The condition that it decides.
            #[must_use]
            pub const fn condition(self) -> ConditionType {
                match self { $( Self::$reason => ConditionType::$condition, )+ }
            }

            /// What the condition's status is for this reason.
            #[must_use]
            pub const fn verdict(self) -> Verdict {
                match self { $( Self::$reason => Verdict::$verdict, )+ }
            }
        }
    };
}

agent_reasons! {
    /// Why a condition of an `Agent` is as it is.
    AgentReason {
        /// The agent is connected, is not unwell, and runs what its fleet gives it.
        AsDesired is Ready True => "",
        /// A fleet takes the agent: `status.fleet`.
        FleetSelects is Matched True => "",
        /// No fleet that admits the agent selects its attributes. It stays
        /// connected and keeps what it runs; nothing new is offered to it.
        NoFleetSelects is Matched False => "Compare `status.attributes` with the selectors of the fleets.",
        /// The agent has not described itself within 10 seconds, and an earlier
        /// description is not known.
        DescriptionMissing is Matched False => "See that the agent sends its description (`agent_description`).",
        /// The agent may take part: by its credential alone, or by a person's approval.
        Admitted is Accepted True => "",
        /// Its fleet asks for a person's approval, and nobody has given it. It is
        /// offered nothing.
        PendingApproval is Accepted False => "Approve or deny it as the message says.",
        /// A person has denied it: `spec.access`.
        Denied is Accepted False => "Set `spec.access` to Approved if it may return.",
        /// A person has revoked it: `spec.access`. Its certificates count no more.
        Revoked is Accepted False => "Set `spec.access` to Approved if it may return; it must then enrol anew.",
        /// The agent has a live session.
        SessionOpen is Connected True => "",
        /// The agent said goodbye.
        AgentDisconnected is Connected False => "",
        /// The connection was closed, and the agent has not returned.
        ConnectionClosed is Connected False => "See whether the agent runs and reaches the operator.",
        /// Nothing was heard of the agent for longer than it may be silent.
        HeartbeatMissing is Connected False => "See whether the agent runs and reaches the operator.",
        /// The replica that held the session is gone, and the agent has not turned
        /// up at another one.
        ReplicaGone is Connected Unknown => "See whether the agent reaches the operator; it returns by itself.",
        /// The agent reports to be healthy.
        ReportedHealthy is Healthy True => "",
        /// The agent reports not to be healthy: `status.health`.
        ReportedUnhealthy is Healthy False => "See `status.health` for what the agent says of itself and its components.",
        /// The agent can report its health, and has not done so yet.
        HealthPending is Healthy Unknown => "",
        /// The agent does not report its health.
        HealthUnsupported is Healthy Unknown => "",
        /// The agent has applied exactly what it was offered.
        Applied is ConfigApplied True => "",
        /// The fleet's revision has no file for this agent.
        NothingToApply is ConfigApplied True => "",
        /// The configuration is offered, and the agent has not spoken of it yet.
        Pending is ConfigApplied False => "",
        /// The agent is applying what it was offered.
        Applying is ConfigApplied False => "",
        /// The agent failed to apply what it was offered. It is not offered the same
        /// again by itself.
        ConfigFailed is ConfigApplied False => "Correct the configuration; or, if the cause lay elsewhere, set `spec.reoffer.requestedAt` to the present time.",
        /// A template failed for this agent's attributes. It keeps what it runs;
        /// other members go on.
        TemplateFailed is ConfigApplied False => "Correct the template, or have the agent report the attribute that the message names.",
        /// The agent waits for a person's approval, so nothing is offered to it.
        NotAccepted is ConfigApplied Unknown => "",
        /// The fleet has no revision yet.
        NoRevision is ConfigApplied Unknown => "See the conditions of the fleet.",
        /// No fleet takes the agent, so there is nothing that it ought to run.
        NotMatched is ConfigApplied Unknown => "",
        /// The agent does not accept remote configuration.
        Unsupported is ConfigApplied Unknown => "If it should, enable the capability AcceptsRemoteConfig in the agent.",
        /// The agent accepts remote configuration, but does not tell what became of
        /// it.
        ReportUnsupported is ConfigApplied Unknown => "If it can, enable the capability ReportsRemoteConfig in the agent.",
        /// The agent has a certificate that counts: `status.certificate`.
        CertificateValid is CertificateIssued True => "",
        /// The certificate is being made, or waits for the issuer.
        CertificatePending is CertificateIssued False => "Wait; see the fleet's conditions if it takes longer than a minute.",
        /// The request of the agent for a certificate was refused: the message
        /// tells why.
        CertificateRefused is CertificateIssued False => "Correct the agent; it may ask again with another key.",
        /// The certificate has ended before it was renewed. The agent must enrol
        /// anew, with a credential that its fleet admits.
        CertificateExpired is CertificateIssued False => "See that the agent runs and renews; give it an enrollment token if it has none.",
    }
}

impl AgentReason {
    /// The condition that it decides, with a message for this agent.
    #[must_use]
    pub fn finding(self, message: impl Into<String>) -> Finding {
        Finding {
            condition: self.condition(),
            verdict: self.verdict(),
            reason: self.declaration().word,
            message: message.into(),
        }
    }
}

/// `Ready` of an agent, from its other findings, most important first: the first that stands in the way gives its
/// reason and message. Not knowing the health, or having no part in configuration, does not stand in the way; not
/// being connected or matched does.
#[must_use]
pub fn agent_ready(findings: &[(AgentReason, String)]) -> Finding {
    let obstacle = findings.iter().find(|(reason, _)| match (reason.condition(), reason.verdict()) {
        (_, Verdict::True) => false,
        (_, Verdict::False) | (ConditionType::Connected | ConditionType::Matched, Verdict::Unknown) => true,
        (
            ConditionType::Ready
            | ConditionType::Reconciling
            | ConditionType::Stalled
            | ConditionType::Accepted
            | ConditionType::Healthy
            | ConditionType::ConfigApplied
            | ConditionType::CertificateIssued,
            Verdict::Unknown,
        ) => *reason == AgentReason::NoRevision,
    });
    match obstacle {
        None => AgentReason::AsDesired.finding(""),
        Some((reason, message)) => Finding {
            condition: ConditionType::Ready,
            verdict: if reason.verdict() == Verdict::Unknown { Verdict::Unknown } else { Verdict::False },
            reason: reason.declaration().word,
            message: message.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declarations() -> Vec<Declaration> {
        let fleet = FleetReason::ALL.iter().map(|reason| reason.declaration());
        let remote_config = RemoteConfigReason::ALL.iter().map(|reason| reason.declaration());
        let agent = AgentReason::ALL.iter().map(|reason| reason.declaration());
        let settings = ConnectionSettingsReason::ALL.iter().map(|reason| reason.declaration());
        fleet.chain(remote_config).chain(settings).chain(agent).collect()
    }

    #[test]
    fn every_reason_says_what_it_means_and_ends_in_a_full_stop() {
        for Declaration { word, meaning, remedy } in declarations() {
            assert!(word.len() <= 128, "{word}: events refuse longer reasons");
            assert!(meaning.ends_with('.'), "{word}: {meaning}");
            assert!(remedy.is_empty() || remedy.ends_with('.'), "{word}: {remedy}");
        }
    }

    #[test]
    fn whatever_is_not_ready_says_what_to_do() {
        let fleet = FleetReason::ALL.iter().map(|reason| (reason.standing(), reason.declaration()));
        let remote_config = RemoteConfigReason::ALL.iter().map(|reason| (reason.standing(), reason.declaration()));
        for (standing, declaration) in fleet.chain(remote_config) {
            assert_eq!(declaration.remedy.is_empty(), standing == Standing::Ready, "{}", declaration.word);
        }
    }

    fn summary(findings: &[Finding]) -> Vec<(&str, &str, &str)> {
        findings.iter().map(|f| (f.condition.as_str(), f.verdict.as_str(), f.reason)).collect()
    }

    #[test]
    fn reconciling_and_stalled_are_there_only_with_a_cause() {
        use FleetReason::{Completed, FileNameClash, ObjectCapReached, RemoteConfigNotFound};
        for (case, reasons, expected) in [
            ("nothing known", vec![], vec![]),
            ("all well", vec![Completed], vec![("Ready", "True", "Completed")]),
            (
                "the author must act",
                vec![FileNameClash],
                vec![("Ready", "False", "FileNameClash"), ("Stalled", "True", "FileNameClash")],
            ),
            (
                "it may still come",
                vec![Completed, RemoteConfigNotFound],
                vec![("Ready", "False", "RemoteConfigNotFound"), ("Reconciling", "True", "RemoteConfigNotFound")],
            ),
            ("somebody else must act", vec![ObjectCapReached], vec![("Ready", "False", "ObjectCapReached")]),
            (
                "both",
                vec![FileNameClash, RemoteConfigNotFound],
                vec![
                    ("Ready", "False", "FileNameClash"),
                    ("Reconciling", "True", "RemoteConfigNotFound"),
                    ("Stalled", "True", "FileNameClash"),
                ],
            ),
        ] {
            let reasons: Vec<_> = reasons.into_iter().map(|reason| (reason, String::new())).collect();
            assert_eq!(summary(&standing_findings(&reasons)), expected, "{case}");
        }
    }

    #[test]
    fn an_agent_is_ready_unless_something_stands_in_the_way() {
        use AgentReason::{
            Applied, Applying, FleetSelects, HealthUnsupported, NoFleetSelects, NoRevision, NotMatched, ReplicaGone,
            ReportedUnhealthy, SessionOpen, Unsupported,
        };
        for (case, reasons, verdict, reason) in [
            ("all well", vec![FleetSelects, SessionOpen, Applied], Verdict::True, "AsDesired"),
            ("cannot tell its health", vec![SessionOpen, HealthUnsupported, Applied], Verdict::True, "AsDesired"),
            ("takes no configuration", vec![SessionOpen, Unsupported], Verdict::True, "AsDesired"),
            ("its replica is gone", vec![FleetSelects, ReplicaGone, Applied], Verdict::Unknown, "ReplicaGone"),
            ("the first obstacle counts", vec![ReportedUnhealthy, Applying], Verdict::False, "ReportedUnhealthy"),
            ("no fleet", vec![NoFleetSelects, SessionOpen, NotMatched], Verdict::False, "NoFleetSelects"),
            ("no revision", vec![FleetSelects, SessionOpen, NoRevision], Verdict::Unknown, "NoRevision"),
        ] {
            let findings: Vec<_> = reasons.into_iter().map(|reason| (reason, "why".to_owned())).collect();
            let ready = agent_ready(&findings);
            assert_eq!(
                (ready.condition, ready.verdict, ready.reason),
                (ConditionType::Ready, verdict, reason),
                "{case}"
            );
        }
    }
}
