//! What the command line and the surroundings say, as each part needs it.

use std::{env, fs, time::Duration};

use anyhow::{anyhow, ensure};
use kube::Config;
use opamp_operator::{
    bridge,
    catalog::{Policy, SecretContent},
    credentials::{profile::server_names, registrar::RegistrarSettings},
    kubernetes::{ObjectKey, Scope},
    lease::{Holder, Incarnation},
    server::{self, CertificateHeader, Endpoint, Proxies, ProxyProtocol, Tls, raise_descriptor_limit},
    status::{budget::BudgetLimits, render::Owner, room::ObjectLimits, writer::WriterLimits},
};

use crate::command_line::{RunArguments, anonymous_namespaces, replica_name};

/// The Secret with the certificate that the operator makes for itself, in its own namespace.
const OWN_TLS_SECRET: &str = "opamp-server-tls";

/// What the operator is, once its arguments are understood.
pub struct Settings {
    /// The command line.
    pub arguments: RunArguments,
    /// How the API server is reached.
    pub config: Config,
    /// The operator's own namespace.
    pub namespace: String,
    /// The namespaces that are served.
    pub scope: Scope,
    /// This replica, in this run.
    pub holder: Holder,
}

impl Settings {
    /// From the command line, else from the surroundings.
    pub async fn gather(arguments: RunArguments) -> anyhow::Result<Self> {
        // The text of the error quotes the file, which holds credentials.
        let config = Config::infer().await.map_err(|_| match env::var("KUBECONFIG") {
            Ok(path) => anyhow!("no cluster to work with: KUBECONFIG={path} is no usable kubeconfig"),
            Err(_) => anyhow!("no cluster to work with: set KUBECONFIG; this is no pod with a service account"),
        })?;
        let namespace = arguments
            .namespace
            .clone()
            .filter(|name| !name.is_empty())
            .or_else(|| variable("POD_NAMESPACE"))
            .unwrap_or_else(|| config.default_namespace.clone());
        let replica = arguments
            .replica_name
            .clone()
            .filter(|name| !name.is_empty())
            .or_else(|| variable("POD_NAME"))
            .or_else(host_name)
            .unwrap_or_default();
        ensure!(
            replica_name(&replica).is_ok_and(|name| !name.is_empty()),
            "the name {replica:?} of this replica cannot be the name of a Lease: give another one with --replica-name"
        );
        let scope = Scope::new(named(&arguments.namespaces), &namespace);
        let holder = Holder { replica, incarnation: Incarnation::random() };
        Ok(Self { arguments, config, namespace, scope, holder })
    }

    /// What the operator as a whole permits.
    pub fn policy(&self) -> Policy {
        let over_loopback = self.arguments.listen.ip().is_loopback();
        let secrets = if !self.arguments.plaintext || over_loopback || self.arguments.plaintext_secrets {
            SecretContent::Offered
        } else {
            SecretContent::Withheld
        };
        let anonymous = anonymous_namespaces(named(&self.arguments.anonymous_namespaces), &self.namespace);
        Policy { anonymous: anonymous.into_iter().collect(), secrets }
    }

    /// The Secret with the certificate of the listener; `None`: agents are served in plain text.
    pub fn tls_secret(&self) -> Option<ObjectKey> {
        if self.arguments.plaintext {
            return None;
        }
        let given = self.arguments.tls_secret.clone();
        Some(given.unwrap_or_else(|| ObjectKey::new(&*self.namespace, OWN_TLS_SECRET)))
    }

    /// How the leader makes certificates.
    pub fn registrar(&self) -> RegistrarSettings {
        let arguments = &self.arguments;
        // Where people give the server's certificate, or none is shown, none is made.
        let makes_own = !arguments.plaintext && arguments.tls_secret.is_none();
        RegistrarSettings {
            namespace: self.namespace.clone(),
            cluster: arguments.cluster_name.clone().filter(|name| !name.is_empty()),
            server_names: makes_own.then(|| server_names(&arguments.server_names, &self.namespace)),
        }
    }

    /// Where agents are served.
    pub fn endpoint(&self, tls: Option<Tls>) -> Endpoint {
        let (arguments, given) = (&self.arguments, &self.arguments.proxies);
        let proxies = Proxies {
            trusted: given.trusted_proxies.clone(),
            protocol: if given.proxy_protocol { ProxyProtocol::Required } else { ProxyProtocol::NotSpoken },
            certificate_header: if given.client_certificate_header {
                CertificateHeader::Believed
            } else {
                CertificateHeader::Ignored
            },
        };
        Endpoint { address: arguments.listen, path: arguments.path.clone(), tls, proxies }
    }

    /// The limits of the listener, within those of the process.
    pub fn server_limits(&self) -> anyhow::Result<server::Limits> {
        let given = &self.arguments.limits;
        let limits = server::Limits {
            connections: given.max_connections,
            handshakes_per_second: rate(given.handshake_rate),
            handshake_queue: given.handshake_queue,
            unreported: given.max_silent_connections,
            message_bytes: given.max_message_size,
            unfinished_bytes: given.max_unfinished_size,
            messages_per_second: rate(given.message_rate),
            message_burst: rate(given.message_burst),
            drains_per_second: rate(given.drain_rate),
            ..server::Limits::default()
        };
        let descriptors = raise_descriptor_limit()?;
        Ok(limits.within_descriptors(descriptors))
    }

    /// The limits of the writer.
    pub fn writer_limits(&self) -> WriterLimits {
        let given = &self.arguments.limits;
        WriterLimits {
            budget: BudgetLimits { per_second: rate(given.write_rate), burst: rate(given.write_burst) },
            in_flight: given.max_writes_in_flight,
            objects: ObjectLimits { agents: given.max_agents, unmatched: given.max_unmatched_agents },
        }
    }

    /// Who answers for the status of agents that are connected here.
    pub fn owner(&self) -> Owner {
        Owner { replica: self.holder.replica.clone(), incarnation: self.holder.incarnation.to_string() }
    }

    /// What the bridge is told.
    pub fn bridge(&self) -> bridge::Settings {
        let given = &self.arguments.limits;
        bridge::Settings {
            own_namespace: self.namespace.clone(),
            owner: self.owner(),
            max_pending: given.max_pending_agents,
            // Room for all connections and for as many that have just gone.
            max_sessions: given.max_connections.saturating_mul(2),
            http_silence: Duration::from_secs(given.http_silence_seconds as u64),
        }
    }
}

/// A variable that is set to nothing counts as not set: that is how templates of manifests leave it.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn named(names: &[String]) -> impl Iterator<Item = String> {
    names.iter().filter(|name| !name.is_empty()).cloned()
}

fn rate(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty())
}
